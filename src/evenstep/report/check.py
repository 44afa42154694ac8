"""Draw a check: changes over the sizes, to first order on the left and after the steps on the right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evenstep.search import Check

_BEYOND = "#c9702b"
_SHOWN = "#999999"
_LISTED = 12  # most lines that a legend can name


def draw_check(check: Check, what: str, path: Path) -> None:
    """Write the picture of a finished check; `what` names the size in which the networks differ."""
    figure = Figure(figsize=(10.0, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    shades = colormaps["viridis"]
    for place, trend in enumerate(check.trends):
        beyond = not abs(trend.slope) <= check.tolerance
        colour = _BEYOND if beyond else shades(0.1 + 0.75 * place / max(len(check.trends) - 1, 1))
        _line(left, check, trend.values, colour, f"{trend.signal} ({trend.slope:+.2f})")
        _line(right, check, trend.later, colour, trend.signal)
    for trend in check.shown:
        _line(left, check, trend.values, _SHOWN, f"{trend.signal} ({trend.slope:+.2f}, not judged)", style="o--")
        _line(right, check, trend.later, _SHOWN, trend.signal, style="o--")
    left.set(ylabel="change, root mean square", yscale="log")
    # At least two decades, so that flat lines look flat.
    low, high = left.get_ylim()
    left.set_ylim(math.pow(10, math.floor(math.log10(low))), math.pow(10, math.ceil(math.log10(high))))
    left.set_title("first step, to first order", fontsize=10)
    right.set_title(f"after {check.steps} steps", fontsize=10)
    for axes in (left, right):
        axes.set(xlabel=what)
        if not check.named:
            axes.set_xscale("log", base=2)
        sizes = _sizes(check)
        axes.set_xticks(sizes, [str(network.label) for network in check.networks])
        axes.minorticks_off()
    if len(check.trends) <= _LISTED:
        left.legend(frameon=False, fontsize=8)
    figure.suptitle(str(check), fontsize=10)
    figure.savefig(path, dpi=130)


def _sizes(check: Check) -> list[float]:
    return [
        float(place) if isinstance(network.label, str) else float(network.label)
        for place, network in enumerate(check.networks)
    ]


def _line(axes: Axes, check: Check, values: Sequence[float], colour: object, label: str, *, style: str = "o-") -> None:
    points = [(x, y) for x, y in zip(_sizes(check), values, strict=True) if 0 < y < math.inf]
    if points:
        axes.plot(*zip(*points, strict=True), style, color=colour, label=label, markersize=4)
