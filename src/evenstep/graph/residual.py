"""Which sums are residual additions, where their branches end, and how deep a network is.

A *residual addition* is the sum of a carried signal (a skip, possibly with pools or fixed factors) and of branches,
which weights made from that signal. If every summand has a weight of its own, as with a convolution on the shortcut,
the summands with the fewest weights between the input and the sum are carried, and the others are branches.

A branch *ends* in the last weights, or the last gains of a norm, before its sum: a factor of the branch can be folded
into them. On its way back from the sum the factor passes operators that commute with it: skips, averages, dropout,
ReLUs. It cannot pass other activations, a norm without gains, or a signal that is also read elsewhere.

A *stream* is a signal that is carried from one residual addition to the next. Its *additions* are counted along the
longest path, which enters a sum by what is carried there, never by a branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """Say how a branch joins its stream: how many additions the stream has, and what scales the branch on its way.

    `skipped` says whether a skip carries the stream past the branch; otherwise a weight does. `scale` is the product of
    the trained factors between the branch's end and its sum, as they start.
    """

    additions: int
    skipped: bool
    scale: float


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
        for end in found.branches.values():
            joined = {i: Joined(additions[name], found.skipped, scale) for i, scale in end.edges.items()}
            ends |= joined
            if end.blocked:
                blocked[name] = end.blocked
    within = vertices_whose_paths_meet(graph, lambda edge: numbers[id(edge)] in branches, forward=True, every=True)
    inside = branches | {edge_index for edge_index, edge in enumerate(graph.edges) if edge.target in within}
    return Residuals(tuple(sums), ends, inside, blocked)


def _additions(graph: Graph, sums: Collection[str], is_branch: Callable[[Edge], bool]) -> dict[str, int]:
    """Return, for every sum, the number of sums on the longest path through it that enters none by a branch."""

    def longest(
        names: Iterable[str], edges_of: Mapping[str, Sequence[Edge]], far: Callable[[Edge], str]
    ) -> dict[str, int]:
        lengths: dict[str, int] = {}
        for name in names:
            before = (lengths[far(edge)] for edge in edges_of[name] if not edge.steers and not is_branch(edge))
            lengths[name] = max(before, default=0) + (name in sums)
        return lengths

    names = [vertex.name for vertex in graph.vertices]
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

    For each of the edges it holds the product of the trained factors on the way from there, as they start.
    """

    edges: Mapping[int, float] = field(default_factory=dict)
    blocked: str = ""
    carried: str = ""

    def scaled(self, factor: float) -> _End:
        """Return the end, seen from after a factor."""
        return replace(self, edges={edge_index: scale * factor for edge_index, scale in self.edges.items()})


class _Sum(NamedTuple):
    """Hold the branches that a vertex adds, by incoming edge; none if it adds none. `skipped` is as in `Joined`."""

    branches: Mapping[int, _End]
    skipped: bool


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
            return _Sum({}, False)
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
        return _Sum(branches, bool(origins))

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
        return _End(blocked=stop) if stop and not before.carried else before.scaled(_factor(edge.operators))

    def _end_at(self, vertex: str) -> _End:
        incoming = [edge for edge in self.graph.incoming[vertex] if not edge.steers]
        alone = len(self.graph.outgoing[vertex]) == 1 and vertex not in self.graph.outputs
        if not alone or not incoming:
            return _End(carried=vertex)
        ends = [self.end_of(edge) for edge in incoming]
        if self.graph.merge[vertex] == "product":  # one of its factors takes the branch's factor
            return next((end for end in ends if end.edges), _End(carried=vertex))
        if any(end.carried for end in ends):
            return ends[0] if len(ends) == 1 else _End(carried=vertex)
        stop = next((end.blocked for end in ends if end.blocked), "")
        return _End(blocked=stop) if stop else _End({i: scale for end in ends for i, scale in end.edges.items()})

    def _ending(self, edge_index: int, edge: Edge, after: tuple[Operator, ...], role: str) -> _End:
        held: list[Parameter] = [self.parameters[name] for name in edge.parameters]
        takes = [parameter for parameter in held if parameter.role == role]
        if edge.parameters and not takes:
            return _End(blocked=f"a {'norm' if role == 'gain' else 'weight'} that has no {role} of its own")
        if not edge.parameters and role == "gain":
            return _End(blocked="a norm without gains")
        if fixed := [parameter.name for parameter in takes if not parameter.trainable]:
            return _End(blocked=f"'{fixed[0]}', which is frozen")
        stop = _stop(after)
        return _End(blocked=stop) if stop else _End({edge_index: _factor(after)})

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


def _factor(operators: Iterable[Operator]) -> float:
    """Return the product of the trained factors among operators, as they start."""
    return math.prod(abs(operator.started.factor) for operator in operators if isinstance(operator, Gate))


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
