"""Draw the demo's picture: loss over learning rate, one rate for all above, evenstep below, a column for each kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from evenstep.demo.measuring import DEFAULT_RATE, GRID, Demo, Measured, best_rate, mean

ONE_RATE = ("#f0ab7a", "#d9702b", "#7f3409")  # shallow to deep
PLANNED = ("#93c4e6", "#2f86c1", "#0d3a5f")
_QUIET, _TEXT, _GRID = "#7a808a", "#2b2f36", "#e8eaed"
_SIZE, _DPI = (9.2, 5.3), 200  # inches: twice as many pixels as a README shows
_BAND = 1.15  # on either side of the bases' rates
_ROOM = 1.12  # above the highest loss shown, and below the lowest


def draw(demo: Demo, path: Path) -> None:
    """Write the picture of a demo; both panels of a column share a scale."""
    kinds = list(dict.fromkeys(network.kind for network in demo.networks))
    figure = Figure(
        figsize=_SIZE, facecolor="white", layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05, hspace=0.03)
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(kinds), sharex=True, squeeze=False)
    for kind, above, below in zip(kinds, *panels, strict=True):
        networks = [network for network in demo.networks if network.kind == kind]
        limits = _limits(networks)
        for axes, planned in ((above, False), (below, True)):
            _frame(axes, limits)
            _curves(axes, networks, planned=planned)
        above.set_title(kind, fontsize=11.5, fontweight="bold", color=_TEXT, pad=7)
        above.axvline(DEFAULT_RATE, color=_QUIET, linewidth=1.1, linestyle=(0, (3, 2)), zorder=1)
    for axes, name, colours in ((panels[0][0], "one rate for all", ONE_RATE), (panels[1][0], "evenstep", PLANNED)):
        axes.set_ylabel(f"{name}\n", fontsize=13, fontweight="bold", color=colours[1], labelpad=2)
        axes.text(-0.21, 0.5, "training loss", transform=axes.transAxes, rotation=90, ha="center", va="center",
                  fontsize=8.5, color=_QUIET)  # fmt: skip
    figure.legend(
        handles=_legend(),
        title="learning rate (above: of every parameter; below: of the base, which sets each parameter's rate)",
        title_fontsize=9.5,
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
        labelcolor=_TEXT,
    )
    figure.savefig(path, dpi=_DPI)


def _curves(axes: Axes, networks: Sequence[Measured], *, planned: bool) -> None:
    """Draw a curve for each depth, with a ring at the best rate and a disc at the plan's rate."""
    for network, colour in zip(networks, PLANNED if planned else ONE_RATE, strict=False):
        losses = network.planned if planned else network.one_rate
        points = {rate: mean(losses[rate]) for rate in sorted(losses)}
        shown = {rate: loss for rate, loss in points.items() if math.isfinite(loss)}
        axes.plot(list(shown), list(shown.values()), color=colour, linewidth=1.9, label=str(network.depth), zorder=3)
        best = best_rate(losses)
        if not planned:
            axes.plot(best, points[best], "o", markersize=6.5, markerfacecolor="white", markeredgecolor=colour,
                      markeredgewidth=1.6, zorder=5)  # fmt: skip
        elif math.isfinite(network.plan):
            axes.plot(network.base, network.plan, "o", markersize=7, color=colour, markeredgecolor="white", zorder=5)
    if planned:
        bases = [network.base for network in networks]
        axes.axvspan(min(bases) / _BAND, max(bases) * _BAND, color=PLANNED[1], alpha=0.15, linewidth=0, zorder=1)
    axes.legend(title="depth", title_fontsize=8, fontsize=8, frameon=False, handlelength=1.1, labelspacing=0.2,
                borderaxespad=0.2, loc="lower left", labelcolor=_TEXT)  # fmt: skip


def _limits(networks: Sequence[Measured]) -> tuple[float, float]:
    """Return the range of losses to show, from the lowest to those of networks that learn nothing."""
    means = [
        mean(loss) for network in networks for losses in (network.one_rate, network.planned) for loss in losses.values()
    ]
    finite = sorted(filter(math.isfinite, means)) or [1.0]
    return finite[0] / _ROOM, finite[-1] * _ROOM


def _frame(axes: Axes, limits: tuple[float, float]) -> None:
    axes.set(xscale="log", yscale="log", xlim=(GRID[0] / 1.3, GRID[-1] * 1.3), ylim=limits)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#c3c7cd")
    axes.grid(color=_GRID, linewidth=0.7, zorder=0)
    axes.tick_params(labelsize=8.5, colors=_QUIET, length=0)
    axes.xaxis.set_major_locator(FixedLocator([1e-4, 1e-3, 1e-2]))
    axes.yaxis.set_major_locator(FixedLocator(_ticks(*limits)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _ticks(low: float, high: float) -> list[float]:
    """Return a handful of round losses to label."""
    round_ones = [digit * 10.0**power for power in range(-6, 6) for digit in (1, 2, 5)]
    ticks = [tick for tick in round_ones if low <= tick <= high]
    return ticks if len(ticks) > 2 else [half / 2 for half in range(1, 40) if low <= half / 2 <= high]


def _legend() -> list[Line2D]:
    """Return a legend of the marks."""
    ring = {"marker": "o", "markersize": 6.5, "markerfacecolor": "white", "markeredgewidth": 1.6, "linestyle": ""}
    return [
        Line2D([], [], color=_QUIET, linewidth=1.1, linestyle=(0, (3, 2)), label="AdamW's default, 0.001"),
        Line2D([], [], markeredgecolor=ONE_RATE[1], label="best single rate, in hindsight", **ring),  # type: ignore[arg-type]
        Line2D(
            [],
            [],
            color=PLANNED[1],
            marker="o",
            markersize=7,
            linestyle="",
            label="the plan's rate, searched on the base",
        ),
    ]
