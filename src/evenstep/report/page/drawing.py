"""Draw the network's graph: placed boxes, the lines between them, and how boxes unfold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.planning import Plan
from evenstep.report.page.colours import ColourScale
from evenstep.report.page.folding import Fold, fold, label_inside
from evenstep.report.page.items import Item, Line, Picture, picture
from evenstep.report.page.layout import MARGIN, ROW_GAP, Layout, Size, Spot, lay_out
from evenstep.report.page.words import counted, number, percent

HEAD = 34.0  # height of an unfolded box's label
_LONGEST = 30  # characters of a label
_BOLD_LETTER, _LETTER, _SMALL_LETTER = 7.9, 7.1, 6.1
_THINNEST, _THICKEST = 0.8, 6.0


@dataclass(frozen=True)
class Node:
    """A box, placed inside the box around it; `inside` is what it unfolds to."""

    name: str
    kind: str
    spot: Spot
    label: str
    detail: str
    tip: str
    rows: tuple[int, ...]
    colour: str
    is_output: bool = False
    inside: Drawing | None = None

    @property
    def left(self) -> float:
        """The left edge."""
        return round(self.spot.x - self.spot.width / 2, 2)

    @property
    def top(self) -> float:
        """The upper edge."""
        return round(self.spot.y, 2)


@dataclass(frozen=True)
class Stroke:
    """A line: its path, thickness and colour."""

    path: str
    width: float
    colour: str
    is_dead: bool


@dataclass(frozen=True)
class Drawing:
    """A box's contents, or the whole graph; lines from outside enter and leave at ports."""

    name: str
    nodes: tuple[Node, ...]
    strokes: tuple[Stroke, ...]
    layout: Layout
    links: tuple[tuple[int, int], ...]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height with all inner boxes folded."""
        return math.ceil(self.layout.width), math.ceil(self.layout.height)

    @property
    def folds(self) -> int:
        """The number of boxes that unfold, including nested ones."""
        return sum(1 + node.inside.folds for node in self.nodes if node.inside)

    def geometry(self) -> dict[str, Any]:
        """Return, by name, the numbers that the page's script needs to make room for unfolded boxes."""
        own = {
            "spots": [[round(v, 2) for v in (spot.x, spot.width, spot.height)] for spot in self.layout.spots],
            "nodes": [node.name for node in self.nodes],
            "count": len(self.layout.spots) - sum(map(len, self.layout.routes)),  # bends follow
            "rows": self.layout.rows,
            "links": [[*ends, route] for ends, route in zip(self.links, self.layout.routes, strict=True)],
        }
        found = {self.name: own}
        for node in self.nodes:
            if node.inside:
                found |= node.inside.geometry()
        return found


def draw(plan: Plan, scale: ColourScale, *, name: str) -> Drawing:
    """Return the drawing of a plan's graph, folded if it is too large to read; `name` begins all element names."""
    shown = picture(plan)
    return _Draughtsman(plan, shown, scale).draw(fold(shown), name, shown.lines)


def route(points: Sequence[tuple[float, float]]) -> str:
    """Return the SVG path through points in pairs: curves between rows, straight down within them."""
    (x, y), *rest = points
    parts = [f"M{x:.1f} {y:.1f}"]
    for place, (to_x, to_y) in enumerate(rest):
        if place % 2:
            parts.append(f"V{to_y:.1f}")
        else:
            middle = (y + to_y) / 2
            parts.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return "".join(parts)


