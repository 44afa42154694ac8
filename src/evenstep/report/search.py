"""A search's picture: loss over learning rate, every seed, the chosen rate and its bracket."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evenstep.search import LRSearch


def draw_search(search: LRSearch, path: Path) -> None:
    """Write the picture of a finished search."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for rate, seeds in zip(search.grid, search.losses, strict=True):
        finite = [loss for loss in seeds if math.isfinite(loss)]
        axes.plot([rate] * len(finite), finite, "o", color="#9bb8d3", markersize=3)
        if len(finite) < len(seeds):
            axes.plot([rate], [1.0], "x", color="#c9702b", transform=axes.get_xaxis_transform(), clip_on=False)
    points = [(lr, loss) for lr, loss in zip(search.grid, search.mean_losses, strict=True) if math.isfinite(loss)]
    if points:
        axes.plot(*zip(*points, strict=True), "o-", color="#1b6ca8", label="mean over seeds")
        axes.axvline(search.best, color="#1b6ca8", linestyle=":", label=f"best {search.best:.3g}")
        axes.axvspan(*search.bracket, color="#1b6ca8", alpha=0.12, linewidth=0)
        axes.legend(frameon=False)
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss")
    axes.set_title("x above the frame: diverged", fontsize=9, loc="left")
    figure.savefig(path, dpi=130)
