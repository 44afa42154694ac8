"""Which weights read the input, which give the output, and what each parameter is used for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from evenstep.graph.model import Edge, Graph, Parameter, vertices_whose_paths_meet
from evenstep.graph.operators import Activation, Average, Gate, Maximum, Scale, Slice

LayerPosition = Literal["input", "hidden", "readout"]
_TRANSPARENT = (Scale, Gate, Activation, Average, Maximum, Slice)


@dataclass(frozen=True, slots=True)
class Head:
    """Say where the DAG ends and a readout begins.

    `vertex` is the last vertex before the output where signals join or a weight or norm ends; `edges_to_readout` lead
    from there to the readout's input (pools, activations, reshapes), and `remaining_depth` counts the activations after
    `vertex`. `edge_index` is the readout's weight edge; None if the network ends without one.
    """

    vertex: str
    edges_to_readout: tuple[Edge, ...]
    remaining_depth: int
    edge_index: int | None


@dataclass(frozen=True)
class Roles:
    """Hold the position of every weight edge (by index in `graph.edges`), the heads, and each parameter's edges."""

    positions: Mapping[int, LayerPosition]
    heads: tuple[Head, ...]
    edges_of: Mapping[str, tuple[int, ...]]
    parameters: Mapping[str, Parameter]

    def position_of(self, parameter: str) -> LayerPosition:
        """Return a parameter's position: readout if any of its uses is one, else input if any use is there."""
        uses = {self.positions[i] for i in self.edges_of.get(parameter, ()) if i in self.positions}
        return "readout" if "readout" in uses else "input" if "input" in uses else "hidden"


def roles(graph: Graph) -> Roles:
    """Return the roles in a live graph.

    A weight is a readout if no path from it to the output passes another weight or a norm; it is at the input if no
    weight comes before it. The only weight of a linear model counts as its readout.
    """
    has_weight_before = vertices_whose_paths_meet(
        graph, lambda edge: edge.weight is not None, forward=False, every=False
    )
    more_to_come = vertices_whose_paths_meet(
        graph, lambda edge: edge.weight is not None or edge.normalises, forward=True, every=False
    )
    positions: dict[int, LayerPosition] = {}
    heads: list[Head] = []
    edges_of: dict[str, tuple[int, ...]] = {}
    for edge_index, edge in enumerate(graph.edges):
        if edge.parameters:
            here = (edge_index,)
            for name in edge.parameters:
                edges_of[name] = (*edges_of[name], edge_index) if name in edges_of else here
        if edge.weight is None:
            continue
        if edge.target not in more_to_come:
            positions[edge_index] = "readout"
            heads.append(_head(graph, edge, edge_index))
        else:
            positions[edge_index] = "hidden" if edge.source in has_weight_before else "input"
    if not heads:
        heads = [Head(name, (), 0, None) for name in graph.outputs]
    return Roles(positions, tuple(heads), edges_of, {parameter.name: parameter for parameter in graph.parameters})


def _head(graph: Graph, readout: Edge, edge_index: int) -> Head:
    """Walk back from a readout through pools, activations and reshapes to the last vertex of the DAG."""
    vertex, between = readout.source, list[Edge]()
    while True:
        incoming = graph.incoming[vertex]
        if len(incoming) != 1 or graph.merge[vertex] != "sum" or not _is_transparent(incoming[0]):
            depth = sum(edge.depth for edge in between) + readout.depth - sum(o.depth for o in readout.after)
            return Head(vertex, tuple(reversed(between)), depth, edge_index)
        between.append(incoming[0])
        vertex = incoming[0].source


def _is_transparent(edge: Edge) -> bool:
    return all(isinstance(operator, _TRANSPARENT) for operator in edge.operators)
