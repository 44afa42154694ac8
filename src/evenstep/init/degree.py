"""`degree`: the paper's initialisation, by in-degree (`eq:dag_init`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenstep.graph import Edge, Graph
from evenstep.graph.activations import gain
from evenstep.graph.operators import Activation, Average, Maximum, Recurrent, Slice
from evenstep.graph.roles import Head
from evenstep.init.initialisation import MeanFieldReadout, Sizes
from evenstep.signal import IncomingWeights, VertexSignal


@dataclass(frozen=True)
class Degree(MeanFieldReadout):
    """Divide by the in-degree of the vertex where the sum happens: the target's, or the source's in order post.

    The paper's factor of 2 compensates for ReLU; other activations have their own gain.
    """

    name: str = field(default="degree", kw_only=True)

    def size_hidden(self, graph: Graph, incoming: IncomingWeights) -> Sizes:
        """Size every weight by its own in-degree."""
        sizes, why = [], []
        for edge in incoming.edges:
            last, activates = edge.activates_last, edge.activation or isinstance(edge.weight, Recurrent)
            source = last or (not activates and _sums_activations(graph, edge.source))
            degree = max(graph.in_degree(edge.source), 1) if source else 1
            if not last:
                degree *= incoming.in_degree
            factor = 1.0 / gain(edge.activation) if edge.activation else 1.0
            sizes.append(factor / degree)
            why.append(f"variance {factor:.4g}/(d_in fan_in), {'source' if source else 'target'}'s in-degree {degree}")
        return sizes, why

    def size_readout(self, graph: Graph, head: Head, edge: Edge, read: float, at: VertexSignal) -> tuple[float, str]:
        """Divide by the last in-degree if the readout reads sums that no weight was sized for (order post)."""
        assert edge.weight is not None
        if head.remaining_depth:
            return super().size_readout(graph, head, edge, read, at)
        degree = max(graph.in_degree(_last_vertex(head, edge)), 1)
        size = self.readout_size(edge.weight.fan_in) / degree
        return size, f"{self.readout_words()}, divided by the root of in-degree {degree}"


def _sums_activations(graph: Graph, vertex: str) -> bool:
    """Return whether a vertex sums activations and skips, so that no incoming weight has been sized for the sum."""
    incoming = graph.incoming[vertex]
    bare = any(edge.weight is not None and not edge.activates_last for edge in incoming)
    return graph.merge[vertex] == "sum" and len(incoming) > 1 and not bare


def _last_vertex(head: Head, edge: Edge) -> str:
    """Return the vertex a readout reads, looking through pools and activations but not through skips."""
    vertex = edge.source
    for between in reversed(head.edges_to_readout):
        if not any(isinstance(operator, Activation | Average | Maximum | Slice) for operator in between.operators):
            break
        vertex = between.source
    return vertex
