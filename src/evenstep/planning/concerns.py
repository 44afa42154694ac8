"""What is likely to be wrong in a plan: one line each, with the parameter and the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from evenstep.errors import PlanError, PlanWarning, warn
from evenstep.graph.fields import name_of

if TYPE_CHECKING:
    from evenstep.planning.plan import ParameterPlan, Plan

ON_NO_PATH = "on no path from input to output"
NOT_USED = "not used"
SMALLEST_STD, LARGEST_STD = 1e-5, 5.0
LARGEST_RATE = 100.0  # in units of the base's
LARGEST_PART_KEPT = 0.1  # of all parameter values
LARGEST_OUTPUT = 10.0  # the second moment of an output at initialisation
MOST_PATHS = 10**6  # that the rule `paths` is meant for: its authors count those of a cell or of a small DAG


def report(plan: Plan, *, strict: bool = False) -> None:
    """Warn the caller's caller of what looks wrong in a plan; with `strict`, raise."""
    for remark in plan.warnings:
        if strict:
            raise PlanError(f"{remark} (strict=True makes this an error)")
        warn(remark, PlanWarning)


def concerns(plan: Plan) -> Iterator[str]:
    """Yield what looks wrong in a plan, one line for each kind."""
    drawn = [p for p in plan.parameters if p.role == "weight" and not p.kept]
    if small := [p for p in drawn if p.std < SMALLEST_STD]:
        yield _line(small, lambda p: f"starts at a tiny standard deviation, {p.std:.3g} ({p.init_reason})")
    if large := [p for p in drawn if p.std > LARGEST_STD]:
        yield _line(large, lambda p: f"starts at a huge standard deviation, {p.std:.3g} ({p.init_reason})")
    if fast := [p for p in plan.parameters if p.lr_scale > LARGEST_RATE]:
        yield _line(fast, lambda p: f"would train at {p.lr_scale:.3g} times the base's rate ({p.reason})")
    if name_of(plan.rule) == "paths" and plan.path_count > MOST_PATHS:
        yield (
            f"the rule 'paths' counts about 10^{math.log10(plan.path_count):.1f} paths of the whole network, so its "
            "rate is close to none; its authors count the paths of one cell: take the rate that the graph of a cell "
            "alone gets (of NAS-Bench-201, evenstep.graph.nasbench201_graph)"
        )
    if loose := [p for p in plan.parameters if ON_NO_PATH in p.notes or any(n.startswith(NOT_USED) for n in p.notes)]:
        yield _line(loose, lambda p: f"is {', '.join(p.notes)}: no output depends on it")
    if plan.init.partition("(")[0] == "keep":
        return
    for vertex in plan.vertices:
        if vertex.name in plan.graph.outputs and vertex.second_moment > LARGEST_OUTPUT:
            yield (
                f"the output '{vertex.name}' starts at a huge second moment, {vertex.second_moment:.3g}: a factor or a "
                "sum before or after the readout makes it large; average instead of summing"
            )
    kept = [p for p in plan.parameters if p.kept and not p.frozen and p not in loose]
    total = sum(math.prod(p.shape) for p in plan.parameters)
    part = sum(math.prod(p.shape) for p in kept) / total if total else 0.0
    if part > LARGEST_PART_KEPT:
        largest = max(kept, key=lambda p: math.prod(p.shape))
        yield (
            f"{100 * part:.3g} % of all parameter values are kept as they are, above all those of '{largest.name}' "
            f"({'; '.join(largest.notes) or largest.init_reason}); check how the module initialises them"
        )


def _line(parameters: list[ParameterPlan], words: Callable[[ParameterPlan], str]) -> str:
    first, more = parameters[0], len(parameters) - 1
    others = f"; the same is true of {more} more" if more else ""
    return f"'{first.name}' {words(first)}{others}"
