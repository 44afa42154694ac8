"""The paper's figures shown: a picture in the paper's form, and the table of correlations."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evenstep.report.marks import Marks
from evenstep.report.table import markdown_table
from evenstep_research.report.transfer import COLOURS, log_axes, shown
from evenstep_research.study.figures.catalogue import FIGURES, PaperFigure
from evenstep_research.study.figures.figure_result import RULES, FigureResult, spread_over_seeds

ONE_RATE = "-one-rate"  # what the folders of runs at one rate for all layers end with
DOT, PER_OCTAVE = 3.0, 14.0  # points: a dot's radius where seeds agree, and what an octave of spread adds


def draw_figure(figure_result: FigureResult, path: Path) -> None:
    """Write the picture: estimates over searched rates, the identity, dots as large as seeds differ."""
    figure = Figure(figsize=(5.6, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    known = figure_result.family_result.known
    true = [measured.true_lr for measured in known if measured.true_lr is not None]
    sizes = [(2 * (DOT + PER_OCTAVE * spread_over_seeds(measured))) ** 2 for measured in known]
    values = figure_result.family_result.summary()
    every = list(true)
    for name, meaning in RULES.items() if known else ():
        rates = [measured.choices[name].lr for measured in known]
        every += rates
        label = f"{meaning}: r = {shown(values[name]['pearson'].to_dict(), 2)}"
        axes.scatter(true, rates, s=sizes, color=COLOURS[name], alpha=0.55, linewidths=0, label=label)
    if every:
        ends = min(every) / 1.3, max(every) * 1.3
        axes.plot(ends, ends, "-", color="#b3261e", linewidth=1.0, zorder=0)
        axes.set(xlim=(min(true) / 1.3, max(true) * 1.3), ylim=ends)
        legend = axes.legend(frameon=False, fontsize=8)
        for handle in legend.legend_handles:
            handle.set_sizes([36.0])  # type: ignore[union-attr]
    log_axes(axes)
    axes.set(xlabel="searched maximal learning rate", ylabel="estimated learning rate")
    axes.set_title(
        f"{figure_result.figure.title} (n = {len(true)}; paper: r = {figure_result.figure.paper_r})",
        fontsize=9,
        loc="left",
    )
    figure.savefig(path, dpi=130)


def write_rows(figure_result: FigureResult, path: Path) -> None:
    """Write every architecture as one row of a CSV file."""
    rows = figure_result.rows()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def reproduction(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all figures: the paper's r, its rule's and ours here, 'not run here' without a record."""
    return _table([_row(figure, records.get(figure.name)) for figure in FIGURES])


def at_one_rate(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the same table of those figures that were also run at one rate for all layers."""
    runs = {figure: records[name] for figure in FIGURES if (name := figure.name + ONE_RATE) in records}
    return _table([_row(figure, record) for figure, record in runs.items()])


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = ["study", "networks", "paper's r", *(f"r, {meaning}" for meaning in RULES.values())]
    head += ["regret, paper's rule", "regret, ours", "n"]
    return markdown_table(head, rows)


def _row(figure: PaperFigure, record: Mapping[str, Any] | None) -> Sequence[str]:
    start = [f"`{figure.name}`", figure.title, f"{figure.paper_r:.3f}"]
    if record is None:
        return [*start, *["not run here"] * len(RULES), "", "", ""]
    methods = record["results"]["methods"]
    correlations = [shown(methods[name]["pearson"], interval=True) for name in RULES]
    regrets = [shown(methods[name]["mean_regret"], interval=True) for name in ("paths", "weighted")]
    return [*start, *correlations, *regrets, str(record["results"]["n"])]


MARKS: Marks = {"reproduction table": reproduction, "reproduction at one rate": at_one_rate}
