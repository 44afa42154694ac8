"""Fold a finely traced graph into the paper's picture: sums as one vertex, weight and activation as one edge.

None of the steps changes the function, its paths or their depths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from evenstep.graph.model import Edge, Graph


def contracted(graph: Graph) -> Graph:
    """Return the graph with nested sums flattened, and activations and signs folded into the weights beside them.

    An activation that only weights read joins each of them (order pre); what is left joins the weight before it (order
    post). A network that sums activations and nowhere pre-activations is of order post throughout.
    """
    work = _Work.of(graph)
    names = [vertex.name for vertex in graph.vertices]
    for name in names:
        work.chain(name)
    for name in names:
        work.absorb(name)
        work.splice(name)
    folds = [work.fold_before, work.fold_behind]
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


@dataclass
class _Work:
    """Edges in progress, by number, seen from both ends; insertion order keeps the summands' order."""

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
        """Say whether activations meet in sums, and weights without an activation behind them do not."""
        met = {
            edge.op
            for name in self.sums
            if len(self.incoming.get(name, ())) > 1
            for edge in self.incoming[name].values()
        }
        return "activation" in met and "weight" not in met

    def _inner_sum(self, vertex: str) -> bool:
        return vertex in self.incoming and vertex in self.sums and vertex not in self.ends

    def fold_before(self, vertex: str) -> None:
        """Fold a lone activation into the weights that read it."""
        if not self._inner_sum(vertex) or len(self.incoming[vertex]) != 1 or not self.outgoing[vertex]:
            return
        ((number, activation),) = self.incoming[vertex].items()
        readers = list(self.outgoing[vertex].items())
        if (
            activation.op != "activation"
            or activation.window > 1
            or any(e.op != "weight" or e.activation for _, e in readers)
        ):
            return
        self.take(number, activation)
        for reader, edge in readers:
            self.take(reader, edge)
            self.put(
                reader,
                replace(
                    edge,
                    source=activation.source,
                    activation=activation.activation,
                    activation_first=True,
                    depth=edge.depth + activation.depth,
                ),
            )
        self.drop(vertex)

    def chain(self, vertex: str) -> None:
        """Make one of two factors in a row, such as scale and mean mask of a path that may be dropped."""
        if not self._inner_sum(vertex) or len(self.incoming[vertex]) != 1 or len(self.outgoing[vertex]) != 1:
            return
        ((before, first),) = self.incoming[vertex].items()
        ((number, second),) = self.outgoing[vertex].items()
        if any(replace(e, amplitude=1.0) != Edge(e.source, e.target, "identity") for e in (first, second)):
            return
        amplitude = first.amplitude * second.amplitude
        whole = 1.0 if math.isclose(amplitude, 1.0, rel_tol=1e-6) else amplitude
        self.take(number, second)
        self.take(before, first)
        self.put(number, replace(second, source=first.source, amplitude=whole))
        self.drop(vertex)

    def absorb(self, vertex: str) -> None:
        """Fold a sign, or a parameter that is added (a bias written out), into the one weight before it.

        A weight's field is as good as its negative. Other factors stay: the weight is sized without them.
        """
        if not self._inner_sum(vertex) or len(self.incoming[vertex]) != 1 or len(self.outgoing[vertex]) != 1:
            return
        ((before, weight),) = self.incoming[vertex].items()
        ((number, out),) = self.outgoing[vertex].items()
        bare = weight.op == "weight" and not weight.activation
        plain = replace(out, amplitude=abs(out.amplitude), parameters=()) == Edge(vertex, out.target, "identity")
        if not bare or not plain or out.target not in self.sums:
            return
        self.take(number, out)
        self.take(before, weight)
        self.put(before, replace(weight, target=out.target, parameters=(*weight.parameters, *out.parameters)))
        self.drop(vertex)

    def splice(self, vertex: str) -> None:
        """Hand the summands of a sum that only feeds another sum on to that sum."""
        if not self._inner_sum(vertex) or len(self.outgoing[vertex]) != 1:
            return
        ((number, out),) = self.outgoing[vertex].items()
        if out != Edge(vertex, out.target, "identity") or out.target not in self.sums:
            return
        self.take(number, out)
        for summand, edge in list(self.incoming[vertex].items()):
            self.take(summand, edge)
            self.put(summand, replace(edge, target=out.target))
        self.drop(vertex)

    def fold_behind(self, vertex: str) -> None:
        """Fold an activation into the one weight before it."""
        if not self._inner_sum(vertex) or len(self.incoming[vertex]) != 1 or len(self.outgoing[vertex]) != 1:
            return
        ((before, weight),) = self.incoming[vertex].items()
        ((number, activation),) = self.outgoing[vertex].items()
        if weight.op != "weight" or weight.activation or activation.op != "activation" or activation.window > 1:
            return
        self.take(number, activation)
        self.take(before, weight)
        self.put(
            before,
            replace(
                weight,
                target=activation.target,
                activation=activation.activation,
                activation_first=False,
                depth=weight.depth + activation.depth,
            ),
        )
        self.drop(vertex)
