"""The plan as a value: an initialisation and a learning rate for every trainable parameter, each with its reason."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any

from evenstep.arguments import shown
from evenstep.errors import EvenstepError, PlanError
from evenstep.graph import Graph
from evenstep.planning.concerns import concerns
from evenstep.planning.groups import param_groups
from evenstep.planning.words import format_plan, format_reason
from evenstep.rules import OPTIMIZERS, Factor
from evenstep.rules.rule import product

FORMAT = "evenstep-plan/2"
_OLDER_FORMATS = ("evenstep-plan/1",)


@contextmanager
def any_digits() -> Iterator[None]:
    """Write and read whole numbers of any length: path counts outgrow Python's limit of 4300 digits."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(limit)


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """Hold the initialisation and the learning rate of one parameter.

    It starts from N(`mean`, `std`^2), or stays as it is where `kept`; `init_reason` says why. Its learning rate is the
    base's times all `factors`. `notes` are further remarks.
    """

    name: str
    std: float
    factors: tuple[Factor, ...]
    init_reason: str
    mean: float = 0.0
    kept: bool = False
    role: str = "weight"
    shape: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def lr_scale(self) -> float:
        """The learning rate, in units of the base's."""
        return product(self.factors)

    @property
    def reason(self) -> str:
        """One line that says where the rate and the start come from."""
        return format_reason(self)


@dataclass(frozen=True, slots=True)
class VertexPlan:
    """Report a vertex: live in-degree, and second moment at initialisation relative to the input's.

    `measured` is what a forward pass showed over that second moment, None where none was run.
    """

    name: str
    in_degree: int
    second_moment: float
    measured: float | None = None


