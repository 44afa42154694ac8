"""NAS-Bench-201 trained in several ways, shown: accuracies, rankings at the top, and gaps between architectures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evenstep.errors import InputError
from evenstep.study.nas.analysis import Gaps, TauPoint

COLOURS = {
    "benchmark": "#8a8a8a",
    "constant-tuned": "#5f8f3e",
    "paper": "#c9702b",
    "mup": "#8a5a9e",
    "weighted": "#1b6ca8",
}
MARKERS = {"benchmark": "s", "constant-tuned": "v", "paper": "^", "mup": "D", "weighted": "o"}
# For names that are no protocol, such as pairs of seeds.
_OTHER_COLOURS = ("#b5485d", "#3f8f8a", "#a08a2b", "#555555")
_OTHER_MARKERS = ("P", "X", "<", ">")


def draw_accuracies(
    reference: npt.ArrayLike,
    accuracies: Mapping[str, npt.ArrayLike],
    path: Path,
    *,
    title: str = "NAS-Bench-201",
    xlabel: str = "test accuracy in the benchmark, %",
    ylabel: str = "test accuracy trained anew, %",
) -> None:
    """Write the picture of each protocol's accuracies over the reference's; on the line they are equal.

    `reference` and every value of `accuracies` are aligned, [architectures]; not a number is left out.
    """
    true = np.array(reference, dtype=float)
    shown = {name: np.array(values, dtype=float) for name, values in accuracies.items()}
    for name, values in shown.items():
        if values.shape != true.shape or true.ndim != 1:
            raise InputError(
                f"the accuracies of '{name}' have shape {values.shape}, the reference's {true.shape}; "
                "give one number for each architecture"
            )
    figure, axes = _axes(5.6, 5.2)
    for place, (name, values) in enumerate(shown.items()):
        colour, marker = _look(name, place)
        axes.plot(true, values, marker, color=colour, markersize=5, alpha=0.75, markeredgewidth=0, label=name)
    known = [v[np.isfinite(v)] for v in (true, *shown.values())]
    every = np.concatenate(known)
    if len(every):
        margin = 0.03 * max(float(np.ptp(every)), 1.0)
        ends = float(every.min()) - margin, float(every.max()) + margin
        axes.plot(ends, ends, "-", color="#444444", linewidth=0.8, zorder=0)
        axes.set(xlim=ends, ylim=ends)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _finish(figure, axes, path, title=f"{title} (n = {len(true)})", legend=bool(shown))


def draw_tau(curves: Mapping[str, Sequence[TauPoint]], path: Path, *, title: str = "NAS-Bench-201") -> None:
    """Write the picture of Kendall's tau over the top K% of the reference, with its interval where there is one."""
    figure, axes = _axes(5.6, 4.0)
    for place, (name, curve) in enumerate(curves.items()):
        colour, marker = _look(name, place)
        points = [(point.share, point.tau.value) for point in curve if point.tau.value is not None]
        shares, taus = [share for share, _ in points], [tau for _, tau in points]
        axes.plot(
            shares, taus, marker, linestyle="-", color=colour, markersize=5, linewidth=1.2, alpha=0.75, label=name
        )
        known = [
            (point.share, point.tau.low, point.tau.high)
            for point in curve
            if point.tau.low is not None and point.tau.high is not None
        ]
        if known:
            at, low, high = zip(*known, strict=True)
            axes.fill_between(at, low, high, color=colour, alpha=0.1, linewidth=0)
    axes.axhline(0, color="#444444", linewidth=0.8, zorder=0)
    axes.set(xlim=(103, -2), xlabel="architectures ranked in the top K% of the reference", ylabel="Kendall's tau")
    _finish(figure, axes, path, title=title, legend=bool(curves))


def draw_gaps(gaps: Mapping[str, Gaps], path: Path, *, title: str = "NAS-Bench-201", bins: int = 30) -> None:
    """Write the picture of how often a gap of so many points stands between two architectures."""
    figure, axes = _axes(5.6, 4.0)
    largest = max((one.largest for one in gaps.values()), default=0.0)
    edges = np.linspace(0, largest if largest > 0 else 1.0, bins + 1).tolist()
    for place, (name, one) in enumerate(gaps.items()):
        colour, _ = _look(name, place)
        axes.hist(
            one.values,
            edges,
            weights=np.full(len(one.values), 100 / len(one.values)),
            histtype="stepfilled",
            facecolor=(colour, 0.15),
            edgecolor=colour,
            linewidth=1.2,
            label=f"{name}, mean {one.mean:.2f}",
        )
    axes.set(xlabel="accuracy gap between two architectures, points", ylabel="share of pairs, %")
    _finish(figure, axes, path, title=title, legend=bool(gaps))


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _finish(figure: Figure, axes: Axes, path: Path, *, title: str, legend: bool) -> None:
    if legend:
        axes.legend(frameon=False, fontsize=8)
    axes.set_title(title, fontsize=9, loc="left")
    figure.savefig(path, dpi=130)


def _look(name: str, place: int) -> tuple[str, str]:
    """Return the colour and marker of a protocol, or those of a place for other names."""
    if name in COLOURS:
        return COLOURS[name], MARKERS[name]
    return _OTHER_COLOURS[place % len(_OTHER_COLOURS)], _OTHER_MARKERS[place % len(_OTHER_MARKERS)]
