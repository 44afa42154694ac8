"""Simplify a finely traced graph to the paper's form: one vertex for each sum, one edge for weight and activation.

No step changes the function, its paths or their depths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from evenstep.graph.model import Edge, Graph
from evenstep.graph.operators import Activation, Dropout, Gate, Offset, Operator, Padding, Scale, Weight, scaled


def simplified(graph: Graph) -> Graph:
    """Return the graph with nested sums flattened, and activations and signs folded into neighbouring weights.

    An activation that only weights read joins each of them (order pre); others join the weight before them (order
    post). A network that only sums activations, never pre-activations, has order post throughout. A graph with gates is
    not folded: whether a weight meets a sum through a gate depends on what the gate counts as.
    """
    work = _Work.of(graph)
    names = [vertex.name for vertex in graph.vertices]
    for name in names:
        work.chain(name)
        work.follow(name)
    for name in names:
        work.absorb(name)
        work.splice(name)
    if not has_gates(graph):
        folds = [work.fold_before, work.fold_after]
        for fold in reversed(folds) if work.sums_activations_only() else folds:
            for name in names:
                fold(name)
    kept = [vertex for vertex in graph.vertices if vertex.name in work.incoming]
    return Graph.build(
        kept,
        [edge for vertex in kept for edge in work.incoming[vertex.name].values()],
        inputs=graph.inputs,
        outputs=graph.outputs,
        parameters=graph.parameters,
    )


def has_gates(graph: Graph) -> bool:
    """Return whether the graph has trained factors that no number has replaced yet."""
    return any(isinstance(operator, Gate) for edge in graph.edges for operator in edge.operators)


def gates_replaced(graph: Graph, factor: Callable[[Gate], Scale]) -> Graph:
    """Return the graph with every gate replaced by a number; edges keep their order."""

    def replaced(edge: Edge) -> Edge:
        operators = (factor(operator) if isinstance(operator, Gate) else operator for operator in edge.operators)
        return replace(edge, operators=tuple(operator for operator in operators if operator != Scale()))

    return replace(graph, edges=tuple(map(replaced, graph.edges))) if has_gates(graph) else graph


def with_gates(graph: Graph, factor: Callable[[Gate], Scale]) -> Graph:
    """Return the graph with every gate replaced by a number, and simplified further; itself if it has no gates."""
    return simplified(gates_replaced(graph, factor)) if has_gates(graph) else graph


def with_tables_as_they_are(graph: Graph, names: Collection[str]) -> Graph:
    """Return the graph in which the named tables are added as large as they start."""

    def kept(operator: Operator) -> Operator:
        return replace(operator, table="") if isinstance(operator, Offset) and operator.table in names else operator

    edges = (replace(edge, operators=tuple(map(kept, edge.operators))) for edge in graph.edges)
    return replace(graph, edges=tuple(edges)) if names else graph


@dataclass
class _Work:
    """Hold edges in progress by number and by both ends; insertion order keeps the summands' order."""

    incoming: dict[str, dict[int, Edge]]
    outgoing: dict[str, dict[int, Edge]]
    ends: frozenset[str]
    sums: frozenset[str]

    @classmethod
    def of(cls, graph: Graph) -> _Work:
        work = cls(
            {vertex.name: {} for vertex in graph.vertices},
            {vertex.name: {} for vertex in graph.vertices},
            frozenset(graph.inputs) | frozenset(graph.outputs),
            frozenset(vertex.name for vertex in graph.vertices if vertex.merge == "sum"),
        )
        for number, edge in enumerate(graph.edges):
            work.put(number, edge)
        return work

    def put(self, number: int, edge: Edge) -> None:
        self.incoming[edge.target][number] = edge
        self.outgoing[edge.source][number] = edge

    def take(self, number: int, edge: Edge) -> None:
        del self.incoming[edge.target][number]
        del self.outgoing[edge.source][number]

    def drop(self, vertex: str) -> None:
        del self.incoming[vertex]
        del self.outgoing[vertex]

    def sums_activations_only(self) -> bool:
        """Return whether activations meet in sums while weights without a following activation do not."""
        met = {
            type(edge.operators[-1])
            for name in self.sums
            if len(self.incoming.get(name, ())) > 1
            for edge in self.incoming[name].values()
            if edge.operators
        }
        return Activation in met and Weight not in met

    def _inner_sum(self, vertex: str) -> bool:
        return vertex in self.incoming and vertex in self.sums and vertex not in self.ends

    def fold_before(self, vertex: str) -> None:
        """Fold an activation into the weights that read it, if nothing else does."""
        if not self._inner_sum(vertex) or len(self.incoming[vertex]) != 1 or not self.outgoing[vertex]:
            return
        ((number, activation),) = self.incoming[vertex].items()
        readers = list(self.outgoing[vertex].items())
        if not _activates(activation) or any(not _is_bare_weight(edge) for _, edge in readers):
            return
        self.take(number, activation)
        for reader, edge in readers:
            self.take(reader, edge)
            operators = (*activation.operators, *edge.operators)
            parameters = (*edge.parameters, *activation.parameters)
            self.put(reader, Edge(activation.source, edge.target, operators, parameters))
        self.drop(vertex)

    def chain(self, vertex: str) -> None:
        """Merge two consecutive factors, such as the scale and the mean mask of a path that may be dropped."""
        if not self._inner_sum(vertex) or len(self.incoming[vertex]) != 1 or len(self.outgoing[vertex]) != 1:
            return
        ((before, first),) = self.incoming[vertex].items()
        ((number, second),) = self.outgoing[vertex].items()
        if not (_only_scales(first) and _only_scales(second)):
            return
        factor = math.prod(operator.copy_amplitude() for operator in (*first.operators, *second.operators))
        whole: tuple[Operator, ...] = scaled(1.0 if math.isclose(factor, 1.0, rel_tol=1e-6) else factor)
        self.take(number, second)
        self.take(before, first)
        self.put(number, Edge(first.source, second.target, whole))
        self.drop(vertex)

    def follow(self, vertex: str) -> None:
        """Join dropout, padding or added fixed numbers to the edge that they follow."""
        if not self._inner_sum(vertex) or len(self.incoming[vertex]) != 1 or len(self.outgoing[vertex]) != 1:
            return
        ((before, first),) = self.incoming[vertex].items()
        ((number, second),) = self.outgoing[vertex].items()
        if not second.operators or not _only_follows(second.operators) or second.target not in self.sums:
            return
        self.take(number, second)
        self.take(before, first)
        operators, parameters = (*first.operators, *second.operators), (*first.parameters, *second.parameters)
        self.put(before, Edge(first.source, second.target, operators, parameters))
        self.drop(vertex)

    def absorb(self, vertex: str) -> None:
        """Fold a sign, or an added parameter (a written-out bias), into the single weight before it.

        The negative of a weight's field has the same statistics. Other factors stay: the weight is sized without them.
        """
        if not self._inner_sum(vertex) or len(self.incoming[vertex]) != 1 or len(self.outgoing[vertex]) != 1:
            return
        ((before, weight),) = self.incoming[vertex].items()
        ((number, out),) = self.outgoing[vertex].items()
        signed = all(type(o) is Scale and abs(o.factor) == 1.0 and not o.depth for o in out.operators)
        if not _ends_in_weight(weight) or not signed or out.target not in self.sums:
            return
        self.take(number, out)
        self.take(before, weight)
        parameters = (*weight.parameters, *out.parameters)
        self.put(before, Edge(weight.source, out.target, weight.operators, parameters))
        self.drop(vertex)

    def splice(self, vertex: str) -> None:
        """Move the summands of a sum that only feeds another sum to that sum."""
        if not self._inner_sum(vertex) or len(self.outgoing[vertex]) != 1:
            return
        ((number, out),) = self.outgoing[vertex].items()
        if out.operators or out.parameters or out.target not in self.sums:
            return
        self.take(number, out)
        for summand, edge in list(self.incoming[vertex].items()):
            self.take(summand, edge)
            self.put(summand, Edge(edge.source, out.target, edge.operators, edge.parameters))
        self.drop(vertex)

    def fold_after(self, vertex: str) -> None:
        """Fold an activation into the single weight before it."""
        if not self._inner_sum(vertex) or len(self.incoming[vertex]) != 1 or len(self.outgoing[vertex]) != 1:
            return
        ((before, weight),) = self.incoming[vertex].items()
        ((number, activation),) = self.outgoing[vertex].items()
        if not _is_bare_weight(weight) or not _activates(activation):
            return
        self.take(number, activation)
        self.take(before, weight)
        operators = (*weight.operators, *activation.operators)
        parameters = (*weight.parameters, *activation.parameters)
        self.put(before, Edge(weight.source, activation.target, operators, parameters))
        self.drop(vertex)


def _activates(edge: Edge) -> bool:
    """Return whether an edge is one activation of single entries, possibly with operators that only follow."""
    if not edge.operators or not _only_follows(edge.operators[1:]):
        return False
    return type(edge.operators[0]) is Activation and edge.operators[0].window == 1


def _is_bare_weight(edge: Edge) -> bool:
    """Return whether an edge is a weight, possibly with operators that only follow."""
    return bool(edge.operators) and type(edge.operators[0]) is Weight and _only_follows(edge.operators[1:])


def _ends_in_weight(edge: Edge) -> bool:
    """Return whether nothing follows an edge's weight."""
    return bool(edge.operators) and type(edge.operators[-1]) is Weight


def _only_follows(operators: tuple[Operator, ...]) -> bool:
    return all(isinstance(operator, Dropout | Offset | Padding) for operator in operators)


def _only_scales(edge: Edge) -> bool:
    """Return whether an edge is a skip or a fixed factor, without parameters."""
    return not edge.parameters and all(type(o) is Scale and not o.depth for o in edge.operators)
