"""Change a plan by hand: patterns choose parameters, and the plan records every change."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from evenstep.arguments import require_number, shown
from evenstep.errors import InputError
from evenstep.rules import Factor
from evenstep.rules.rule import product

if TYPE_CHECKING:
    from evenstep.planning.plan import ParameterPlan, Plan


def scaled(plan: Plan, pattern: str, factor: float) -> Plan:
    """Return a plan in which the rates of all matching parameters are multiplied by a factor."""
    value = require_number("factor", factor, above=0)
    names = _matching(plan, pattern)
    added = Factor("scaled", value, f"by hand: '{pattern}'")
    shared = len(plan.factors)
    # A factor of all parameters is the whole network's, and comes before each parameter's own.
    place = shared if len(names) == len(plan.parameters) else None
    parameters = tuple(_with_factor(p, added, place) if p.name in names else p for p in plan.parameters)
    factors = plan.factors if place is None else (*plan.factors, added)
    return replace(plan, parameters=parameters, factors=factors)


def frozen(plan: Plan, pattern: str) -> Plan:
    """Return a plan in which all matching parameters are kept as they are and not trained."""
    names = _matching(plan, pattern)
    note = f"frozen by hand: '{pattern}'"
    parameters = tuple(
        replace(p, frozen=True, kept=True, init_reason="kept as it is", notes=(*p.notes, note))
        if p.name in names and not p.frozen
        else p
        for p in plan.parameters
    )
    if all(p.frozen for p in parameters):
        raise InputError(f"'{pattern}' would leave nothing to train; freeze fewer of the {len(parameters)} parameters")
    return replace(plan, parameters=parameters)


def _with_factor(parameter: ParameterPlan, added: Factor, place: int | None) -> ParameterPlan:
    place = len(parameter.factors) if place is None else place
    factors = (*parameter.factors[:place], added, *parameter.factors[place:])
    if not 0 < product(factors) < math.inf:
        raise InputError(
            f"factor is {added.value:g}, which makes the rate of '{parameter.name}' zero or infinite; give a factor "
            "closer to 1"
        )
    return replace(parameter, factors=factors)


def _matching(plan: Plan, pattern: object) -> set[str]:
    """Return the names that match a pattern, at least one."""
    if not isinstance(pattern, str):
        raise InputError(f"pattern is {shown(pattern)}; give a text such as '*.bias', or '*' for all parameters")
    if names := {p.name for p in plan.parameters if fnmatchcase(p.name, pattern)}:
        return names
    bare = pattern.strip("*?.")
    similar = heapq.nlargest(3, (p.name for p in plan.parameters), key=lambda name: _likeness(bare, name))
    raise InputError(
        f"pattern is '{pattern}', which matches none of the {len(plan.parameters)} parameters; similar names are "
        f"{', '.join(map(repr, similar))}"
    )


def _likeness(text: str, name: str) -> float:
    """Return how similar a text is to a name or to the name's last part."""
    return max(SequenceMatcher(None, text, part).ratio() for part in (name, name.rpartition(".")[2]))
