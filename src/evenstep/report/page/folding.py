"""Fold a drawing that is too large to read: the items of a module become one box that holds them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import groupby, pairwise

from evenstep.report.page.items import Item, Line, Picture

READABLE = 60  # most items to draw without folding
_CROWDED = 40  # most members of one box
_RANGE = 20  # most members of a box that stands for a range
_TOO_FEW = 3  # fewest items that are worth a box


@dataclass(frozen=True)
class Fold:
    """A box: its label inside the box around it, the module's path, and its members, with items by index."""

    label: str
    prefix: tuple[str, ...]
    members: tuple[Fold | int, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """All items in the box, including those in inner boxes."""
        return tuple(
            place for member in self.members for place in (member.places if isinstance(member, Fold) else (member,))
        )


def fold(picture: Picture, *, readable: int = READABLE) -> Fold:
    """Return the outermost box of a drawing; it holds boxes only if there are too many items to read.

    A box is a stretch of items in an order in which every line points forward, so lines between boxes form no cycle
    either, whatever the names of the modules.
    """
    items = picture.items
    if len(items) <= readable:
        return Fold("", (), tuple(range(len(items))))
    return _opened(_boxed(_order(items, picture.lines), items, ()))


def _opened(outermost: Fold) -> Fold:
    """Open a box that is the only one, as for a model wrapped in another, to save the reader a click."""
    while len(found := [member for member in outermost.members if isinstance(member, Fold)]) == 1:
        (only,) = found
        if len(outermost.members) + len(only.members) > _CROWDED:
            break
        inner = [
            replace(member, label=f"{only.label}.{member.label}") if isinstance(member, Fold) else member
            for member in only.members
        ]
        at = outermost.members.index(only)
        outermost = replace(outermost, members=(*outermost.members[:at], *inner, *outermost.members[at + 1 :]))
    return outermost


def _order(items: Sequence[Item], lines: Sequence[Line]) -> list[int]:
    """Order the items so that lines point forward, staying in a module as long as it has items that are ready."""
    following: list[list[int]] = [[] for _ in items]
    waiting = [0] * len(items)
    for line in lines:
        following[line.source].append(line.target)
        waiting[line.target] += 1
    ready = _Ready(items)
    for place, count in enumerate(waiting):
        if not count:
            ready.add(place)
    order: list[int] = []
    last: tuple[str, ...] = ()
    while len(order) < len(items):
        chosen = ready.take(last)
        order.append(chosen)
        last = items[chosen].module
        for target in following[chosen]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.add(target)
    return order


class _Ready:
    """Hold items by every module that they are in, to find nearby ones without a full search."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.heaps: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self.taken: set[int] = set()

    def add(self, place: int) -> None:
        module = self.items[place].module
        for depth in range(len(module) + 1):
            heappush(self.heaps[module[:depth]], place)

    def take(self, module: tuple[str, ...]) -> int:
        """Remove and return the first of the items that share most of a module's path."""
        for depth in range(len(module), -1, -1):
            heap = self.heaps[module[:depth]]
            while heap:
                place = heappop(heap)
                if place not in self.taken:
                    self.taken.add(place)
                    return place
        raise ValueError("a graph with a cycle has no order")


def _boxed(order: Sequence[int], items: Sequence[Item], prefix: tuple[str, ...]) -> Fold:
    """Return the box of a stretch of items whose modules all begin with `prefix`."""
    depth = len(prefix) + 1
    runs = [list(run) for _, run in groupby(order, key=lambda place: items[place].module[:depth])]
    while len(runs) == 1 and len(prefix) < min(len(items[place].module) for place in order):
        prefix = items[order[0]].module[:depth]  # one module holds all items: go inside
        depth += 1
        runs = [list(run) for _, run in groupby(order, key=lambda place: items[place].module[:depth])]
    members: list[Fold | int] = []
    for run in runs:
        inner = items[run[0]].module[:depth]
        if len(run) < _TOO_FEW or inner == prefix:
            members.extend(run)
        else:
            made = _boxed(run, items, inner)
            members.append(replace(made, label=".".join(made.prefix[len(prefix) :])))
    return Fold("", prefix, _ranges(_numbered(members), items, prefix))


def _numbered(members: list[Fold | int]) -> list[Fold | int]:
    """Number the boxes of a module that the network leaves and returns to."""
    often = Counter(member.label for member in members if isinstance(member, Fold))
    seen: Counter[str] = Counter()
    told: list[Fold | int] = []
    for member in members:
        if isinstance(member, Fold) and often[member.label] > 1:
            seen[member.label] += 1
            member = replace(member, label=f"{member.label} ({seen[member.label]} of {often[member.label]})")
        told.append(member)
    return told


def _ranges(members: Sequence[Fold | int], items: Sequence[Item], prefix: tuple[str, ...]) -> tuple[Fold | int, ...]:
    """Put neighbours into boxes, repeatedly, while one box would hold too many members."""
    while len(members) > _CROWDED:
        parts = -(-len(members) // _RANGE)
        cuts = [len(members) * part // parts for part in range(parts + 1)]
        pieces = [tuple(members[start:end]) for start, end in pairwise(cuts)]
        members = [
            Fold(f"{_label(piece[0], items, prefix)} … {_label(piece[-1], items, prefix)}", prefix, piece)
            for piece in pieces
        ]
    return tuple(members)


def _label(member: Fold | int, items: Sequence[Item], prefix: tuple[str, ...]) -> str:
    if isinstance(member, Fold):
        return member.label.split(" … ")[0]
    item = items[member]
    return label_inside(item, prefix) if item.kind == "layer" else item.title


def label_inside(item: Item, prefix: tuple[str, ...]) -> str:
    """Return an item's label in the box of a module, without the names that the box has already."""
    if item.kind == "layer" and prefix and item.module[: len(prefix)] == prefix:
        return ".".join(item.module[len(prefix) :]) or item.label
    return item.label
