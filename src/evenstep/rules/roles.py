"""Which weights read the input, which give the output, and what every edge and parameter is used for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from evenstep.graph import Edge, Graph, Parameter

Place = Literal["input", "hidden", "readout"]

_WEIGHTS = ("weight", "recurrent")
_TRANSPARENT = frozenset({"identity", "activation", "average", "maximum"})


@dataclass(frozen=True, slots=True)
class Head:
    """Name where the DAG ends and a readout begins.

    `vertex` is the last vertex where signals join, or a weight or norm lands, before the output; `depth` the
    activations between it and the output. `edge` is the position of the readout's weight edge, None where a network
    ends without one.
    """

    vertex: str
    depth: int
    edge: int | None


@dataclass(frozen=True)
class Roles:
    """Hold the place of every weight edge (by its position in `graph.edges`), the heads, and parameters' edges."""

    places: Mapping[int, Place]
    heads: tuple[Head, ...]
    edges_of: Mapping[str, tuple[int, ...]]
    parameters: Mapping[str, Parameter]

    def place_of(self, parameter: str) -> Place:
        """Return where a parameter stands: at the input or readout only if all its uses do."""
        found = {self.places[i] for i in self.edges_of.get(parameter, ()) if i in self.places}
        return found.pop() if len(found) == 1 else "hidden"


def roles(graph: Graph) -> Roles:
    """Return the roles in a live graph.

    A weight is a readout if the output is reached from it through neither another weight nor a norm on any path;
    it is at the input if no weight lies before it. The only weight of a linear model counts as its readout.
    """
    before, after = _weight_before(graph), _weight_or_norm_after(graph)
    places: dict[int, Place] = {}
    heads: list[Head] = []
    edges_of: dict[str, tuple[int, ...]] = {}
    for position, edge in enumerate(graph.edges):
        if edge.parameters:
            here = (position,)
            for name in edge.parameters:
                edges_of[name] = (*edges_of[name], position) if name in edges_of else here
        if edge.op not in _WEIGHTS:
            continue
        if edge.target not in after:
            places[position] = "readout"
            vertex, depth = _back(graph, edge)
            heads.append(Head(vertex, depth, position))
        else:
            places[position] = "hidden" if edge.source in before else "input"
    if not heads:
        heads = [Head(name, 0, None) for name in graph.outputs]
    return Roles(
        places,
        tuple(heads),
        edges_of,
        {parameter.name: parameter for parameter in graph.parameters},
    )


def _weight_before(graph: Graph) -> set[str]:
    """Return the vertices that some weight lies before."""
    found: set[str] = set()
    for vertex in graph.vertices:
        edges = graph.incoming[vertex.name]
        if any(edge.op in _WEIGHTS or edge.source in found for edge in edges):
            found.add(vertex.name)
    return found


def _weight_or_norm_after(graph: Graph) -> set[str]:
    """Return the vertices that some weight or norm lies behind."""
    found: set[str] = set()
    for vertex in reversed(graph.vertices):
        edges = graph.outgoing[vertex.name]
        if any(edge.op in _WEIGHTS or edge.normalises or edge.target in found for edge in edges):
            found.add(vertex.name)
    return found


def _back(graph: Graph, edge: Edge) -> tuple[str, int]:
    """Walk back from a readout through pools, activations and reshapes to the last vertex of the DAG."""
    vertex, depth = edge.source, 0 if edge.activates_last else edge.depth
    while True:
        incoming = graph.incoming[vertex]
        if len(incoming) != 1 or incoming[0].op not in _TRANSPARENT or graph.merge[vertex] != "sum":
            return vertex, depth
        depth += incoming[0].depth
        vertex = incoming[0].source
