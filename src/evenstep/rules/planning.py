"""From a graph to its plan: the chosen rule's factors, the base they relate to, and every parameter's line."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Protocol

from evenstep.errors import InputError
from evenstep.graph import Graph, Parameter, dag_cnn_graph, dag_mlp_graph
from evenstep.graph.networks import Norm, Order
from evenstep.rules.baselines import Constant, Mup
from evenstep.rules.initialisation import INITS, Init
from evenstep.rules.network import FASTEST_READOUT, OPTIMIZERS, Factor, Network, Optimizer, Rule
from evenstep.rules.paths import Paths
from evenstep.rules.plan import ParameterPlan, Plan, VertexPlan, said_of
from evenstep.rules.roles import Place
from evenstep.rules.weighted import Weighted
from evenstep.rules.width import groups, hidden_width, kernel_taps, width_factor

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


def plan_graph(
    graph: Graph,
    *,
    rule: str | Rule = "weighted",
    init: Init = "conserve",
    optimizer: Optimizer | None = None,
    base: BaseSearch | float | None = None,
    base_graph: Graph | None = None,
) -> Plan:
    """Return the plan of a graph, relative to a base.

    `base` is a search (its `estimate` counts, else its `best`), or the learning rate found on `base_graph` (left out:
    the one-hidden-layer chain of the same kind, of `BASE_WIDTH` units and kernel 3), or left out for a plan that holds
    factors only. `optimizer`, left out, is the one the base was searched for, or `sgd`.
    """
    chosen = _chosen(rule)
    if init not in INITS:
        raise InputError(f"init is '{init}'; choose one of {', '.join(INITS)}")
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise InputError(f"optimizer is '{optimizer}'; choose one of {', '.join(OPTIMIZERS)}")
    _require_graph("graph", graph)
    rate, base_graph = _base(base, base_graph)
    if base_graph is not None:
        _require_graph("base_graph", base_graph)
    _require_like(base, chosen)
    _require_trainable(graph)
    kind = _optimizer(base, optimizer)
    with _collector_paused():
        return _planned(graph, chosen, init, kind, rate, base_graph)


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
    width = hidden_width(reference) if chosen.layerwise else None
    return Plan(
        parameters=_parameters(network, factors, width, optimizer),
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
    graph = graph.live()
    # Only what counts as depth: the squares and roots of a norm written out are no activations of the network.
    used = Counter(edge.activation for edge in graph.edges if edge.activation and edge.depth and edge.op != "recurrent")
    common = [name for name, _ in used.most_common() if not name.startswith("softmax")]
    activation = common[0] if common else "relu"
    norms = [edge for edge in graph.edges if edge.normalises]
    norm: Norm = "none" if not norms else "batch" if any(edge.over_batch for edge in norms) else "layer"
    behind = Counter(edge.activation_first for edge in graph.edges if edge.has_weight and edge.activation)
    order: Order = "post" if norm == "none" and behind[False] > behind[True] else "pre"
    if graph.convolutions:
        return dag_cnn_graph("2", width=BASE_WIDTH["cnn"], order=order, norm=norm, activation=activation)
    return dag_mlp_graph("2", width=BASE_WIDTH["mlp"], order=order, norm=norm, activation=activation)


def _chosen(rule: str | Rule) -> Rule:
    if not isinstance(rule, str) and hasattr(rule, "factors"):
        return rule
    if not isinstance(rule, str) or rule not in RULES:
        raise InputError(f"rule is '{rule}'; choose one of {', '.join(RULES)}")
    return RULES[rule]


def _require_like(base: BaseSearch | float | None, rule: Rule) -> None:
    """Refuse a base whose layers trained at rates by width for a rule of one rate, and the other way round."""
    searched = RULES.get(getattr(base, "rule", None) or "")
    if searched is None or searched.layerwise == rule.layerwise:
        return
    ways = {True: "rates that differ by layer width", False: "one rate for all layers"}
    raise InputError(
        f"the base was searched with {ways[searched.layerwise]}, and rule '{rule.name}' plans {ways[rule.layerwise]}; "
        f"search the base with plan=evenstep.plan(make_model(), example_inputs, rule='{rule.name}')"
    )


def _optimizer(base: BaseSearch | float | None, asked: Optimizer | None) -> Optimizer:
    """Return the optimiser a plan is for: the one asked for, which has to be the base's where that is known."""
    searched: Optimizer | None = getattr(base, "optimizer", None)
    if asked and searched and asked != searched:
        raise InputError(
            f"the base was searched for optimizer '{searched}', and the plan is for '{asked}', whose rates are of "
            f"another size; search the base with optimizer='{asked}'"
        )
    return asked or searched or "sgd"


def _require_graph(name: str, graph: object) -> None:
    if not isinstance(graph, Graph):
        raise InputError(
            f"{name} is {type(graph).__name__}; give a Graph, which evenstep.trace(model, example_inputs) reads from a "
            "module"
        )


