"""Which sums are residual additions, where their branches end, and how deep a network is.

A *residual addition* is the sum of a carried signal (a skip, possibly with pools or fixed factors) and of branches,
which weights made from that signal. If every summand has a weight of its own, as with a convolution on the shortcut,
the summands with the fewest weights between the input and the sum are carried, and the others are branches.

A branch *ends* in the last weights, or the last gains of a norm, before its sum: a factor of the branch can be folded
into them. On its way back from the sum the factor passes operators that commute with it: skips, averages, dropout,
ReLUs. It cannot pass other activations, a norm without gains, or a signal that is also read elsewhere.

A *stream* is a signal that is carried from one residual addition to the next. Its *additions* are counted along the
longest path, which enters a sum by what is carried there, never by a branch. Additions inside a branch make a stream of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import NamedTuple

from evenstep.graph.functions import HOMOGENEOUS
from evenstep.graph.model import Edge, Graph, Parameter, vertices_whose_paths_meet
from evenstep.graph.operators import (
    Activation,
    Average,
    ConcatBlock,
    Contraction,
    Dropout,
    Gate,
    Maximum,
    Norm,
    Operator,
    Padding,
    Recurrent,
    RunningSum,
    Scale,
    Slice,
)
from evenstep.graph.roles import LayerPosition

_LINEAR = (Scale, Gate, Average, ConcatBlock, Contraction, Dropout, Maximum, Padding, RunningSum, Slice)


@dataclass(frozen=True)
class Joined:
    """Say how a branch joins its stream, which has so many `additions`.

    `carried` is the amplitude with which skips carry the stream past the branch, None if a weight does. `scale` is the
    product of the factors, trained ones as they start, between the branch's end and its sum; at most 1. `share` is the
    part of a unit signal that the sum gives the branch: its part by number if it ends there in a weight, else all.
    """

    additions: int
    carried: float | None
    scale: float = 1.0
    share: float = 1.0


@dataclass(frozen=True)
class Residuals:
    """Hold a live graph's residual additions, and the edges of their branches by index in `graph.edges`.

    `ends` are the edges whose weights or gains can take a factor of their branch, with how that joins its stream;
    `inside` are all edges on branches, from which the output is reached only through a branch. `blocked` gives, for
    sums with a branch that has no end, why.
    """

    sums: tuple[str, ...]
    ends: Mapping[int, Joined]
    inside: frozenset[int]
    blocked: Mapping[str, str]


def residuals(graph: Graph) -> Residuals:
    """Return the residual additions of a live graph.

    >>> graph = Graph.from_edges([("x", "a", "weight"), ("a", "b", "weight"), ("a", "b", "skip"), ("b", "y", "weight")])
    >>> branches = residuals(graph)
    >>> branches.sums, sorted(branches.ends)
    (('b',), [1])
    """
    walk = _Walk(graph)
    sums = {vertex.name: found for vertex in graph.vertices if (found := walk.sum_at(vertex.name)).branches}
    branches = frozenset(edge_index for found in sums.values() for edge_index in found.branches)
    numbers = {id(edge): edge_index for edge_index, edge in enumerate(graph.edges)}
    additions = _additions(graph, sums.keys(), lambda edge: numbers[id(edge)] in branches)
    ends: dict[int, Joined] = {}
    blocked: dict[str, str] = {}
    for name, found in sums.items():
        for branch, end in found.branches.items():
            for edge_index, scale in end.edges.items():
                share = 1.0 / graph.in_degree(name) if edge_index == branch and graph.edges[branch].weight else 1.0
                ends[edge_index] = Joined(additions[name], found.carried, min(scale, 1.0), share)
            if end.blocked:
                blocked[name] = end.blocked
    within = vertices_whose_paths_meet(graph, lambda edge: numbers[id(edge)] in branches, forward=True, every=True)
    inside = branches | {edge_index for edge_index, edge in enumerate(graph.edges) if edge.target in within}
    return Residuals(tuple(sums), ends, inside, blocked)


def _additions(graph: Graph, sums: Collection[str], is_branch: Callable[[Edge], bool]) -> dict[str, int]:
    """Return, for every sum, the number of sums on the longest path through it that neither enters nor ends a branch.

    A vertex is as many branches deep as the shortest way to an output ends; a branch is entered where this grows.
    """
    names = [vertex.name for vertex in graph.vertices]
    deep: dict[str, int] = {}
    for name in reversed(names):
        ways = [deep[edge.target] + is_branch(edge) for edge in graph.outgoing[name]]
        deep[name] = 0 if name in graph.outputs else min(ways, default=0)

    def longest(
        names: Iterable[str], edges_of: Mapping[str, Sequence[Edge]], far: Callable[[Edge], str]
    ) -> dict[str, int]:
        lengths: dict[str, int] = {}
        for name in names:
            along = (
                e for e in edges_of[name] if not e.steers and not is_branch(e) and deep[e.source] >= deep[e.target]
            )
            lengths[name] = max((lengths[far(edge)] for edge in along), default=0) + (name in sums)
        return lengths

    before = longest(names, graph.incoming, lambda edge: edge.source)
    after = longest(reversed(names), graph.outgoing, lambda edge: edge.target)
    return {name: before[name] + after[name] - 1 for name in sums}


def hidden_depth(graph: Graph, positions: Mapping[int, LayerPosition]) -> int:
    """Return the largest number of hidden weights on one path."""
    before = dict.fromkeys((vertex.name for vertex in graph.vertices), 0)
    for edge_index, edge in _in_order(graph):
        here = before[edge.source] + (positions.get(edge_index) == "hidden")
        before[edge.target] = max(before[edge.target], here)
    return max(before.values())


def shortest_depth(graph: Graph, sums: Iterable[str]) -> int:
    """Return the length of the shortest path to an output: its weights plus the `sums` that it passes."""
    before = _fewest_weights(graph, frozenset(sums))
    return min(before[name] for name in graph.outputs)


@dataclass(frozen=True)
class _End:
    """Hold where a summand comes from: the edges that it ends in, why it has none, or where it is carried from.

    For each of the edges it holds the product of the factors on the way from there, trained ones as they start;
    `amplitude` is that from where it is carried.
    """

    edges: Mapping[int, float] = field(default_factory=dict)
    blocked: str = ""
    carried: str = ""
    amplitude: float = 1.0

    def scaled(self, factor: float) -> _End:
        """Return the end, seen from after a factor."""
        edges = {edge_index: scale * factor for edge_index, scale in self.edges.items()}
        return replace(self, edges=edges, amplitude=self.amplitude * factor)


class _Sum(NamedTuple):
    """Hold the branches that a vertex adds, by incoming edge; none if it adds none. `carried` is as in `Joined`."""

    branches: Mapping[int, _End]
    carried: float | None


class _Walk:
    """Walk back from sums."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.parameters = {parameter.name: parameter for parameter in graph.parameters}
        self.numbers = {id(edge): edge_index for edge_index, edge in enumerate(graph.edges)}
        self.places = {vertex.name: place for place, vertex in enumerate(graph.vertices)}
        self.fewest = _fewest_weights(graph, frozenset())
        self.upstream: dict[str, int] = {}  # the vertices from which each vertex is reached, as bits
        for vertex in graph.vertices:
            bits = 1 << self.places[vertex.name]
            for edge in graph.incoming[vertex.name]:
                bits |= self.upstream[edge.source]
            self.upstream[vertex.name] = bits

    def sum_at(self, vertex: str) -> _Sum:
        """Return the branches that a vertex adds, and where they end."""
        incoming = [edge for edge in self.graph.incoming[vertex] if not edge.steers]
        if self.graph.merge[vertex] != "sum" or len(incoming) < 2:
            return _Sum({}, None)
        ends = [self.end_of(edge) for edge in incoming]
        origins = [end.carried for end in ends if end.carried]
        if origins:
            reached = [
                not end.carried and any(self._reaches(origin, edge.source) for origin in origins)
                for edge, end in zip(incoming, ends, strict=True)
            ]
        else:
            counts = [self.fewest[edge.source] + (edge.weight is not None) for edge in incoming]
            common = -1
            for edge in incoming:
                common &= self.upstream[edge.source]
            reached = [common != 0 and count > min(counts) for count in counts]
        branches = {
            self.numbers[id(edge)]: end for edge, end, is_one in zip(incoming, ends, reached, strict=True) if is_one
        }
        carried = math.hypot(*(end.amplitude for end in ends if end.carried)) if origins else None
        return _Sum(branches, carried)

    def end_of(self, edge: Edge) -> _End:
        """Return where the summand that an edge brings ends."""
        edge_index = self.numbers[id(edge)]
        if edge.weight is not None:
            if isinstance(edge.weight, Recurrent):
                return _End(blocked="a recurrent block, whose size no weight sets")
            return self._ending(edge_index, edge, edge.after, "weight")
        norms = [place for place, operator in enumerate(edge.operators) if isinstance(operator, Norm)]
        if norms:
            return self._ending(edge_index, edge, edge.operators[norms[-1] + 1 :], "gain")
        before = self._end_at(edge.source)
        stop = _stop(edge.operators)
        if stop and not before.carried:
            return _End(blocked=stop)
        factor = _factor(edge.operators, Scale | Gate)
        return before.scaled(factor * self._factor_since_sum(before.carried) if before.carried else factor)

    def _factor_since_sum(self, vertex: str) -> float:
        """Return the product of the factors between a carried signal and the last vertex where signals join or end."""
        factor = 1.0
        while len(incoming := self.graph.incoming[vertex]) == 1 and self.graph.merge[vertex] == "sum":
            (edge,) = incoming
            if edge.weight is not None or _stop(edge.operators):
                break
            factor *= _factor(edge.operators, Scale | Gate)
            vertex = edge.source
        return factor

    def _end_at(self, vertex: str, *, met: str = "") -> _End:
        """Return where a vertex's signal ends; `met` is a product at which all that read it meet again."""
        incoming = [edge for edge in self.graph.incoming[vertex] if not edge.steers]
        alone = bool(met) or (len(self.graph.outgoing[vertex]) == 1 and vertex not in self.graph.outputs)
        if not alone or not incoming:
            return _End(carried=vertex)
        ends = [self.end_of(edge) for edge in incoming]
        if self.graph.merge[vertex] == "product":  # one of its factors takes the branch's factor
            gated = (self._end_of_gated(edge, vertex) for edge in incoming)
            return next((end for end in (*ends, *gated) if end and end.edges), _End(carried=vertex))
        if any(end.carried for end in ends):
            return ends[0] if len(ends) == 1 else _End(carried=vertex)
        stop = next((end.blocked for end in ends if end.blocked), "")
        return _End(blocked=stop) if stop else _End({i: scale for end in ends for i, scale in end.edges.items()})

    def _end_of_gated(self, edge: Edge, product: str) -> _End | None:
        """Return where a factor ends whose signal also sets the other factor, as in squeeze and excitation.

        A factor of the branch changes that other factor too, so that it is only roughly one of the product.
        """
        edges = [edge]
        while len(self.graph.outgoing[edges[-1].source]) == 1 and len(self.graph.incoming[edges[-1].source]) == 1:
            edges.append(self.graph.incoming[edges[-1].source][0])
        if any(one.weight is not None or _stop(one.operators) for one in edges):
            return None
        vertex = edges[-1].source
        if len(self.graph.outgoing[vertex]) < 2 or not self._all_meet(vertex, product):
            return None
        end = self._end_at(vertex, met=product)
        return replace(end, blocked="a signal that sets its own factor") if end.edges else None

    def _all_meet(self, vertex: str, product: str) -> bool:
        """Say whether all that reads a vertex goes on to one product, and nowhere else."""
        open_, seen = [vertex], {vertex}
        while open_:
            name = open_.pop()
            if name in self.graph.outputs or not self._reaches(name, product):
                return False
            targets = {edge.target for edge in self.graph.outgoing[name]} - {product} - seen
            seen |= targets
            open_ += targets
        return True

    def _ending(self, edge_index: int, edge: Edge, after: tuple[Operator, ...], role: str) -> _End:
        held: list[Parameter] = [self.parameters[name] for name in edge.parameters]
        takes = [parameter for parameter in held if parameter.role == role]
        if edge.parameters and not takes:
            return _End(blocked=f"a {'norm' if role == 'gain' else 'weight'} that has no {role} of its own")
        if not edge.parameters and role == "gain":
            return _End(blocked="a norm without gains")
        norm = role == "gain"
        if fixed := [parameter.name for parameter in takes if not parameter.trainable]:
            return _End(blocked=f"'{fixed[0]}', which is frozen")
        stop = _stop(after)
        # A weight is drawn such that fixed factors after it leave its vertex as large as it should be.
        return _End(blocked=stop) if stop else _End({edge_index: _factor(after, Scale | Gate if norm else Gate)})

    def _reaches(self, origin: str, vertex: str) -> bool:
        return bool(self.upstream[vertex] >> self.places[origin] & 1)


