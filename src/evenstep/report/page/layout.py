"""Lay out a directed acyclic graph in layers: longest paths, barycentres, and no overlapping boxes.

The steps are those of Sugiyama, Tagawa and Toda: a layer for every node, bends where a link crosses further layers, an
order in each layer with few crossings, and positions as near to the neighbours as the order allows.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Size = tuple[float, float]
Link = tuple[int, int]
Pull = tuple[int, float]  # a neighbour, and how strongly it pulls
ROW_GAP = 22.0
NODE_GAP = 18.0
BEND_WIDTH = 10.0
MARGIN = 14.0
_SWEEPS = 16
_STIFF = 12.0
_TURNS = 8


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of a node or a bend: its row, the middle of its top edge, and its size."""

    row: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """Hold the spots of all nodes, then of all bends; `routes` lists each link's bends, from its source.

    `rows` lists the spots of each row from left to right.
    """

    spots: tuple[Spot, ...]
    routes: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]
    width: float
    height: float


def lay_out(
    sizes: Sequence[Size], links: Sequence[Link], *, top: int | None = None, bottom: int | None = None
) -> Layout:
    """Place nodes of the given sizes so that every link points to a lower row.

    The node `top`, which no link reaches, has the first row to itself, and `bottom`, which no link leaves, the last.
    """
    layers = _layers(len(sizes), links, top, bottom)
    layers, routes, steps = _with_bends(layers, links)
    rows = _ordered(layers, steps)
    widths = [width for width, _ in sizes] + [BEND_WIDTH] * (len(layers) - len(sizes))
    places = _places(rows, widths, steps, len(sizes))
    heights = [max((sizes[i][1] for i in row if i < len(sizes)), default=0.0) for row in rows]
    tops = [MARGIN]
    for height in heights:
        tops.append(tops[-1] + height + ROW_GAP)
    spots = []
    for i, layer in enumerate(layers):
        if i < len(sizes):
            width, height = sizes[i]
            spots.append(Spot(layer, places[i], tops[layer] + (heights[layer] - height) / 2, width, height))
        else:
            spots.append(Spot(layer, places[i], tops[layer], BEND_WIDTH, heights[layer]))
    right = max((spot.x + spot.width / 2 for spot in spots), default=0.0)
    return Layout(tuple(spots), routes, tuple(map(tuple, rows)), right + MARGIN, tops[-1] - ROW_GAP + MARGIN)