def _require_trainable(graph: Graph) -> None:
    """Refuse a network without anything to train; weights that name no parameters stand for ones that are."""
    if any(p.trainable for p in graph.parameters) or any(e.has_weight and not e.parameters for e in graph.edges):
        return
    if graph.parameters:
        raise InputError(
            f"there is nothing to plan: '{graph.parameters[0].name}' and all else the network holds is fixed; call "
            "requires_grad_() on what is to be trained before the plan"
        )
    raise InputError("there is nothing to plan: the network has no parameters; give one that has")


def _base(base: BaseSearch | float | None, base_graph: Graph | None) -> tuple[float | None, Graph | None]:
    if base is None:
        return None, base_graph
    if isinstance(base, Real) and not isinstance(base, bool):  # numpy's numbers too
        rate = float(base)
    elif hasattr(base, "best") and hasattr(base, "graph"):
        # The steady minimum transfers better than the largest rate that is as good, where the search knows both.
        rate, base_graph = getattr(base, "estimate", None) or base.best, base_graph or base.graph
    else:
        raise InputError(f"base is {base!r}; give a search's result, a learning rate, or nothing")
    if not math.isfinite(rate) or rate <= 0:
        raise InputError(f"the base learning rate is {rate!r}; give a finite number above 0")
    return rate, base_graph


def _parameters(
    network: Network, factors: tuple[Factor, ...], width: float | None, optimizer: Optimizer
) -> tuple[ParameterPlan, ...]:
    """Return the plan of every trainable parameter, in the graph's order."""
    writer = _Writer(network, factors, width, optimizer)
    return tuple(writer.plan(p) for p in network.graph.parameters if p.trainable)


class _Writer:
    """Write parameter plans; layers of equal shape share their factor, and equal reasons one text."""

    def __init__(
        self, network: Network, factors: tuple[Factor, ...], width: float | None, optimizer: Optimizer
    ) -> None:
        self.network, self.width, self.optimizer = network, width, optimizer
        self.scale = math.prod(factor.value for factor in factors)
        self.said = said_of(factors)
        self.std, self.why = network.initialisation.std, network.initialisation.why
        self.keep = network.init == "keep"
        self.edges = network.live.edges
        self.roles = network.roles
        self.edges_of = network.roles.edges_of
        self.rates: dict[tuple[float, float, Place, float], tuple[float, str]] = {}
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
        if parameter.note:
            note += f"{parameter.note}; "
        key = (note, said, why)
        reason = self.reasons.get(key)
        if reason is None:
            reason = self.reasons[key] = f"{note}lr: {said}; init: {why}"
        return ParameterPlan(name, std, scale, reason, mean, kept, role, parameter.shape)

    def _rate(self, parameter: Parameter, positions: tuple[int, ...] | None) -> tuple[float, str]:
        """Return the factor of a parameter's rate: the smallest its uses ask for, where a tied weight has several."""
        if self.width is None or positions is None or parameter.role not in ("weight", "bias"):
            return self.scale, self.said
        if len(positions) == 1:
            known = self.rate_of_edge.get(positions[0])
            return known or self._rate_on(parameter, positions[0])
        return min((self._rate_on(parameter, position) for position in positions), key=lambda rate: rate[0])

    def _rate_on(self, parameter: Parameter, position: int) -> tuple[float, str]:
        edge = self.edges[position]
        place = self.roles.places.get(position)
        if place is None or self.width is None:  # no weight on this edge: a norm's gain or bias
            return self.scale, self.said
        weight = parameter
        if parameter.role == "bias":  # a bias goes at its layer's pace
            known = self.roles.parameters
            weight = next((known[name] for name in edge.parameters if known[name].role == "weight"), parameter)
        fans = weight if edge.op == "recurrent" else edge
        taps = kernel_taps(weight)
        key = (fans.fan_in / taps, fans.fan_out / taps, place, groups(weight))
        found = self.rates.get(key)
        if found is None:
            factor = width_factor(*key[:3], self.width, self.optimizer, groups=key[3])
            found = self.rates[key] = (self.scale * factor.value, f"{self.said} x {said_of((factor,))}")
        for factor in self._of_what_is_read(position, found[0] / self.scale):
            found = found[0] * factor.value, f"{found[1]} x {said_of((factor,))}"
        if edge.op != "recurrent":  # whose weights differ in what they read
            self.rate_of_edge[position] = found
        return found

    def _of_what_is_read(self, position: int, by_width: float) -> Iterator[Factor]:
        """Yield a layer's factors for what it reads: a field that grew before a norm, averages before a readout."""
        power = 0.5 if self.optimizer == "adam" else 1.0  # Adam's step does not grow with the gradient
        if times := self.network.overreach.get(position):
            yield Factor("read", times**-power, f"a field grown {times:.4g}-fold")
        if left := self.network.dimmed.get(position):
            faster, most = left**-power, max(1.0, FASTEST_READOUT / by_width)
            limit = f", rate {FASTEST_READOUT:g} at most" if faster > most else ""
            yield Factor("average", min(faster, most), f"leaves {left:.4g}{limit}")
