"""NAS-Bench-201 trained in several ways, shown: pictures of accuracies, rankings and gaps, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evenstep.errors import InputError
from evenstep.report.marks import Marks
from evenstep.report.table import markdown_table
from evenstep_research.study.nas.analysis import Gaps, TauPoint, pairwise_gaps, tau_curve
from evenstep_research.study.nas.compare import Comparison

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
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet16-120": "ImageNet16-120"}
_SHOWN = (100, 50, 20, 10)  # percent of the ranking


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


def draw_comparison(comparison: Comparison, folder: Path, *, stem: str) -> list[Path]:
    """Write the pictures of a comparison whose cells are at least two: accuracies, taus and gaps; return their paths.

    The reference is the table, or the benchmark's protocol where the table has not all cells.
    """
    first = next(iter(comparison.results.values())).means
    codes = comparison.codes
    listed = all(code in comparison.published for code in codes)
    reference = {code: comparison.published[code] if listed else first.get(code, np.nan) for code in codes}
    values = {
        label: [one.means.get(code, np.nan) for code in codes]
        for label, one in comparison.results.items()
        if len(one.means) > 1 and (listed or one.means != first)
    }
    shared = {label: comparison.shared(one.means, reference) for label, one in comparison.results.items()}
    curves = {
        label: tau_curve(
            *([table[code] for code in shared[label]] for table in (reference, comparison.results[label].means))
        )
        for label in values
        if all(np.isfinite(reference[code]) for code in shared[label])
    }
    gaps = {
        label: pairwise_gaps(list(one.means.values()))
        for label, one in comparison.results.items()
        if len(one.means) > 1
    }
    title = f"{comparison.setting['data']}, {comparison.setting['training']['epochs']} epochs"
    paths = [folder / f"{stem}-{name}.png" for name in ("accuracies", "tau", "gaps")]
    xlabel = "test accuracy in the benchmark, %" if listed else "test accuracy by the benchmark's protocol, %"
    draw_accuracies([reference[code] for code in codes], values, paths[0], title=title, xlabel=xlabel)
    draw_tau(curves, paths[1], title=title)
    draw_gaps(gaps, paths[2], title=title)
    return paths


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


def markdown(record: Mapping[str, Any]) -> str:
    """Return a record's tables, a section for every setting; data sets that were not run say so."""
    comparisons: list[dict[str, Any]] = record["results"]["comparisons"]
    parts = [_section(one) for one in comparisons]
    rows = [
        [title, *(_cells_run(comparisons, name, epochs, protocol) for epochs in (12, 200) for protocol in COLOURS)]
        for name, title in TITLES.items()
    ]
    head = ["cells trained", *(f"`{protocol}`, {epochs} epochs" for epochs in (12, 200) for protocol in COLOURS)]
    return "\n\n".join([markdown_table(head, rows), *parts])


def _cells_run(comparisons: Sequence[Mapping[str, Any]], data: str, epochs: int, protocol: str) -> str:
    """Return how many cells a protocol trained on a data set for so many epochs."""
    cells = [
        trained["n"]
        for one in comparisons
        if one["setting"]["data"] == data and one["setting"]["training"]["epochs"] == epochs
        for trained in one["protocols"].values()
        if trained["protocol"]["name"] == protocol
    ]
    return str(sum(cells)) if cells else "not run"


def gains(record: Mapping[str, Any]) -> str:
    """Return what every protocol brings over the benchmark's recipe and over one tuned rate, by data set and epochs."""
    rows = []
    for one in record["results"]["comparisons"]:
        setting = one["setting"]
        title = f"{TITLES.get(setting['data'], setting['data'])}, {setting['training']['epochs']} epochs"
        rows += [[title, *row[:-1]] for row in _gain_rows(one)]  # without the last: the interval shows it
    return markdown_table(["trained on", *_GAIN[:-1]], rows)


MARKS: Marks = {"nas table": markdown, "nas gains": gains}


def _section(one: Mapping[str, Any]) -> str:
    setting = one["setting"]
    training, shape = setting["training"], setting["shape"]
    title = f"### {TITLES.get(setting['data'], setting['data'])}, {training['epochs']} epochs"
    where = "; ".join(
        f"{at['device']}, torch {at['torch']}, commit {at['commit'] or 'unknown'}, {at['precision']}"
        for at in one["measured_on"]
    )
    made = (
        f"C = {shape['channels']}, N = {shape['cells']}, batch {training['batch_size']}, weight decay "
        f"{training['weight_decay']:g}. Measured on: {where}."
    )
    parts = [title, made, _protocols(one), markdown_table(_GAIN, _gain_rows(one))]
    if ranked := [versus for versus in one["versus"] if "tau" in versus]:
        parts.append(
            "Kendall's tau with the reference over the top K% of the ranking, and between the seeds of each, with the "
            "number of cells in brackets; there is no tau of fewer than three:"
        )
        parts.append(_taus(ranked))
        parts.append(_gaps(ranked))
    if any(against["n"] for against in one["table"].values()):
        parts.append(_published(one))
    counted = one["parameters"]
    if counted["n"]:
        parts.append(f"Parameter counts equal the table's for {counted['equal']} of {counted['n']} cells.")
    if one["tuned"]:
        parts.append(_tuned(one["tuned"]))
    return "\n\n".join(parts)