@dataclass(frozen=True)
class Plan:
    """Hold every trainable parameter exactly once, the rule that planned it, and the graph it was read from.

    `base` is the base's learning rate, None when the plan holds factors only. `lr_scale` is the factor of the whole
    network (topology and kernel); single parameters add their width factor to it. `remarks` say where a forward pass
    showed other signals than were computed.
    """

    parameters: tuple[ParameterPlan, ...]
    rule: str
    base: float | None
    graph: Graph
    init: str = "conserve"
    optimizer: str = "sgd"
    factors: tuple[Factor, ...] = ()
    vertices: tuple[VertexPlan, ...] = field(default=(), repr=False)
    path_count: int = 0
    sum_cubed_depth: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is likely to be wrong, one line each: where signals measured otherwise, and what looks absurd."""
        return (*self.remarks, *concerns(self))

    def with_measured(self, second_moments: Mapping[str, float], remarks: tuple[str, ...] = ()) -> Plan:
        """Return the plan with what a forward pass showed beside every vertex, and what is to be said of it."""
        vertices = (
            replace(v, measured=second_moments[v.name] / v.second_moment)
            if v.name in second_moments and v.second_moment > 0
            else v
            for v in self.vertices
        )
        return replace(self, vertices=tuple(vertices), remarks=(*self.remarks, *remarks))

    @property
    def lr_scale(self) -> float:
        """The factor of the whole network relative to its base."""
        return product(self.factors)

    def __getitem__(self, name: str) -> ParameterPlan:
        """Return the plan of one parameter by name."""
        for parameter in self.parameters:
            if isinstance(name, str) and parameter.name == name:
                return parameter
        raise PlanError(
            f"the plan has no parameter {shown(name)}; it has {len(self.parameters)}, such as {self._some()}"
        )

    def __contains__(self, name: object) -> bool:
        """Say whether the plan has a parameter of this name."""
        return isinstance(name, str) and any(parameter.name == name for parameter in self.parameters)

    def __iter__(self) -> Iterator[ParameterPlan]:
        """Go through the parameters' plans in the model's order."""
        return iter(self.parameters)

    def __str__(self) -> str:
        """Return a table: what all parameters share, then what each got; `plan[name].reason` says why in full."""
        return format_plan(self)

    def own_factors(self, parameter: ParameterPlan) -> tuple[Factor, ...]:
        """Return the factors of a parameter's rate that not all parameters share."""
        count = len(self.factors)
        return parameter.factors[count:] if parameter.factors[:count] == self.factors else parameter.factors

    def decay_scale(self, parameter: ParameterPlan) -> float:
        """Return the factor that makes weight decay act equally on every layer.

        Optimisers multiply decay by the rate, so divide it by the layer's own factor: a weight drawn a tenth as large,
        because it reads ten times as much, is then the same layer in another unit.
        """
        return self.lr_scale / parameter.lr_scale if parameter.lr_scale > 0 else 1.0

    def param_groups(
        self, model: Any, *, lr: float | None = None, even_decay: bool = False, **options: Any
    ) -> list[dict[str, Any]]:
        """Return ordinary optimiser groups of a torch module: each a real `lr` and a `name`, equal rates merged.

        `lr` is the base's learning rate and overrides the plan's own; further options, such as `weight_decay`, are
        passed on to every group. With `even_decay` a group's `weight_decay` is multiplied by its `decay_scale`: all
        parameters then decay at one pace, where torch's optimisers let those of small rates decay slowly.
        """
        return param_groups(model, self, lr=lr, even_decay=even_decay, **options)

    def to_dict(self, *, graph: bool = True) -> dict[str, Any]:
        """Return the plan as plain values; without the graph it cannot be loaded again."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "rule": self.rule,
            "init": self.init,
            "optimizer": self.optimizer,
            "base": self.base,
            "lr_scale": self.lr_scale,
            "factors": [asdict(factor) for factor in self.factors],
            "path_count": self.path_count,
            "sum_cubed_depth": self.sum_cubed_depth,
            "vertices": [asdict(vertex) for vertex in self.vertices],
            "remarks": list(self.remarks),
            "parameters": [_listed(parameter) for parameter in self.parameters],
        }
        return {**values, "graph": self.graph.to_dict()} if graph else values

    def to_json(self) -> str:
        """Return the plan as JSON text that `Plan.from_json` reads back to an equal plan."""
        try:
            with any_digits():
                return json.dumps(self.to_dict(), allow_nan=False)
        except ValueError:
            raise PlanError(
                "the plan holds a number that is not finite, which JSON has not; look for a constant of the network "
                "that is infinite or not a number"
            ) from None

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan written by `to_json`; anything else raises a `PlanError`."""
        try:
            with any_digits():
                values = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise PlanError(
                f"this is not a plan: its text is no JSON ({error}); write one with plan.to_json()"
            ) from None
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Any) -> Plan:
        """Read a plan from `to_dict`, graph and all; anything else raises a `PlanError`."""
        found = values.get("format") if isinstance(values, Mapping) else type(values).__name__
        if found in _OLDER_FORMATS:
            raise PlanError(
                f"the plan's format is {found!r}, of an older version, and not '{FORMAT}'; plan the model again and "
                "write it with plan.to_json()"
            )
        if found != FORMAT:
            raise PlanError(
                f"this is not a plan: its format is {found!r}, not '{FORMAT}'; write one with plan.to_json()"
            )
        try:
            return cls._from_values(values)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, EvenstepError) as error:
            reason = " ".join(str(error).split())[:300]
            raise PlanError(
                f"the plan is damaged ({type(error).__name__}: {reason}); make it again and write it with "
                "plan.to_json()"
            ) from None

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> Plan:
        plan = cls(
            parameters=tuple(map(_parameter_of, values["parameters"])),
            rule=values["rule"],
            base=values["base"],
            graph=Graph.from_dict(values["graph"]),
            init=values["init"],
            optimizer=values["optimizer"],
            factors=tuple(Factor(**factor) for factor in values["factors"]),
            vertices=tuple(VertexPlan(**vertex) for vertex in values["vertices"]),
            path_count=values["path_count"],
            sum_cubed_depth=values["sum_cubed_depth"],
            remarks=tuple(values.get("remarks", ())),
        )
        _check_values(plan)
        rate = values["lr_scale"]
        _require(_is_number(rate) and math.isclose(rate, plan.lr_scale), "lr_scale", rate)
        return plan

    def _some(self) -> str:
        return ", ".join(f"'{p.name}'" for p in self.parameters[:3])


