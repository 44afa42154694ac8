"""Check the values of a plan that was read from text."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenstep.planning.plan import Plan


def check_values(plan: Plan) -> None:
    """Raise a ValueError that names the first invalid value of a plan that was read from text."""
    require(isinstance(plan.rule, str), "rule", plan.rule)
    require(isinstance(plan.init, str), "init", plan.init)
    require(plan.base is None or (is_number(plan.base) and plan.base > 0), "base", plan.base)
    require(type(plan.path_count) is int and plan.path_count > 0, "path_count", plan.path_count)
    require(type(plan.sum_cubed_depth) is int and plan.sum_cubed_depth >= 0, "sum_cubed_depth", plan.sum_cubed_depth)
    of_parameters = (f for p in plan.parameters for f in (*p.factors, *p.eps_factors, *p.decay_factors))
    for factor in (*plan.factors, *plan.eps_factors, *plan.beta_factors, *of_parameters):
        require(isinstance(factor.name, str) and isinstance(factor.why, str), "words of a factor", factor)
    for factor in (*plan.factors, *plan.eps_factors, *plan.beta_factors):
        require(is_number(factor.value) and factor.value > 0, f"factor '{factor.name}'", factor.value)
    for vertex in plan.vertices:
        require(isinstance(vertex.name, str), "name of a vertex", vertex.name)
        sizes = is_number(vertex.second_moment) and vertex.second_moment >= 0 and type(vertex.in_degree) is int
        sizes = sizes and (vertex.measured is None or (is_number(vertex.measured) and vertex.measured >= 0))
        require(sizes, f"vertex '{vertex.name}'", (vertex.in_degree, vertex.second_moment, vertex.measured))
    require(all(isinstance(remark, str) for remark in plan.remarks), "remarks", plan.remarks)
    require(all(isinstance(line, str) for line in plan.history), "history", plan.history)
    for p in plan.parameters:
        require(isinstance(p.name, str), "name of a parameter", p.name)
        require(p.factors[: len(plan.factors)] == plan.factors, f"factors of '{p.name}'", p.factors)
        shared_eps = p.eps_factors[: len(plan.eps_factors)]
        require(shared_eps == plan.eps_factors, f"eps_factors of '{p.name}'", p.eps_factors)
        require(
            all(isinstance(text, str) for text in (p.init_reason, p.role, *p.notes)), f"words of '{p.name}'", p.notes
        )
        for factor in (*p.factors, *p.eps_factors, *p.decay_factors):
            require(is_number(factor.value) and factor.value > 0, f"factor '{factor.name}' of '{p.name}'", factor.value)
        for name in ("std", "lr_scale", "mean"):
            value = getattr(p, name)
            require(is_number(value) and (value >= 0 or name == "mean"), f"{name} of '{p.name}'", value)
        require(isinstance(p.kept, bool), f"kept of '{p.name}'", p.kept)
        require(isinstance(p.frozen, bool) and (p.kept or not p.frozen), f"frozen of '{p.name}'", p.frozen)
    planned = [(p.name, p.shape) for p in plan.parameters]
    declared = [(p.name, p.shape) for p in plan.graph.parameters if p.trainable]
    if planned != declared:
        odd = next(pair for pair in zip_longest(planned, declared) if pair[0] != pair[1])
        raise ValueError(f"its parameters differ from its graph's: it has {odd[0]}, and the graph has {odd[1]}")


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def require(holds: bool, name: str, value: object) -> None:
    """Raise a ValueError that names a value, unless a condition holds."""
    if not holds:
        raise ValueError(f"{name} is {value!r}")
