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
    """Return factors as words, each with its reason."""
    return " x ".join(f"{factor.name} {factor.value:.4g} ({factor.why})" for factor in factors) or "the base's"


def format_reason(parameter: ParameterPlan) -> str:
    """Explain a parameter's rate and initialisation in one line."""
    notes = "".join(f"{note}; " for note in parameter.notes)
    rate = "not trained" if parameter.frozen else format_factors(parameter.factors)
    scaled = "" if parameter.frozen else "".join(f"; {words}" for words in eps_and_decay_words(parameter))
    return f"{notes}lr: {rate}{scaled}; init: {parameter.init_reason}"


def eps_and_decay_words(parameter: ParameterPlan) -> list[str]:
    """Return the rule's factors of epsilon and decay as words."""
    kinds = (("eps", parameter.eps_factors), ("decay", parameter.decay_factors))
    return [f"{name}: {format_factors(factors)}" for name, factors in kinds if factors]


def shared_words(plan: Plan) -> str:
    """Return the factors that all rates share, and those of epsilon and betas, as words."""
    moved = {"eps": plan.eps_factors, "1 - beta": plan.beta_factors}
    others = (f"; all {name}: {format_factors(factors)}" for name, factors in moved.items() if factors)
    return format_factors(plan.factors) + "".join(others)


def training_words(plan: Plan) -> str:
    """Say which training a plan is for and which its base was searched with, in one line; empty if it knows neither."""
    searched = f"base searched with {plan.searched}" if str(plan.searched) else ""
    if plan.training == plan.searched:
        return searched and f"for {plan.training}, the same as its base's search"
    return ", ".join(part for part in (f"for {plan.training}" if str(plan.training) else "", searched) if part)


def head_words(plan: Plan) -> str:
    """Say which rule, initialisation, optimiser and base a plan was made with."""
    base = "factors only" if plan.base is None else f"base learning rate {plan.base:g}"
    optimizer = OptimizerChoice(plan.optimizer_name, plan.optimizer_options)
    return f"Plan by rule '{plan.rule}', init '{plan.init}', optimizer {optimizer}, {base}"


def head_lines(plan: Plan) -> list[str]:
    """Return the first lines of a plan: how it was made, which training it is for, and its history."""
    training = training_words(plan)
    return [f"{head_words(plan)}; {path_words(plan)}", *([training.capitalize()] if training else []), *plan.history]


def path_words(plan: Plan) -> str:
    """Say how many paths lead from input to output; a number too long to read becomes a power of ten.

    The number of paths is a product over blocks, so it may have thousands of digits.
    """
    count = plan.path_count
    if count < 10**9:
        return f"{count:,} path{'' if count == 1 else 's'}"
    return f"about 10^{math.log10(count):.0f} paths"


def rate_words(parameter: ParameterPlan, rate: float) -> str:
    """Return a parameter's rate as words; 'frozen' if it has none."""
    return "frozen" if parameter.frozen else f"{rate:.4g}"