def _layers(count: int, links: Sequence[Link], top: int | None, bottom: int | None) -> list[int]:
    """Return every node's layer: the length of the longest path to it; sources are just above what they feed."""
    following: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in links:
        following[source].append(target)
        waiting[target] += 1
    sources = [node for node in range(count) if not waiting[node]]
    layers = [0] * count
    order = list(sources)
    for node in order:  # grows during the loop
        for target in following[node]:
            layers[target] = max(layers[target], layers[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    if len(order) < count:
        raise ValueError("a graph with a cycle has no layers")
    for node in sources:
        if following[node]:
            layers[node] = min(layers[target] for target in following[node]) - 1
    if top is not None:
        layers[top] = min(layers) - 1
    if bottom is not None:
        layers[bottom] = max(layers) + 1
    used = {layer: place for place, layer in enumerate(sorted(set(layers)))}
    return [used[layer] for layer in layers]


def _with_bends(layers: list[int], links: Sequence[Link]) -> tuple[list[int], tuple[tuple[int, ...], ...], list[Link]]:
    """Give every link a bend in each row it crosses; return all layers, each link's bends, and the single steps."""
    layers = list(layers)
    routes: list[tuple[int, ...]] = []
    steps: list[Link] = []
    for source, target in links:
        bends = list(range(len(layers), len(layers) + layers[target] - layers[source] - 1))
        layers.extend(range(layers[source] + 1, layers[target]))
        routes.append(tuple(bends))
        steps.extend(pairwise([source, *bends, target]))
    return layers, tuple(routes), steps


def _ordered(layers: Sequence[int], steps: Sequence[Link]) -> list[list[int]]:
    """Return the rows, ordered with few crossings: by barycentres, down and up in turn."""
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for node, layer in enumerate(layers):
        rows[layer].append(node)
    above, below = _neighbours(len(layers), steps)
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        near = below if sweep % 2 else above
        for row in reversed(rows[:-1]) if sweep % 2 else rows[1:]:
            _sort_by_barycentre(row, rows, layers, near)
        found = _crossings(rows, below)
        if found < fewest:
            best, fewest = [list(row) for row in rows], found
    return best


def _sort_by_barycentre(row: list[int], rows: list[list[int]], layers: Sequence[int], near: list[list[int]]) -> None:
    beside = {layers[other] for node in row for other in near[node]}
    at = {node: place for layer in beside for place, node in enumerate(rows[layer])}
    own = {node: float(place) for place, node in enumerate(row)}
    centre = {node: sum(at[o] for o in near[node]) / len(near[node]) if near[node] else own[node] for node in row}
    row.sort(key=lambda node: (centre[node], own[node]))


def _neighbours(count: int, steps: Sequence[Link]) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in steps:
        above[target].append(source)
        below[source].append(target)
    return above, below


def _crossings(rows: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> int:
    """Count the pairs of steps that cross: inversions of the lower ends, with the upper ends from left to right."""
    total = 0
    for upper, lower in pairwise(rows):
        at = {node: place for place, node in enumerate(lower)}
        seen: list[int] = []
        for node in upper:
            ends = sorted(at[other] for other in below[node])
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def _places(rows: Sequence[Sequence[int]], widths: Sequence[float], steps: Sequence[Link], nodes: int) -> list[float]:
    """Return the middle of every node and bend: as near to its neighbours as its row allows, from the margin on."""
    above, below = _neighbours(len(widths), steps)
    # Steps in a chain are stiff, and those that branch or join give way, so chains and long lines are straight.
    stiff = {(s, t) for s, t in steps if len(below[s]) == 1 and len(above[t]) == 1}
    pulls = [
        [[(node, _STIFF if (node, i) in stiff else 1.0) for node in above[i]] for i in range(len(widths))],
        [[(node, _STIFF if (i, node) in stiff else 1.0) for node in below[i]] for i in range(len(widths))],
    ]
    both = [a + b for a, b in zip(*pulls, strict=True)]
    x = [0.0] * len(widths)
    for row in rows:
        for place, offset in zip(row, _offsets(row, widths, nodes), strict=True):
            x[place] = offset
        middle = (x[row[0]] + x[row[-1]]) / 2
        for place in row:
            x[place] -= middle
    for sweep in range(_SWEEPS):
        for row in reversed(rows) if sweep % 2 else rows:
            _settle(row, x, widths, both if sweep >= _SWEEPS // 2 else pulls[sweep % 2], nodes)
    _straighten(x, rows, widths, stiff, both, nodes)
    left = min((x[i] - widths[i] / 2 for i in range(len(widths))), default=0.0)
    return [place - left + MARGIN for place in x]


def _settle(
    row: Sequence[int], x: list[float], widths: Sequence[float], pulls: Sequence[Sequence[Pull]], nodes: int
) -> None:
    """Move a row's members towards the mean of their neighbours, by least squares, keeping order and distances."""
    offsets = _offsets(row, widths, nodes)
    blocks: list[tuple[float, float, int]] = []  # weighted sum, weight, members: pool adjacent violators
    for node, offset in zip(row, offsets, strict=True):
        weight = sum(pull for _, pull in pulls[node]) or 0.01  # without neighbours: stay, unless pushed
        goal = sum(pull * x[other] for other, pull in pulls[node]) / weight if pulls[node] else x[node]
        block = (weight * (goal - offset), weight, 1)
        while blocks and blocks[-1][0] / blocks[-1][1] > block[0] / block[1]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    settled = [total / weight for total, weight, members in blocks for _ in range(members)]
    for node, base, offset in zip(row, settled, offsets, strict=True):
        x[node] = base + offset


def _straighten(
    x: list[float],
    rows: Sequence[Sequence[int]],
    widths: Sequence[float],
    stiff: set[Link],
    pulls: Sequence[Sequence[Pull]],
    nodes: int,
) -> None:
    """Make chains vertical, and move each as a whole towards what it is joined to, as far as its neighbours allow."""
    left, right = _beside(rows, widths, nodes)
    rails = _rails(len(x), stiff)
    for turn in range(_TURNS):
        for rail in rails:
            low = max((x[other] + gap for i in rail for other, gap in left[i]), default=-math.inf)
            high = min((x[other] - gap for i in rail for other, gap in right[i]), default=math.inf)
            if low > high:  # it crosses another chain: if vertical, it would cover others
                continue
            own = set(rail)
            ends = [x[other] for i in rail for other, _ in pulls[i] if other not in own]
            near = [x[i] for i in rail] if turn == 0 or not ends else ends
            goal = min(max(sum(near) / len(near), low), high)
            for i in rail:
                x[i] = goal


def _beside(
    rows: Sequence[Sequence[int]], widths: Sequence[float], nodes: int
) -> tuple[list[list[Pull]], list[list[Pull]]]:
    """Return the left and right neighbour of every member of a row, and the distance to keep."""
    left: list[list[Pull]] = [[] for _ in widths]
    right: list[list[Pull]] = [[] for _ in widths]
    for row in rows:
        for (one, at), (other, to) in pairwise(zip(row, _offsets(row, widths, nodes), strict=True)):
            left[other].append((one, to - at))
            right[one].append((other, to - at))
    return left, right


def _rails(count: int, stiff: set[Link]) -> list[list[int]]:
    """Return the chains of stiff steps, the longest first; every member is in one."""
    after = dict(stiff)
    starts = set(range(count)) - set(after.values())
    rails = []
    for start in sorted(starts):
        rail = [start]
        while rail[-1] in after:
            rail.append(after[rail[-1]])
        rails.append(rail)
    return sorted(rails, key=len, reverse=True)


def _offsets(row: Sequence[int], widths: Sequence[float], nodes: int) -> list[float]:
    """Return how far to the right of the first each member must be, at least."""
    found = [0.0]
    for one, other in pairwise(row):
        gap = NODE_GAP if one < nodes or other < nodes else 0.0
        found.append(found[-1] + (widths[one] + widths[other]) / 2 + gap)
    return found