def _protocols(one: Mapping[str, Any]) -> str:
    rows = []
    for label, own in one["protocols"].items():
        seeds = " to ".join(dict.fromkeys(str(count) for count in (own["seeds"][0], own["seeds"][-1])))
        way = f"; {own['protocol']['way']}" if "way" in own["protocol"] else ""
        rows.append(
            [
                f"`{label}`{way}",
                str(own["n"]),
                seeds,
                f"{own['protocol']['lr']:.4g}",
                f"{own['mean']:.2f}",
                str(own["diverged"]),
            ]
        )
    return markdown_table(["protocol", "cells", "seeds", "rate of the base", "mean accuracy, %", "diverged"], rows)


_GAIN = [
    *("protocol", "against", "cells of both", "mean accuracies there, %", "mean gain in points (95%)"),
    *("median gain", "largest difference of one cell", "better / worse", "interval excludes zero"),
]


def _gain_rows(one: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for versus in one["versus"]:
        if "gain" not in versus:
            continue
        gain = versus["gain"]
        rows.append(
            [
                f"`{versus['protocol']}`",
                f"`{versus['reference']}`",
                str(versus["n"]),
                f"{gain['ours']:.2f} / {gain['reference']:.2f}",
                _figure(gain["gain"], sign=True),
                f"{gain['median']:+.2f}",
                f"{gain['largest']:+.2f}",
                f"{gain['better']} / {gain['worse']}",
                "yes" if gain["excludes_zero"] else "no",
            ]
        )
    return rows


def _taus(ranked: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for versus in ranked:
        taus = {point["share"]: tau_text(point["tau"]["value"], point["n"]) for point in versus["tau"]}
        seeds = versus["agreement"][0]
        rows.append(
            [
                f"`{versus['protocol']}`",
                f"`{versus['reference']}`",
                versus["ranked_by"],
                *(taus[share] for share in _SHOWN),
                *(tau_text(seeds["within"][name], seeds["n"]) for name in (versus["protocol"], versus["reference"])),
            ]
        )
    head = ["protocol", "reference", "ranked by", *(f"top {share}%" for share in _SHOWN)]
    return markdown_table([*head, "seeds of the protocol", "seeds of the reference"], rows)


def _gaps(ranked: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for versus in ranked:
        own, other = versus["gaps"][versus["protocol"]], versus["gaps"][versus["reference"]]
        row = [f"`{versus['protocol']}`", f"`{versus['reference']}`"]
        rows.append([*row, *(f"{gaps[name]:.2f}" for gaps in (own, other) for name in ("mean", "median"))])
    head = ["protocol", "reference", "mean gap, points", "median", "the reference's mean gap", "median"]
    return markdown_table(head, rows)


def _published(one: Mapping[str, Any]) -> str:
    rows = []
    for label, against in one["table"].items():
        if not against["n"]:
            continue
        searches = against.get("searches", {})
        places = ", ".join(
            f"{own['algorithm']} {own['place_before']} to {own['place_after']}" for own in searches.get("standings", ())
        )
        rows.append(
            [
                f"`{label}`",
                str(against["n"]),
                f"{against['mean_absolute_difference']:.2f}",
                f"{against['mean_difference']:+.2f}",
                tau_text(against["kendall"], against["n"]),
                tau_text(searches.get("tau"), searches.get("distinct", 0)),
                places or "–",
            ]
        )
    head = ["protocol", "cells", "mean absolute difference to the table", "mean difference", "Kendall's tau"]
    return markdown_table([*head, "tau of searches' picks", "places of search algorithms"], rows)


def _tuned(tuned: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for one in tuned:
        losses = ", ".join(f"{lr:.3g}: {'diverged' if loss is None else f'{loss:.3f}'}" for lr, loss in one["losses"])
        rows.append([f"`{one['protocol']}`", one["base"], str(one["epochs"]), losses])
    head = ["protocol", "base cell", "epochs", "mean training loss of the last epoch by rate"]
    return "Base rates were searched on one cell:\n\n" + markdown_table(head, rows)


def _figure(figure: Mapping[str, float | None], *, sign: bool = False) -> str:
    value, low, high = figure["value"], figure["low"], figure["high"]
    if value is None:
        return "–"
    form = "{:+.2f}" if sign else "{:.2f}"
    if low is None or high is None:
        return form.format(value)
    return f"{form.format(value)} ({form.format(low)} to {form.format(high)})"


def tau_text(value: float | None, count: int) -> str:
    """Return a tau with the number of architectures that it is of."""
    return "–" if value is None else f"{value:.2f} ({count})"
