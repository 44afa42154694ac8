"""The charts of the page: a search's losses, a check's changes, and a study's predicted against searched rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evenstep.report.page.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Area,
    Axis,
    Chart,
    Flag,
    Mark,
    box,
    linear_axis,
    log_axis,
    place_axis,
    size_axis,
    trace,
)
from evenstep.report.page.words import counted, number
from evenstep.search import Check, LRSearch
from evenstep.search.checking import Trend

SEARCHED = "searched"
# Shape and palette position of the transfer benchmark's methods; other methods take those that are left.
_METHODS = {
    "constant": ("square", "s7"),
    "paths": ("triangle", "s1"),
    "paths+2": ("upside", "s2"),
    "mup": ("diamond", "s3"),
    "weighted": ("circle", "s0"),
}
_SPARE = (("diamond", "s4"), ("triangle", "s5"), ("square", "s6"))
_STEEP = 10.0  # ratio of losses above which the axis is logarithmic


def search_chart(search: LRSearch) -> Chart:
    """Return loss against learning rate: every seed, the mean, divergence, the rate, its interval and the best rate."""
    width, height = 820.0, 380.0
    x = log_axis(search.grid, LEFT, width - RIGHT)
    finite = [loss for seeds in search.losses for loss in seeds if math.isfinite(loss)]
    is_steep = bool(finite) and min(finite) > 0 and max(finite) > _STEEP * min(finite)
    y = (log_axis if is_steep else linear_axis)(finite, height - BOTTOM, TOP + 24)
    marks, means = [], []
    for rate, seeds, mean in zip(search.grid, search.losses, search.mean_losses, strict=True):
        lost = sum(not math.isfinite(loss) for loss in seeds)
        marks += [Mark(x.at(rate), y.at(loss), "circle", "seed") for loss in seeds if math.isfinite(loss)]
        lines = [f"learning rate {number(rate)}", f"losses of the seeds: {', '.join(map(_loss, seeds))}"]
        if lost:
            tip = "\n".join([lines[0], f"diverged: {lost} of {counted(len(seeds), 'seed')}", lines[1]])
            marks.append(Mark(x.at(rate), TOP + 8, "cross", "diverged", tip))
        if math.isfinite(mean):
            tip = "\n".join([lines[0], f"mean loss: {number(mean)}", lines[1]])
            style = "mean chosen" if rate == search.best else "mean"
            marks.append(Mark(x.at(rate), y.at(mean), "circle", style, tip))
        means.append((x.at(rate), y.at(mean)) if math.isfinite(mean) else None)
    areas, flags = [], []
    if math.isfinite(search.best):
        low, high = (min(max(end, x.low), x.high) for end in search.interval or (search.rate, search.rate))
        areas.append(box(x.at(low), x.at(high), TOP, height - BOTTOM, "bracket"))
        flags.append(_flag(x, search.rate, f"rate {number(search.rate)}", "chosen"))
        if search.best != search.rate:
            flags.append(_flag(x, search.best, f"best {number(search.best)}", "estimate"))
    if len(flags) == 2:  # side by side, so that labels do not overlap
        first, second = sorted(flags, key=lambda flag: flag.x)
        flags = [Flag(first.x, first.label, first.style, "end"), Flag(second.x, second.label, second.style, "start")]
    return Chart(
        width,
        height,
        x,
        y,
        "learning rate",
        "training loss",
        f"Training loss against learning rate for {counted(len(search.grid), 'rate')}",
        areas=tuple(areas),
        traces=(trace(means, "mean"),),
        flags=tuple(flags),
        marks=tuple(marks),
    )


def check_charts(check: Check, over: str) -> tuple[Chart, Chart]:
    """Return the changes by the first step, to first order, and after all steps, over the sizes."""
    titles = "first step, to first order", f"after {counted(check.steps, 'step')}"
    every = [v for trend in (*check.trends, *check.shown) for v in (*trend.values, *trend.later)]
    first, later = (
        _check_chart(check, over, title, is_first=not place, every=every) for place, title in enumerate(titles)
    )
    return first, later


def _check_chart(check: Check, over: str, title: str, *, is_first: bool, every: Sequence[float]) -> Chart:
    width, height = 480.0, 340.0
    labels = [network.label for network in check.networks]
    if check.named:
        x = place_axis([str(label) for label in labels], LEFT, width - RIGHT)
        places = [float(place) for place in range(len(labels))]
    else:
        places = [float(label) for label in labels]
        x = size_axis(places, LEFT, width - RIGHT)
    # At least two decades, so that flat lines look flat.
    y = _at_least(log_axis(every, height - BOTTOM, TOP), 100.0)
    traces, marks = [], []
    for trend in (*check.shown, *check.trends):
        style, shape = _trend_style(check, trend)
        values = trend.values if is_first else trend.later
        points = [(x.at(at), y.at(v)) if 0 < v < math.inf else None for at, v in zip(places, values, strict=True)]
        traces.append(trace(points, style))
        for point, label, value in zip(points, labels, values, strict=True):
            if point:
                tip = f"{trend.signal}\n{over} {label}: change {number(value, 3)}\nslope {trend.slope:+.2f}"
                marks.append(Mark(*point, shape, style, tip))
    about = f"Change of {counted(len(check.trends), 'signal')} over {over}, {title}"
    return Chart(
        width, height, x, y, over, "change, root mean square", about, title, traces=tuple(traces), marks=tuple(marks)
    )


def _trend_style(check: Check, trend: Trend) -> tuple[str, str]:
    if trend in check.shown:
        return "aside", "diamond"
    return ("flat", "circle") if abs(trend.slope) <= check.tolerance else ("beyond", "triangle")


def _at_least(axis: Axis, ratio: float) -> Axis:
    if axis.high / axis.low >= ratio:
        return axis
    middle = math.sqrt(axis.low * axis.high)
    return log_axis([middle / math.sqrt(ratio), middle * math.sqrt(ratio)], axis.start, axis.end, room=0.0)


def transfer_chart(family: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Return every method's rate over the searched rate, both logarithmic, or None if no rates are known."""
    width, height = 430.0, 400.0
    styles = method_styles([name for name in family["methods"] if name != SEARCHED])
    known = [row for row in rows if row.get("family") == family["family"] and row.get("true_lr")]
    found = [
        (row, name, row["true_lr"], row[f"{name} lr"]) for name in styles for row in known if row.get(f"{name} lr")
    ]
    if not found:
        return None
    every = [value for *_, true, predicted in found for value in (true, predicted)]
    x, y = log_axis(every, LEFT, width - RIGHT), log_axis(every, height - BOTTOM, TOP)
    marks = []
    for row, name, true, predicted in found:
        what = f"{row.get('name') or row.get('code') or row.get('shape') or 'network'}"
        octaves = math.log2(predicted / true)
        tip = f"{what}\n{name}: {number(predicted)}\nsearched: {number(true)}\noff by {octaves:+.2f} octaves"
        shape, style = styles[name]
        marks.append(Mark(x.at(true), y.at(predicted), shape, style, tip))
    line = trace([(x.at(x.low), y.at(y.low)), (x.at(x.high), y.at(y.high))], "equal")
    band = Area(_band(x, y), "octave")
    return Chart(
        width,
        height,
        x,
        y,
        "searched learning rate",
        "predicted learning rate",
        f"Predicted against searched learning rates of {counted(len(known), 'network')}",
        areas=(band,),
        traces=(line,),
        marks=tuple(marks),
    )


def method_styles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the shape and colour of every method; a method looks the same everywhere."""
    others = [name for name in names if name not in _METHODS]
    return {name: _METHODS.get(name) or _SPARE[others.index(name) % len(_SPARE)] for name in names}


def _band(x: Axis, y: Axis) -> str:
    """Return the region within a factor of 2, cut off at the frame."""
    low, high = x.low, x.high
    corners = [(low, low), (low, 2 * low), (high / 2, high), (high, high), (high, high / 2), (2 * low, low)]
    if high / low <= 2:
        corners = [(low, low), (low, high), (high, high), (high, low)]
    return "M" + "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in corners) + "Z"


def _flag(x: Axis, value: float, label: str, style: str) -> Flag:
    at = x.at(value)
    share = (at - x.start) / (x.end - x.start)
    return Flag(at, label, style, "start" if share < 0.15 else "end" if share > 0.85 else "middle")


def _loss(loss: float) -> str:
    return number(loss) if math.isfinite(loss) else "diverged"
