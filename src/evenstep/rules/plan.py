"""The plan: an initialisation and a learning rate for every trainable parameter, each with its reason."""

from __future__ import annotations

import gc
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any, Protocol

from evenstep.errors import EvenstepError, InputError, PlanError
from evenstep.graph import Graph, Parameter, dag_cnn_graph, dag_mlp_graph
from evenstep.graph.networks import Norm, Order
from evenstep.rules.baselines import Constant, Mup
from evenstep.rules.initialisation import INITS, Init
from evenstep.rules.network import OPTIMIZERS, Factor, Network, Optimizer, Rule
from evenstep.rules.paths import Paths
from evenstep.rules.roles import Place
from evenstep.rules.weighted import Weighted
from evenstep.rules.width import BaseShape, base_shape, kernel_taps, width_factor

FORMAT = "evenstep-plan/1"
RULES: dict[str, Rule] = {rule.name: rule for rule in (Weighted(), Paths(), Constant(), Mup())}
# Widths of the one-hidden-layer chain that stands behind a bare number: those our measurements were made at.
BASE_WIDTH = {"mlp": 256, "cnn": 64}


class BaseSearch(Protocol):
    """What a plan needs of a search: the rate it found and the graph of the network it searched."""

    @property
    def best(self) -> float:
        """The base's best learning rate."""

    @property
    def graph(self) -> Graph:
        """The base network's graph."""


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """Give one parameter its start and its pace.

    It starts from N(`mean`, `std`^2), or stays as it is where `kept`; its learning rate is `lr_scale` times the
    base's. `reason` says in one line where both come from.
    """

    name: str
    std: float
    lr_scale: float
    reason: str
    mean: float = 0.0
    kept: bool = False
    role: str = "weight"
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class VertexPlan:
    """Report a vertex: live in-degree, and second moment at initialisation relative to the input's."""

    name: str
    in_degree: int
    second_moment: float


