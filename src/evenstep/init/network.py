"""A network at initialisation: a live graph, how its weights are drawn, and the signal that follows from both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from evenstep.graph import Edge, Graph, Parameter, PathMoments, path_moments
from evenstep.graph.operators import Moments, Norm, Offset, Recurrent, Weight, scaled
from evenstep.graph.residual import Joined, residuals
from evenstep.graph.roles import Roles, roles
from evenstep.graph.simplify import with_gates, with_tables_as_they_are
from evenstep.init.initialisation import Initialisation
from evenstep.init.registry import initialisation
from evenstep.signal import IncomingWeights, Signal, propagate


class InitialWeights(NamedTuple):
    """Hold the standard deviation of each weight, the reason for it, and the signal that follows."""

    std: Mapping[str, float]
    why: Mapping[str, str]
    signal: Signal


@dataclass(frozen=True)
class Network:
    """Hold a graph, of which only live parts count, its initialisation, and what follows from both.

    `multipliers` are a rule's factors of the outputs of weights and gains, by name: they are part of the network, and
    layers after them are sized for the signal that they pass on. `branch_scales` are the initialisation's own.
    `start_scales` are factors of the weights' final standard deviations. Every property is computed once, on first use.
    """

    graph: Graph
    init: Initialisation
    multipliers: Mapping[str, float] = field(default_factory=dict, hash=False)
    start_scales: Mapping[str, float] = field(default_factory=dict, hash=False)
    with_gates: Graph | None = None  # what the graph was before its gates were opened; None if it is as it was

    @classmethod
    def of(cls, graph: Graph, init: str | Initialisation = "conserve") -> Network:
        """Return a graph with an initialisation given by name or as a value."""
        return cls(graph, initialisation(init))

    @cached_property
    def live(self) -> Graph:
        """The graph with its gates as they start and without dead parts."""
        kept = {p.name for p in self.graph.parameters if p.role == "unscaled" and (self.init.keeps or not p.trainable)}
        live = with_tables_as_they_are(with_gates(self.graph, lambda gate: gate.started).live(), kept)
        return _with_scaled_gains(live, self.scales)

    @cached_property
    def branch_scales(self) -> Mapping[str, float]:
        """The initialisation's factors of what residual branches end in, by the names of weights, biases and gains.

        One with several uses takes the smallest. Uses of one weight add up in amplitude, so each counts as one more
        addition for every other. Branches that no skip passes by are left out.
        """
        graph = (self.with_gates or self.graph).live()
        taking = {p.name for p in graph.parameters if p.trainable and p.role in ("weight", "bias", "gain")}
        joined: dict[str, list[Joined]] = {}
        for edge_index, one in residuals(graph).ends.items():
            for name in graph.edges[edge_index].parameters if one.carried is not None else ():
                if name in taking:
                    joined.setdefault(name, []).append(one)
        return {
            name: min(self.init.branch_scale(replace(one, additions=one.additions * len(uses))) for one in uses)
            for name, uses in joined.items()
        }

    @cached_property
    def scales(self) -> Mapping[str, float]:
        """The factors of the outputs of weights and gains: the initialisation's, times the rule's."""
        both = self.branch_scales.keys() | self.multipliers.keys()
        return {name: self.branch_scales.get(name, 1.0) * self.multipliers.get(name, 1.0) for name in both}

    @cached_property
    def opened(self) -> Network:
        """The network with all gates open, for which weights are drawn; itself if it has no gates."""
        opened = with_gates(self.graph, lambda gate: gate.opened)
        return self if opened is self.graph else replace(self, graph=opened, with_gates=self.graph)

    @cached_property
    def roles(self) -> Roles:
        """The position of every weight."""
        return roles(self.live)

    @cached_property
    def weights(self) -> InitialWeights:
        """The weights' standard deviations and the signal that follows."""
        if self.opened is self:
            return _scaled(self, _initialise(self))
        std, why, _ = self.opened.weights
        return InitialWeights(std, why, _signal_of(self, std))

    @cached_property
    def tables(self) -> Mapping[str, float]:
        """The standard deviations of tables that would start larger than the signal and are drawn as large as it."""
        signal, stds = self.opened.signal, dict[str, float]()
        for edge_index, edge in enumerate(self.opened.live.edges):
            given = signal.vertices[edge.source].moments
            for operator in edge.operators:
                if isinstance(operator, Weight | Recurrent) and edge_index in signal.weight_sizes:
                    given = Moments(0.0, signal.weight_sizes[edge_index] * signal.reads[edge_index])
                elif isinstance(operator, Offset) and operator.table:
                    std = operator.std_beside(given)
                    if std < operator.std:
                        stds[operator.table] = min(std, stds.get(operator.table, std))
                    given = operator.moments(given)
                else:
                    given = operator.moments(given)
        return stds

    @cached_property
    def readout_fan_in(self) -> float | None:
        """The geometric mean of the readouts' fan_in; None if there are no readouts."""
        weights = [self.live.edges[head.edge_index].weight for head in self.roles.heads if head.edge_index is not None]
        logs = [math.log(weight.fan_in) for weight in weights if weight is not None]
        return math.exp(sum(logs) / len(logs)) if logs else None

    @property
    def signal(self) -> Signal:
        """The signal at every vertex."""
        return self.weights.signal

    @cached_property
    def path_moments(self) -> PathMoments:
        """Exact path moments."""
        return path_moments(self.live)