def _stop(operators: Iterable[Operator]) -> str:
    """Return the name of the first operator that a factor does not commute with; '' if there is none."""
    for operator in operators:
        if isinstance(operator, Activation):
            if operator.name.partition(":")[0] not in HOMOGENEOUS:
                return operator.words()
        elif not isinstance(operator, _LINEAR):
            return operator.words()
    return ""


def _factor(operators: Sequence[Operator], kinds: UnionType | type) -> float:
    """Return the product of the factors of these kinds among operators, trained ones as they start."""
    factors = (operator.started if isinstance(operator, Gate) else operator for operator in operators)
    counted = zip(operators, factors, strict=True)
    return math.prod(abs(factor.copy_amplitude()) for operator, factor in counted if isinstance(operator, kinds))


def _fewest_weights(graph: Graph, sums: frozenset[str]) -> dict[str, int]:
    """Return the smallest number of weights and `sums` on a path from an input to each vertex."""
    fewest: dict[str, int] = {}
    for vertex in graph.vertices:
        ways = [
            fewest[edge.source] + (edge.weight is not None)
            for edge in graph.incoming[vertex.name]
            if not edge.steers and edge.source in fewest
        ]
        if vertex.name in graph.inputs:
            ways.append(0)
        fewest[vertex.name] = min(ways, default=0) + (vertex.name in sums)
    return fewest


def _in_order(graph: Graph) -> list[tuple[int, Edge]]:
    """Return all edges with their index, incoming edges of a vertex before its outgoing ones."""
    places = {vertex.name: place for place, vertex in enumerate(graph.vertices)}
    return sorted(enumerate(graph.edges), key=lambda pair: places[pair[1].source])