def _check_values(plan: Plan) -> None:
    """Raise a ValueError that names the first value of a plan read from text that no plan can hold."""
    _require(isinstance(plan.rule, str), "rule", plan.rule)
    _require(isinstance(plan.init, str), "init", plan.init)
    _require(plan.optimizer in OPTIMIZERS, "optimizer", plan.optimizer)
    _require(plan.base is None or (_is_number(plan.base) and plan.base > 0), "base", plan.base)
    _require(type(plan.path_count) is int and plan.path_count > 0, "path_count", plan.path_count)
    _require(type(plan.sum_cubed_depth) is int and plan.sum_cubed_depth >= 0, "sum_cubed_depth", plan.sum_cubed_depth)
    for factor in (*plan.factors, *(factor for p in plan.parameters for factor in p.factors)):
        _require(isinstance(factor.name, str) and isinstance(factor.why, str), "words of a factor", factor)
    for factor in plan.factors:
        _require(_is_number(factor.value) and factor.value > 0, f"factor '{factor.name}'", factor.value)
    for vertex in plan.vertices:
        _require(isinstance(vertex.name, str), "name of a vertex", vertex.name)
        sizes = _is_number(vertex.second_moment) and vertex.second_moment >= 0 and type(vertex.in_degree) is int
        sizes = sizes and (vertex.measured is None or (_is_number(vertex.measured) and vertex.measured >= 0))
        _require(sizes, f"vertex '{vertex.name}'", (vertex.in_degree, vertex.second_moment, vertex.measured))
    _require(all(isinstance(remark, str) for remark in plan.remarks), "remarks", plan.remarks)
    for p in plan.parameters:
        _require(isinstance(p.name, str), "name of a parameter", p.name)
        _require(p.factors[: len(plan.factors)] == plan.factors, f"factors of '{p.name}'", p.factors)
        _require(
            all(isinstance(text, str) for text in (p.init_reason, p.role, *p.notes)), f"words of '{p.name}'", p.notes
        )
        for factor in p.factors:
            _require(
                _is_number(factor.value) and factor.value > 0, f"factor '{factor.name}' of '{p.name}'", factor.value
            )
        for name in ("std", "lr_scale", "mean"):
            value = getattr(p, name)
            _require(_is_number(value) and (value >= 0 or name == "mean"), f"{name} of '{p.name}'", value)
        _require(isinstance(p.kept, bool), f"kept of '{p.name}'", p.kept)
    planned = [(p.name, p.shape) for p in plan.parameters]
    declared = [(p.name, p.shape) for p in plan.graph.parameters if p.trainable]
    if planned != declared:
        odd = next(pair for pair in zip_longest(planned, declared) if pair[0] != pair[1])
        raise ValueError(f"its parameters are not those of its graph: it has {odd[0]} where the graph has {odd[1]}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(holds: bool, name: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}")


def _listed(parameter: ParameterPlan) -> dict[str, Any]:
    """Return a parameter's plan as plain values: its fields, and what follows from them for those who only read."""
    values = {f.name: getattr(parameter, f.name) for f in fields(parameter)}
    values["factors"] = [asdict(factor) for factor in parameter.factors]
    return {**values, "lr_scale": parameter.lr_scale, "reason": parameter.reason}


def _parameter_of(values: Mapping[str, Any]) -> ParameterPlan:
    """Rebuild a parameter's plan; its rate has to be the one that its factors give."""
    own = {name: value for name, value in values.items() if name not in ("lr_scale", "reason")}
    own |= {"factors": tuple(Factor(**factor) for factor in own["factors"])}
    made = ParameterPlan(**own | {"shape": tuple(own["shape"]), "notes": tuple(own["notes"])})
    rate = values["lr_scale"]
    _require(_is_number(rate) and math.isclose(rate, made.lr_scale), f"lr_scale of '{made.name}'", rate)
    _require(isinstance(values.get("reason", ""), str), f"reason of '{made.name}'", values.get("reason"))
    return made