def _with_scaled_gains(graph: Graph, scales: Mapping[str, float]) -> Graph:
    """Return the graph with a factor after every norm whose gains do not start at one."""
    gains = {p.name: scales[p.name] for p in graph.parameters if p.role == "gain" and p.name in scales}
    if not gains:
        return graph

    def scaled_edge(edge: Edge) -> Edge:
        factor = next((gains[name] for name in edge.parameters if name in gains), 1.0)
        last = max((place for place, operator in enumerate(edge.operators) if isinstance(operator, Norm)), default=None)
        if last is None:
            return edge
        return replace(edge, operators=(*edge.operators[: last + 1], *scaled(factor), *edge.operators[last + 1 :]))

    return replace(graph, edges=tuple(map(scaled_edge, graph.edges)))


def _initialise(network: Network) -> InitialWeights:
    """Return the weights' standard deviations and the resulting signal.

    A weight used on several edges gets one of the standard deviations that its uses need, and the signal is then
    propagated again. Frozen weights keep the size they were traced with.
    """
    graph, use = network.live, network.roles
    sizing = _InitialSizes(network)
    signal = propagate(graph, sizing)
    std: dict[str, float] = {}
    why: dict[str, str] = {}
    conflicting_uses = False
    for parameter in graph.parameters:
        if parameter.role != "weight":
            continue
        name = parameter.name
        # Edges where a weight is added or multiplied do not matter for its size.
        edge_indices = [edge_index for edge_index in use.edges_of.get(name, ()) if edge_index in signal.weight_sizes]
        if not edge_indices:
            continue
        if len(edge_indices) == 1:
            (edge_index,) = edge_indices
            std[name], why[name] = (
                _std(graph.edges[edge_index], parameter, signal.weight_sizes[edge_index]),
                sizing.why[edge_index],
            )
            continue
        wanted = {
            edge_index: _std(graph.edges[edge_index], parameter, signal.weight_sizes[edge_index])
            for edge_index in edge_indices
        }
        chosen = network.init.choose_tied_use(wanted)
        std[name] = wanted[chosen]
        which = "smallest" if std[name] == min(wanted.values()) else "largest"
        why[name] = f"{sizing.why[chosen]} (tied: the {which} that its {len(edge_indices)} uses need)"
        conflicting_uses |= any(not math.isclose(value, std[name]) for value in wanted.values())
    if conflicting_uses:
        if not network.init.undoes_growth:
            return InitialWeights(std, why, _signal_of(network, std))
        keeping = _KeptProportions(network, std, sizing)
        signal = propagate(graph, keeping)
        std |= keeping.std
    return InitialWeights(std, why, signal)


def _signal_of(network: Network, std: Mapping[str, float]) -> Signal:
    """Return the signal for given standard deviations of all weights."""
    return propagate(network.live, lambda incoming: [_size_given(edge, std, network.roles) for edge in incoming.edges])


def _scaled(network: Network, weights: InitialWeights) -> InitialWeights:
    """Return weights times the network's `start_scales`, and the signal that follows."""
    if not network.start_scales:
        return weights
    std = {name: value * network.start_scales.get(name, 1.0) for name, value in weights.std.items()}
    return InitialWeights(std, weights.why, _signal_of(network, std))