@dataclass(frozen=True)
class Plan:
    """Hold every trainable parameter exactly once, the rule that planned it, and the graph it was read from.

    `base` is the base's learning rate, None when the plan holds factors only. `lr_scale` is the factor of the whole
    network (topology and kernel); single parameters add their width factor to it.
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

    @property
    def lr_scale(self) -> float:
        """The factor of the whole network relative to its base."""
        return math.prod(factor.value for factor in self.factors)

    def __getitem__(self, name: str) -> ParameterPlan:
        """Return the plan of one parameter by name."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise PlanError(f"the plan has no parameter '{name}'; it has {len(self.parameters)}, such as {self._some()}")

    def __str__(self) -> str:
        """Return a table: what each parameter got and why."""
        base = "factors only" if self.base is None else f"base learning rate {self.base:g}"
        head = f"Plan by rule '{self.rule}', init '{self.init}', optimizer '{self.optimizer}', {base}"
        width = max((len(p.name) for p in self.parameters), default=4)
        lines = [head, f"{'parameter':<{width}}  {'std':>9}  {'lr_scale':>9}  reason"]
        for p in self.parameters:
            std = "kept" if p.kept else f"{p.std:.4g}"
            lines.append(f"{p.name:<{width}}  {std:>9}  {p.lr_scale:>9.4g}  {p.reason}")
        return "\n".join(lines)

    def param_groups(self, model: Any, *, lr: float | None = None, **options: Any) -> list[dict[str, Any]]:
        """Return ordinary optimiser groups of a torch module: each a real `lr` and a `name`, equal rates merged.

        `lr` is the base's learning rate and overrides the plan's own; further options, such as `weight_decay`, are
        passed on to every group.
        """
        from evenstep.module.apply import param_groups

        return param_groups(model, self, lr=lr, **options)

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
            "parameters": [_listed(parameter) for parameter in self.parameters],
        }
        return {**values, "graph": self.graph.to_dict()} if graph else values

    def to_json(self) -> str:
        """Return the plan as JSON text that `Plan.from_json` reads back to an equal plan."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan written by `to_json`; anything else raises a `PlanError`."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(
                f"this is not a plan: its text is no JSON ({error}); write one with plan.to_json()"
            ) from None
        found = values.get("format") if isinstance(values, dict) else type(values).__name__
        if found != FORMAT:
            raise PlanError(
                f"this is not a plan: its format is {found!r}, not '{FORMAT}'; write one with plan.to_json()"
            )
        try:
            return cls._from_values(values)
        except (KeyError, TypeError, ValueError, AttributeError, EvenstepError) as error:
            raise PlanError(
                f"the plan is damaged ({type(error).__name__}: {error}); make it again and write it with plan.to_json()"
            ) from None

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> Plan:
        plan = cls(
            parameters=tuple(ParameterPlan(**{**p, "shape": tuple(p["shape"])}) for p in values["parameters"]),
            rule=values["rule"],
            base=values["base"],
            graph=Graph.from_dict(values["graph"]),
            init=values["init"],
            optimizer=values["optimizer"],
            factors=tuple(Factor(**factor) for factor in values["factors"]),
            vertices=tuple(VertexPlan(**vertex) for vertex in values["vertices"]),
            path_count=values["path_count"],
            sum_cubed_depth=values["sum_cubed_depth"],
        )
        _check_values(plan)
        return plan

    def _some(self) -> str:
        return ", ".join(f"'{p.name}'" for p in self.parameters[:3])


def plan_graph(
    graph: Graph,
    *,
    rule: str | Rule = "weighted",
    init: Init = "conserve",
    optimizer: Optimizer = "sgd",
    base: BaseSearch | float | None = None,
    base_graph: Graph | None = None,
) -> Plan:
    """Return the plan of a graph, relative to a base.

    `base` is a search, or the learning rate found on `base_graph` (left out: the one-hidden-layer chain of the same
    kind, of `BASE_WIDTH` units and kernel 3), or left out for a plan that holds factors only.
    """
    chosen = _chosen(rule)
    if init not in INITS:
        raise InputError(f"init is '{init}'; choose one of {', '.join(INITS)}")
    if optimizer not in OPTIMIZERS:
        raise InputError(f"optimizer is '{optimizer}'; choose one of {', '.join(OPTIMIZERS)}")
    rate, base_graph = _base(base, base_graph)
    with _collector_paused():
        return _planned(graph, chosen, init, optimizer, rate, base_graph)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Plan without the cycle collector, which would walk a large plan's many objects again and again for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _planned(
    graph: Graph, chosen: Rule, init: Init, optimizer: Optimizer, rate: float | None, base_graph: Graph | None
) -> Plan:
    network = Network(graph, init)
    own_init: Init = "conserve" if init == "keep" and base_graph is None else init
    reference = Network(base_graph or chain_like(graph), own_init)
    factors = chosen.factors(network, reference, optimizer)
    shape = base_shape(reference) if chosen.layerwise else None
    return Plan(
        parameters=_parameters(network, factors, shape, optimizer),
        rule=chosen.name,
        base=rate,
        graph=graph,
        init=init,
        optimizer=optimizer,
        factors=factors,
        vertices=tuple(
            VertexPlan(
                vertex.name,
                network.live.in_degree(vertex.name),
                network.initialisation.signal.vertices[vertex.name].second_moment,
            )
            for vertex in network.live.vertices
        ),
        path_count=network.moments.count,
        sum_cubed_depth=network.moments.m3,
    )


def chain_like(graph: Graph) -> Graph:
    """Return the one-hidden-layer chain of the same kind: layers, order, norm and activation as in `graph`."""
    used = Counter(edge.activation for edge in graph.edges if edge.activation and edge.op != "recurrent")
    common = [name for name, _ in used.most_common() if not name.startswith("softmax")]
    activation = common[0] if common else "relu"
    norm: Norm = "batch" if any(edge.op in ("norm", "rms_norm") for edge in graph.edges) else "none"
    behind = Counter(edge.activation_first for edge in graph.edges if edge.has_weight and edge.activation)
    order: Order = "post" if norm == "none" and behind[False] > behind[True] else "pre"
    if graph.convolutions:
        return dag_cnn_graph("2", width=BASE_WIDTH["cnn"], order=order, norm=norm, activation=activation)
    return dag_mlp_graph("2", width=BASE_WIDTH["mlp"], order=order, norm=norm, activation=activation)


def _chosen(rule: str | Rule) -> Rule:
    if not isinstance(rule, str):
        return rule
    if rule not in RULES:
        raise InputError(f"rule is '{rule}'; choose one of {', '.join(RULES)}")
    return RULES[rule]


def _base(base: BaseSearch | float | None, base_graph: Graph | None) -> tuple[float | None, Graph | None]:
    if base is None:
        return None, base_graph
    if isinstance(base, int | float) and not isinstance(base, bool):
        rate = float(base)
    elif hasattr(base, "best") and hasattr(base, "graph"):
        rate, base_graph = base.best, base_graph or base.graph
    else:
        raise InputError(f"base is {base!r}; give a search's result, a learning rate, or nothing")
    if not math.isfinite(rate) or rate <= 0:
        raise InputError(f"the base learning rate is {rate!r}; give a finite number above 0")
    return rate, base_graph


def _parameters(
    network: Network, factors: tuple[Factor, ...], shape: BaseShape | None, optimizer: Optimizer
) -> tuple[ParameterPlan, ...]:
    """Return the plan of every trainable parameter, in the graph's order."""
    writer = _Writer(network, factors, shape, optimizer)
    return tuple(writer.plan(p) for p in network.graph.parameters if p.trainable)


