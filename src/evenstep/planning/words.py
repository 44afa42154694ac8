"""A plan in words: one formatter for `print(plan)`, the command line and the report page."""

from __future__ import annotations

import math
from collections.abc import Iterable
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
    scaled = "" if parameter.frozen else "".join(f"; {words}" for words in eps_and_decay_words(parameter))
    return f"{notes}lr: {rate}{scaled}; init: {parameter.init_reason}"


def eps_and_decay_words(parameter: ParameterPlan) -> list[str]:
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


def head_words(plan: Plan) -> str:
    """Say what a plan was made by and for."""
    base = "factors only" if plan.base is None else f"base learning rate {plan.base:g}"
    optimizer = OptimizerChoice(plan.optimizer_name, plan.optimizer_options)
    return f"Plan by rule '{plan.rule}', init '{plan.init}', optimizer {optimizer}, {base}"


def head_lines(plan: Plan) -> list[str]:
    """Return what comes before what all rates share: what a plan is, which training it is for, and its history."""
    training = training_words(plan)
    return [f"{head_words(plan)}; {path_words(plan)}", *([training.capitalize()] if training else []), *plan.history]


def path_words(plan: Plan) -> str:
    """Say how many paths lead from input to output; a number too long to read becomes a power of ten.

    Numbers of paths grow with the product of what every block offers: they may have thousands of digits.
    """
    count = plan.path_count
    if count < 10**9:
        return f"{count:,} path{'' if count == 1 else 's'}"
    return f"about 10^{math.log10(count):.0f} paths"


def rate_words(parameter: ParameterPlan, rate: float) -> str:
    """Return a rate of a parameter's, or that it has none."""
    return "frozen" if parameter.frozen else f"{rate:.4g}"
