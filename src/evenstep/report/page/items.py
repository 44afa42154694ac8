"""List what the drawing of a graph shows: an item for each vertex, one for each layer that meets others, and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from evenstep.graph import Edge
from evenstep.planning import Plan
from evenstep.report.page.shares import path_weights
from evenstep.report.page.words import number, percent, size

Kind = Literal["input", "layer", "step", "junction"]
SYMBOLS = {"sum": "+", "concat": "‖", "product": "×"}
_JOINS = {"sum": "sum", "concat": "side by side", "product": "product"}


@dataclass(frozen=True, slots=True)
class Item:
    """An item to draw.

    A `layer` is an edge with parameters, with its target vertex if no other edge reaches that; a `step` is the same
    without parameters; a `junction` is a vertex where several edges meet. `module` is the path of names that it belongs
    to, `notes` what its tip says besides parameters, and `parameters` their rows in the plan.
    """

    kind: Kind
    label: str
    module: tuple[str, ...]
    title: str
    detail: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    parameters: tuple[int, ...] = ()
    scale: float | None = None
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Join two items, given by index; `weight` is the path weight, and `scale` its layer's factor."""

    source: int
    target: int
    weight: float
    scale: float | None = None


@dataclass(frozen=True)
class Picture:
    """Hold all items, in an order in which every line points forward, and the lines between them."""

    items: tuple[Item, ...]
    lines: tuple[Line, ...]


def picture(plan: Plan) -> Picture:
    """Return what to draw of a plan's graph; every edge is exactly one layer, step or line."""
    return _Painter(plan).paint()


class _Painter:
    """Walk a plan's graph from the inputs and collect items and lines."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph = plan, plan.graph
        self.weights = {id(e): w for e, w in zip(plan.graph.edges, path_weights(plan), strict=True)}
        self.rows = {parameter.name: row for row, parameter in enumerate(plan.parameters)}
        self.shapes = {parameter.name: parameter.shape for parameter in plan.graph.parameters}
        self.moments = {vertex.name: vertex.second_moment for vertex in plan.vertices}
        self.items: list[Item] = []
        self.lines: list[Line] = []
        self.place: dict[str, int] = {}

    def paint(self) -> Picture:
        for vertex in self.graph.vertices:
            edges = self.graph.incoming[vertex.name]
            if not edges:
                self._finish(vertex.name, Item("input", vertex.name, _path(vertex.name), vertex.name))
            elif len(edges) == 1:
                self._finish(vertex.name, self._alone(edges[0], vertex.name), edges)
            else:
                self._junction(vertex.name, edges)
        return Picture(tuple(self.items), tuple(self.lines))

    def _finish(self, name: str, item: Item, edges: Sequence[Edge] = ()) -> None:
        """Add the item that stands for a vertex, and the lines that reach it."""
        notes = list(item.notes)
        if name in self.moments:
            notes.append(("second moment there", number(self.moments[name])))
        if name in self.graph.inputs:
            notes.append(("input", "of the network"))
        if name in self.graph.outputs:
            notes.append(("output", "of the network"))
        self.place[name] = self._add(replace(item, notes=tuple(notes), is_output=name in self.graph.outputs))
        for edge in edges:
            self._line(self.place[edge.source], self.place[name], edge)

    def _add(self, item: Item) -> int:
        self.items.append(item)
        return len(self.items) - 1

    def _line(self, source: int, target: int, edge: Edge) -> None:
        self.lines.append(Line(source, target, self.weights[id(edge)], self._scale(edge)))

    def _alone(self, edge: Edge, vertex: str) -> Item:
        """Return the item of an edge: a layer if it has parameters."""
        notes = self._notes(edge)
        if not edge.parameters:
            return Item("step", edge.words(), _path(vertex), vertex, notes=notes)
        rows = tuple(self.rows[name] for name in edge.parameters if name in self.rows)
        module = _common([name.split(".") for name in edge.parameters])
        name = ".".join(module) or edge.parameters[0]
        shape = self.shapes[edge.parameters[0]]
        detail = size(shape) if shape else ""
        frozen = [name for name in edge.parameters if name not in self.rows]
        if frozen:
            notes = (*notes, ("frozen", ", ".join(frozen)))
        path = module or tuple(edge.parameters[0].split("."))
        return Item("layer", name, path, name, detail, notes, rows, self._scale(edge))

    def _junction(self, name: str, edges: Sequence[Edge]) -> None:
        merge = self.graph.merge[name]
        ends: list[tuple[int, Edge]] = []
        brought: list[tuple[str, str]] = []
        for edge in edges:
            end = self.place[edge.source]
            source_words = edge.source
            if edge.parameters:
                layer = self._alone(edge, name)
                place = self._add(layer)
                self._line(end, place, edge)
                end, source_words = place, layer.label
            ends.append((end, edge))
            brought.append((f"from {source_words}", f"{edge.words()}, path weight {percent(self.weights[id(edge)])}"))
        notes = (("joins by", _JOINS[merge]), *brought)
        self._finish(name, Item("junction", SYMBOLS[merge], _path(name), name, notes=notes))
        for end, edge in ends:
            self._line(end, self.place[name], edge)

    def _notes(self, edge: Edge) -> tuple[tuple[str, str], ...]:
        return (("operator", edge.words()), ("path weight", percent(self.weights[id(edge)])))

    def _scale(self, edge: Edge) -> float | None:
        """Return the factor of an edge's first trainable parameter, which is its weight if it has one."""
        trained = (self.rows[name] for name in edge.parameters if name in self.rows)
        return next((self.plan.parameters[row].lr_scale for row in trained), None)


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _common(paths: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the module that parameters share: their common prefix, without the last name."""
    shared: list[str] = []
    for parts in zip(*(path[:-1] for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return tuple(shared)