class _Writer:
    """Write parameter plans; layers of equal shape share their factor, and equal reasons one text."""

    def __init__(
        self, network: Network, factors: tuple[Factor, ...], shape: BaseShape | None, optimizer: Optimizer
    ) -> None:
        self.network, self.shape, self.optimizer = network, shape, optimizer
        self.scale = math.prod(factor.value for factor in factors)
        self.said = " x ".join(_say(factor) for factor in factors)
        self.std, self.why = network.initialisation.std, network.initialisation.why
        self.keep = network.init == "keep"
        self.edges = network.live.edges
        self.roles = network.roles
        self.edges_of = network.roles.edges_of
        self.rates: dict[tuple[float, float, Place], tuple[float, str]] = {}
        self.rate_of_edge: dict[int, tuple[float, str]] = {}
        self.reasons: dict[tuple[str, str, str], str] = {}

    def plan(self, parameter: Parameter) -> ParameterPlan:
        """Return one parameter's plan."""
        name, role = parameter.name, parameter.role
        positions = self.edges_of.get(name)
        mean, std, kept = 0.0, 0.0, False
        if self.keep or role == "raw" or (role == "weight" and name not in self.std):
            std, why, kept = parameter.measured or 0.0, "left as it is", True
        elif role == "weight":
            std, why = self.std[name], self.why[name]
        elif role == "bias":
            why = "starts at 0"
        else:
            mean, why = 1.0, "starts at 1"
        scale, said = self._rate(parameter, positions)
        note = "" if positions or role == "raw" else "on no path from input to output; "
        if parameter.note and parameter.note != "bilinear":
            note += f"{parameter.note}; "
        key = (note, said, why)
        reason = self.reasons.get(key)
        if reason is None:
            reason = self.reasons[key] = f"{note}lr: {said}; init: {why}"
        return ParameterPlan(name, std, scale, reason, mean, kept, role, parameter.shape)

    def _rate(self, parameter: Parameter, positions: tuple[int, ...] | None) -> tuple[float, str]:
        """Return the factor of a parameter's rate: the smallest its uses ask for, where a tied weight has several."""
        if self.shape is None or positions is None or parameter.role not in ("weight", "bias"):
            return self.scale, self.said
        if len(positions) == 1:
            known = self.rate_of_edge.get(positions[0])
            return known or self._rate_on(parameter, positions[0])
        return min((self._rate_on(parameter, position) for position in positions), key=lambda rate: rate[0])

    def _rate_on(self, parameter: Parameter, position: int) -> tuple[float, str]:
        edge = self.edges[position]
        place = self.roles.places.get(position)
        if place is None or self.shape is None:  # no weight on this edge: a norm's gain or bias
            return self.scale, self.said
        weight = parameter
        if parameter.role == "bias":  # a bias goes at its layer's pace
            known = self.roles.parameters
            weight = next((known[name] for name in edge.parameters if known[name].role == "weight"), parameter)
        fans = weight if edge.op == "recurrent" else edge
        taps = kernel_taps(weight)
        key = (fans.fan_in / taps, fans.fan_out / taps, place)
        found = self.rates.get(key)
        if found is None:
            factor = width_factor(*key, self.shape, self.optimizer)
            found = self.rates[key] = (self.scale * factor.value, f"{self.said} x {_say(factor)}")
        if edge.op != "recurrent":  # whose weights differ in what they read
            self.rate_of_edge[position] = found
        return found


def _say(factor: Factor) -> str:
    return f"{factor.name} {factor.value:.4g} ({factor.why})"


def _check_values(plan: Plan) -> None:
    """Raise a ValueError that names the first value of a plan read from text that no plan can hold."""
    _require(isinstance(plan.rule, str), "rule", plan.rule)
    _require(plan.init in INITS, "init", plan.init)
    _require(plan.optimizer in OPTIMIZERS, "optimizer", plan.optimizer)
    _require(plan.base is None or (_is_number(plan.base) and plan.base > 0), "base", plan.base)
    _require(type(plan.path_count) is int and plan.path_count > 0, "path_count", plan.path_count)
    _require(type(plan.sum_cubed_depth) is int and plan.sum_cubed_depth >= 0, "sum_cubed_depth", plan.sum_cubed_depth)
    for factor in plan.factors:
        _require(_is_number(factor.value) and factor.value > 0, f"factor '{factor.name}'", factor.value)
    for vertex in plan.vertices:
        sizes = _is_number(vertex.second_moment) and vertex.second_moment >= 0 and type(vertex.in_degree) is int
        _require(sizes, f"vertex '{vertex.name}'", (vertex.in_degree, vertex.second_moment))
    for p in plan.parameters:
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
    return {f.name: getattr(parameter, f.name) for f in fields(parameter)}
