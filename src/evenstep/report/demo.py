"""The demo's picture: the base searches, and every network at the transferred rate against the base's own."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evenstep.study.demo import Demo

_TRANSFERRED, _UNSCALED = "#1b6ca8", "#c9702b"


def draw_demo(demo: Demo, path: Path) -> None:
    """Write the picture of a finished demo."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.5])
    _searches(left, demo)
    _losses(right, demo)
    figure.savefig(path, dpi=130)


def _searches(axes: Axes, demo: Demo) -> None:
    for (kind, search), colour in zip(demo.bases.items(), (_TRANSFERRED, "#5f8f3e"), strict=False):
        points = [(lr, loss) for lr, loss in zip(search.grid, search.mean_losses, strict=True) if math.isfinite(loss)]
        rate = search.rate
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=f"{kind}: {rate:.3g}")
        axes.axvline(rate, color=colour, linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss after one epoch")
    axes.set_title("Step 1: one search on each one-hidden-layer base", fontsize=10)
    axes.legend(frameon=False, loc="upper left")


def _losses(axes: Axes, demo: Demo) -> None:
    finite = [v for r in demo.rows for v in (r.transferred_loss, r.base_loss) if math.isfinite(v)]
    top = 3 * max(finite, default=1.0)
    for place, row in enumerate(demo.rows):
        for offset, value, colour in (
            (0.18, row.transferred_loss, _TRANSFERRED),
            (-0.18, row.base_loss, _UNSCALED),
        ):
            shown = value if math.isfinite(value) else top
            hatch = None if math.isfinite(value) else "///"
            axes.barh(place + offset, shown, height=0.34, color=colour, hatch=hatch, edgecolor="white")
            text = f" {value:.3f}" if math.isfinite(value) else " diverged"
            axes.text(shown, place + offset, text, va="center", fontsize=8)
    axes.set_yticks(range(len(demo.rows)), [row.network for row in demo.rows])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="training loss")
    axes.set_xlim(right=top * 6)
    axes.set_title("Steps 2 and 3: blue at the transferred rate, orange at the base's own", fontsize=10)
