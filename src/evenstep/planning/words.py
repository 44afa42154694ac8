"""A plan in words: one formatter for `print(plan)`, the command line and the report page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from evenstep.planning.optimizers import OptimizerChoice
from evenstep.rules import Factor

if TYPE_CHECKING:
    from evenstep.planning.plan import ParameterPlan, Plan


def format_factors(factors: Iterable[Factor]) -> str:
    """Return factors in words, each with its reason."""
    return " x ".join(f"{factor.name} {factor.value:.4g} ({factor.why})" for factor in factors) or "the base's"


def format_reason(parameter: ParameterPlan) -> str:
    """Say in one line where a parameter's rate and its start come from."""
    notes = "".join(f"{note}; " for note in parameter.notes)
    rate = "not trained" if parameter.frozen else format_factors(parameter.factors)
    scaled = "" if parameter.frozen else "".join(f"; {words}" for words in _scaled_words(parameter))
    return f"{notes}lr: {rate}{scaled}; init: {parameter.init_reason}"


def _scaled_words(parameter: ParameterPlan) -> list[str]:
    """Say by what the rule multiplies epsilon and decay."""
    kinds = (("eps", parameter.eps_factors), ("decay", parameter.decay_factors))
    return [f"{name}: {format_factors(factors)}" for name, factors in kinds if factors]


def shared_words(plan: Plan) -> str:
    """Say what all parameters' rates have in common, and what their epsilons and betas do."""
    moved = {"eps": plan.eps_factors, "1 - beta": plan.beta_factors}
    others = (f"; all {name}: {format_factors(factors)}" for name, factors in moved.items() if factors)
    return format_factors(plan.factors) + "".join(others)


def training_words(plan: Plan) -> str:
    """Say in a line which training a plan is for and which its base was searched with; empty where it knows neither."""
    found = f"base searched with {plan.searched}" if str(plan.searched) else ""
    if plan.training == plan.searched:
        return found and f"for {plan.training}, as its base was searched with"
    return ", ".join(part for part in (f"for {plan.training}" if str(plan.training) else "", found) if part)


def own_words(plan: Plan, parameter: ParameterPlan, *, start: bool = False) -> str:
    """Say what is a parameter's own besides what all share: notes, its own factors, and how it starts.

    Without `start` only starting points other than zero are named.
    """
    begins = f"init: {parameter.init_reason}" if start else f"starts at {parameter.mean:g}" if parameter.mean else ""
    own = () if parameter.frozen else plan.own_factors(parameter)
    count = len(plan.eps_factors)
    scaled = () if parameter.frozen else _scaled_words(replace(parameter, eps_factors=parameter.eps_factors[count:]))
    parts = (*parameter.notes, format_factors(own) if own else "", *scaled, begins)
    return "; ".join(part for part in parts if part)


def head_words(plan: Plan) -> str:
    """Say what a plan was made by and for."""
    base = "factors only" if plan.base is None else f"base learning rate {plan.base:g}"
    optimizer = OptimizerChoice(plan.optimizer_name, plan.optimizer_options)
    return f"Plan by rule '{plan.rule}', init '{plan.init}', optimizer {optimizer}, {base}"


def head_lines(plan: Plan) -> list[str]:
    """Return what comes before what all rates share: what a plan is, which training it is for, and its history."""
    training = training_words(plan)
    return [head_words(plan), *([training.capitalize()] if training else []), *plan.history]


def table_head(plan: Plan) -> tuple[str, str, str, str, str]:
    """Return the titles of a plan's columns."""
    return "parameter", "shape", "std", "lr_scale" if plan.base is None else "lr", "of its own"


def row_words(plan: Plan, parameter: ParameterPlan) -> tuple[str, str, str, str, str]:
    """Return what a parameter got, column by column."""
    rate = parameter.lr_scale if plan.base is None else plan.base * parameter.lr_scale
    return (
        parameter.name,
        "x".join(map(str, parameter.shape)),
        "kept" if parameter.kept else f"{parameter.std:.4g}",
        rate_words(parameter, rate),
        own_words(plan, parameter),
    )


def rate_words(parameter: ParameterPlan, rate: float) -> str:
    """Return a rate of a parameter's, or that it has none."""
    return "frozen" if parameter.frozen else f"{rate:.4g}"


def format_plan(plan: Plan) -> str:
    """Return a table: what all parameters share, then what each got."""
    rows = [table_head(plan), *(row_words(plan, parameter) for parameter in plan.parameters)]
    i, j, k, m = (max(len(row[column]) for row in rows) for column in range(4))
    lines = [f"{a:<{i}}  {b:<{j}}  {c:>{k}}  {d:>{m}}  {e}".rstrip() for a, b, c, d, e in rows]
    warned = [f"Warning: {text}" for text in plan.warnings]
    return "\n".join([*head_lines(plan), f"All rates: {shared_words(plan)}", *lines, *warned])
