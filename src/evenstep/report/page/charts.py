"""Charts as values: axes with ticks, and placed marks; the template turns them into SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

Point = tuple[float, float]
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 22.0, 44.0
_STEPS = (1, 2, 5)
SHAPES = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "square": "M-3.6 -3.6h7.2v7.2h-7.2Z",
    "triangle": "M0 -4.6L4.4 3.4H-4.4Z",
    "upside": "M0 4.6L4.4 -3.4H-4.4Z",
    "diamond": "M0 -5L5 0L0 5L-5 0Z",
    "cross": "M-3.6 -3.6L3.6 3.6M-3.6 3.6L3.6 -3.6",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with a shape; mouse and keyboard can reach one that has a tip."""

    x: float
    y: float
    shape: str
    style: str
    tip: str = ""

    @property
    def path(self) -> str:
        """The shape's SVG path around its middle."""
        return SHAPES[self.shape]


@dataclass(frozen=True, slots=True)
class Trace:
    """A line through points, with gaps where points are missing."""

    path: str
    style: str


@dataclass(frozen=True, slots=True)
class Area:
    """A filled shape behind everything else."""

    path: str
    style: str


@dataclass(frozen=True, slots=True)
class Flag:
    """A vertical line with a label above it."""

    x: float
    label: str
    style: str
    anchor: str = "middle"


@dataclass(frozen=True)
class Axis:
    """Map values to pixels; `ticks` are the values to label."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, value = (
            (math.log(v) for v in (self.low, self.high, value))
            if self.is_log
            else (
                self.low,
                self.high,
                value,
            )
        )
        return round(self.start + (self.end - self.start) * (value - low) / (high - low), 2)

    @property
    def marks(self) -> tuple[tuple[float, str], ...]:
        """The pixels of the ticks, with their labels."""
        return tuple((self.at(value), label) for value, label in self.ticks)


@dataclass(frozen=True)
class Chart:
    """Hold everything drawn within one pair of axes."""

    width: float
    height: float
    x: Axis
    y: Axis
    x_label: str
    y_label: str
    about: str
    title: str = ""
    areas: tuple[Area, ...] = ()
    traces: tuple[Trace, ...] = ()
    flags: tuple[Flag, ...] = ()
    marks: tuple[Mark, ...] = ()


def log_axis(values: Iterable[float], start: float, end: float, *, room: float = 0.06) -> Axis:
    """Return a logarithmic axis over positive values, with a share of free room at both ends."""
    # Within the range of floats, so that there is room beyond.
    found = [min(max(value, 1e-250), 1e250) for value in values if 0 < value < math.inf] or [0.1, 1.0]
    low, high = min(found), max(found)
    if high / low < 1.2:
        low, high = low / 1.1, high * 1.1
    stretch = math.exp(room * (math.log(high) - math.log(low)))
    low, high = low / stretch, high * stretch
    return Axis(low, high, start, end, True, _log_ticks(low, high, wanted=abs(end - start) / 60))


def linear_axis(values: Iterable[float], start: float, end: float) -> Axis:
    """Return an axis over values, with a little free room at both ends."""
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - room, high + room
    raw = (high - low) / max(abs(end - start) / 60, 2)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= raw)
    first = math.ceil(low / step)
    ticks = [(first + i) * step for i in range(math.floor(high / step) - first + 1)]
    return Axis(low, high, start, end, False, tuple((tick, f"{tick:.6g}") for tick in ticks))


def place_axis(labels: Sequence[str], start: float, end: float) -> Axis:
    """Return an axis with one place per label."""
    ticks = tuple((float(place), label) for place, label in enumerate(labels))
    return Axis(-0.5, len(labels) - 0.5, start, end, False, ticks)


def size_axis(sizes: Sequence[float], start: float, end: float) -> Axis:
    """Return a logarithmic axis that labels the given sizes."""
    made = log_axis(sizes, start, end, room=0.08)
    return Axis(made.low, made.high, start, end, True, tuple((size, f"{size:g}") for size in sizes))


def _log_ticks(low: float, high: float, *, wanted: float) -> tuple[tuple[float, str], ...]:
    """Return round numbers, as dense as room allows: 1, 2 and 5 of every decade, or 1 of every few decades."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [step * 10.0**decade for decade in decades for step in _STEPS]
    inside = [tick for tick in every if low <= tick <= high]
    if len(inside) > max(wanted, 3):
        tens = [10.0**decade for decade in decades if low <= 10.0**decade <= high]
        stride = next(n for n in count(1) if len(tens) / n <= max(wanted, 3))
        inside = tens[::stride]
    if len(inside) < 2:
        inside = [low * (high / low) ** share for share in (0.15, 0.5, 0.85)]
    return tuple((tick, f"{tick:.3g}") for tick in inside)


def trace(points: Iterable[tuple[float, float] | None], style: str) -> Trace:
    """Return the line through points in pixels; None lifts the pen."""
    parts, down = [], False
    for point in points:
        if point is None:
            down = False
            continue
        parts.append(f"{'L' if down else 'M'}{point[0]:.1f} {point[1]:.1f}")
        down = True
    return Trace("".join(parts), style)


def box(left: float, right: float, top: float, bottom: float, style: str) -> Area:
    """Return a filled rectangle."""
    return Area(f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}Z", style)