class _KeptProportions:
    """Size weights again after tied ones got another size than a use needs, so that sums keep their proportions.

    A table that is also the readout makes a small stream; branches that join the stream have to be as small, or they
    drown it. Weights that meet no skip keep the variance of their outputs, and tied weights keep their size.
    """

    def __init__(self, network: Network, std: Mapping[str, float], first: _InitialSizes) -> None:
        self.use, self.first = network.roles, first
        self.settled = {
            name: value for name, value in std.items() if len(self.use.edges_of[name]) > 1 or name in first.kept
        }
        self.std: dict[str, float] = {}

    def __call__(self, incoming: IncomingWeights) -> list[float]:
        sizes = []
        carried = incoming.other_moments.second_moment
        for edge, edge_index, read in zip(incoming.edges, incoming.edge_indices, incoming.reads, strict=True):
            assert edge.weight is not None
            parameters = [self.use.parameters[name] for name in edge.parameters]
            weights = [parameter for parameter in parameters if parameter.role == "weight"]
            if weights[0].name in self.settled:
                sizes.append(edge.weight.fan_in * self.settled[weights[0].name] ** 2)
                continue
            before = self.first.given[edge_index]
            grown = carried / before.carried if before.carried > 0 and carried > 0 else 1.0
            variance = before.size * before.read * grown
            sizes.append(variance / read if read > 0 and variance > 0 else before.size)
            self.std |= {parameter.name: _std(edge, parameter, sizes[-1]) for parameter in weights}
        return sizes


def _std(edge: Edge, parameter: Parameter, size: float) -> float:
    """Return the standard deviation for a value of fan_in * var(W); in recurrent blocks each matrix has its fan_in."""
    assert edge.weight is not None
    return math.sqrt(size / (parameter.fan_in if isinstance(edge.weight, Recurrent) else edge.weight.fan_in))


def _size_given(edge: Edge, std: Mapping[str, float], use: Roles) -> float:
    """Return fan_in * var(W) of an edge, given all standard deviations."""
    assert edge.weight is not None
    name = next(name for name in edge.parameters if use.parameters[name].role == "weight")
    return edge.weight.fan_in * std[name] ** 2


class _Given(NamedTuple):
    """Hold the fan_in * var(W) that a weight was given, the second moment it read, and that of its vertex's skips."""

    size: float
    read: float
    carried: float


def branch_words(scale: float) -> str:
    """Say by what a residual branch is multiplied; '' if it is not."""
    return "" if scale == 1.0 else f", x {scale:.4g} on its residual branch"


def _of_edge(factors: Mapping[str, float], edge: Edge) -> float:
    """Return the factor of an edge's weight; one if it has none."""
    return next((factors[name] for name in edge.parameters if factors.get(name, 1.0) != 1.0), 1.0)


class _InitialSizes:
    """Size weights by an initialisation, and record the reason for each edge index."""

    def __init__(self, network: Network) -> None:
        self.graph, self.init = network.live, network.init
        self.heads = {head.edge_index: head for head in network.roles.heads if head.edge_index is not None}
        self.kept = {
            name: parameter
            for name, parameter in network.roles.parameters.items()
            if parameter.role == "weight" and (self.init.keeps or not parameter.trainable)
        }
        self.scales, self.branch_scales = network.scales, network.branch_scales
        self.why: dict[int, str] = {}
        self.given: dict[int, _Given] = {}

    def __call__(self, incoming: IncomingWeights) -> list[float]:
        sizes, why = self.init.size_hidden(self.graph, incoming)
        if self.kept or not self.heads.keys().isdisjoint(incoming.edge_indices):
            for i, (edge, edge_index) in enumerate(zip(incoming.edges, incoming.edge_indices, strict=True)):
                if edge_index in self.heads:
                    head = self.heads[edge_index]
                    at = incoming.upstream[head.vertex]
                    sizes[i], why[i] = self.init.size_readout(self.graph, head, edge, incoming.reads[i], at)
                if kept := [self.kept[name] for name in edge.parameters if name in self.kept]:
                    sizes[i], why[i] = self.init.size_kept(edge, kept[0])
        if self.scales:
            sizes = [size * _of_edge(self.scales, edge) ** 2 for size, edge in zip(sizes, incoming.edges, strict=True)]
            why = [
                words + branch_words(_of_edge(self.branch_scales, e))
                for words, e in zip(why, incoming.edges, strict=True)
            ]
        self.why.update(zip(incoming.edge_indices, why, strict=True))
        carried = incoming.other_moments.second_moment
        for edge_index, size, read in zip(incoming.edge_indices, sizes, incoming.reads, strict=True):
            self.given[edge_index] = _Given(size, read, carried)
        return sizes
