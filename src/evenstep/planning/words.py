"""A plan in words: one formatter for `print(plan)`, the command line and the report page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from evenstep.rules import Factor

if TYPE_CHECKING:
    from evenstep.planning.plan import ParameterPlan, Plan


def format_factors(factors: Iterable[Factor]) -> str:
    """Return factors in words, each with its reason."""
    return " x ".join(f"{factor.name} {factor.value:.4g} ({factor.why})" for factor in factors) or "the base's"


def format_reason(parameter: ParameterPlan) -> str:
    """Say in one line where a parameter's rate and its start come from."""
    notes = "".join(f"{note}; " for note in parameter.notes)
    return f"{notes}lr: {format_factors(parameter.factors)}; init: {parameter.init_reason}"


def shared_words(plan: Plan) -> str:
    """Say what all parameters' rates have in common."""
    return format_factors(plan.factors)


def own_words(plan: Plan, parameter: ParameterPlan, *, start: bool = False) -> str:
    """Say what is a parameter's own besides what all share: notes, its own factors, and how it starts.

    Without `start` only starting points other than zero are named.
    """
    begins = f"init: {parameter.init_reason}" if start else f"starts at {parameter.mean:g}" if parameter.mean else ""
    own = plan.own_factors(parameter)
    parts = (*parameter.notes, format_factors(own) if own else "", begins)
    return "; ".join(part for part in parts if part)


def format_plan(plan: Plan) -> str:
    """Return a table: what all parameters share, then what each got."""
    base = "factors only" if plan.base is None else f"base learning rate {plan.base:g}"
    head = f"Plan by rule '{plan.rule}', init '{plan.init}', optimizer '{plan.optimizer}', {base}"
    rows = [("parameter", "shape", "std", "lr_scale" if plan.base is None else "lr", "of its own")]
    for p in plan.parameters:
        std = "kept" if p.kept else f"{p.std:.4g}"
        rate = p.lr_scale if plan.base is None else plan.base * p.lr_scale
        rows.append((p.name, "x".join(map(str, p.shape)), std, f"{rate:.4g}", own_words(plan, p)))
    i, j, k, m = (max(len(row[column]) for row in rows) for column in range(4))
    lines = [f"{a:<{i}}  {b:<{j}}  {c:>{k}}  {d:>{m}}  {e}".rstrip() for a, b, c, d, e in rows]
    warned = [f"Warning: {text}" for text in plan.warnings]
    return "\n".join([head, f"All rates: {shared_words(plan)}", *lines, *warned])