class _Draughtsman:
    def __init__(self, plan: Plan, shown: Picture, scale: ColourScale) -> None:
        self.plan, self.items, self.scale = plan, shown.items, scale

    def draw(self, box: Fold, name: str, lines: Sequence[Line], *, ported: bool = False) -> Drawing:
        """Draw a box with the lines that end in it."""
        members = box.members
        home = {
            place: number
            for number, member in enumerate(members)
            for place in (member.places if isinstance(member, Fold) else (member,))
        }
        entry, exit_ = len(members), len(members) + 1
        joined: dict[tuple[int, int], list[Line]] = {}
        for line in lines:
            ends = home.get(line.source, entry), home.get(line.target, exit_)
            if ends[0] != ends[1]:
                joined.setdefault(ends, []).append(line)
        sizes = [self._size(member, box.prefix) for member in members]
        if ported:
            sizes += [(0.0, 0.0), (0.0, 0.0)]
        layout = lay_out(sizes, list(joined), top=entry if ported else None, bottom=exit_ if ported else None)
        nodes = []
        for number_, member in enumerate(members):
            own = f"{name}-{number_}"
            if isinstance(member, Fold):
                touching = [x for x in lines if home.get(x.source) == number_ or home.get(x.target) == number_]
                nodes.append(self._box(member, own, layout.spots[number_], touching))
            else:
                nodes.append(self._node(self.items[member], own, layout.spots[number_], box.prefix))
        strokes = [
            self._stroke(_points(layout, ends, bends), together)
            for (ends, together), bends in zip(joined.items(), layout.routes, strict=True)
        ]
        return Drawing(name, tuple(nodes), tuple(strokes), layout, tuple(joined))

    def _node(self, item: Item, name: str, spot: Spot, prefix: tuple[str, ...]) -> Node:
        tip = "\n".join([item.title, *(f"{what}: {words}" for what, words in item.notes)])
        label = _short(label_inside(item, prefix))
        colour = self.scale.colour(item.scale)
        return Node(name, item.kind, spot, label, item.detail, tip, item.parameters, colour, item.is_output)

    def _box(self, box: Fold, name: str, spot: Spot, lines: Sequence[Line]) -> Node:
        rows = sorted({row for place in box.places for row in self.items[place].parameters})
        factors = [self.plan.parameters[row].lr_scale for row in rows]
        tip = [".".join(box.prefix) if "…" not in box.label else box.label, self._held(box)]
        scale = None
        if positive := [factor for factor in factors if factor > 0]:
            scale = math.exp(sum(map(math.log, positive)) / len(positive))
            low, high = number(min(factors)), number(max(factors))
            tip.append(
                f"LR factors: {low}" if low == high else f"LR factors: {low} to {high}, on average {number(scale)}"
            )
            if self.plan.base is not None:
                low, high = (number(self.plan.base * end) for end in (min(factors), max(factors)))
                tip.append(f"learning rates: {low}" if low == high else f"learning rates: {low} to {high}")
        inside = self.draw(box, name, lines, ported=True)
        within = set(box.places)
        arriving = sum(line.weight for line in lines if line.target in within and line.source not in within)
        tip.append(f"path weight that enters: {percent(min(arriving, 1.0))}")
        tip.append("Enter or a click unfolds it")
        held = self._held(box)
        output = any(self.items[place].is_output for place in box.places)
        colour = self.scale.colour(scale)
        return Node(name, "box", spot, _short(box.label), held, "\n".join(tip), (), colour, output, inside)

    def _held(self, box: Fold) -> str:
        rows = {row for place in box.places for row in self.items[place].parameters}
        return counted(len(rows), "parameter")

    def _size(self, member: Fold | int, prefix: tuple[str, ...]) -> Size:
        if isinstance(member, Fold):
            longest = max(_BOLD_LETTER * len(_short(member.label)), _SMALL_LETTER * len(self._held(member)))
            return longest + 46, 46.0
        item = self.items[member]
        label = _short(label_inside(item, prefix))
        if item.kind == "junction":
            return 26.0, 26.0
        if item.kind == "layer":
            return max(_LETTER * len(label), _SMALL_LETTER * len(item.detail)) + 26, 42.0 if item.detail else 28.0
        return _SMALL_LETTER * len(label) + 20, 24.0

    def _stroke(self, path: str, lines: Sequence[Line]) -> Stroke:
        weight = min(sum(line.weight for line in lines), 1.0)
        scales = {line.scale for line in lines}
        width = _THINNEST + (_THICKEST - _THINNEST) * weight
        colour = self.scale.colour(scales.pop()) if len(scales) == 1 else "none"
        return Stroke(path, round(width, 2), colour, weight == 0)


def _points(layout: Layout, ends: tuple[int, int], bends: Sequence[int]) -> str:
    source, target = (layout.spots[end] for end in ends)
    points = [(source.x, source.y + source.height if source.height else 0.0)]  # lines from outside begin at the frame
    for bend in (layout.spots[place] for place in bends):
        points += [(bend.x, bend.y), (bend.x, bend.y + bend.height)]
    return route([*points, (target.x, target.y if target.height else layout.height)])


def _short(label: str) -> str:
    """Return a label that fits its box, without its middle if it is too long."""
    if len(label) <= _LONGEST:
        return label
    half = (_LONGEST - 1) // 2
    return f"{label[:half]}…{label[-half:]}"


def spacing() -> Mapping[str, float]:
    """Return the distances that the page's script keeps when it makes room."""
    return {"gap": ROW_GAP, "margin": MARGIN, "head": HEAD}
