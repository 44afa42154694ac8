"""The paper's figures shown: a picture in the paper's form, and tables of correlations and regrets."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evenstep.report.marks import Marks
from evenstep.report.table import markdown_table
from evenstep_research.report.transfer import COLOURS, log_axes, shown
from evenstep_research.study.figures.catalogue import DATA_TITLES, FIGURES, PaperFigure
from evenstep_research.study.figures.figure_result import RULES, FigureResult, meanings, spread_over_seeds

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
    names = meanings(figure_result.family_result.family.setting.rates)
    for name in RULES if known else ():
        rates = [measured.choices[name].lr for measured in known]
        every += rates
        label = f"{names[name]}: r = {shown(values[name]['pearson'].to_dict(), 2)}"
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
        f"{figure_result.family_result.family.title} (n = {len(true)}; {paper_r(figure_result.figure)})",
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


def paper_r(figure: PaperFigure) -> str:
    """Return the paper's correlation with the data it is of.

    >>> paper_r(FIGURES[-1])
    'paper, on ImageNet: r = 0.729'
    """
    return f"paper, on {DATA_TITLES[figure.data]}: r = {figure.paper_r:.3f}"


def reproduction(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of all figures: correlations and regrets, 'not run here' without a record."""
    return _tables([(figure, records.get(figure.name)) for figure in FIGURES], "layers")


def at_one_rate(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the same tables of those figures that were also run at one rate for all layers."""
    runs = [(figure, records[name]) for figure in FIGURES if (name := figure.name + ONE_RATE) in records]
    return _tables(runs, "one")


Runs = Sequence[tuple[PaperFigure, Mapping[str, Any] | None]]


def _tables(runs: Runs, rates: str) -> str:
    names = meanings(rates)
    correlations = [*(_start(figure) for figure, _ in runs)]
    regrets = [[*start] for start in correlations]
    for (figure, record), r, regret in zip(runs, correlations, regrets, strict=True):
        r += [f"{figure.paper_r:.3f}", *_cells(record, RULES, "pearson")]
        regret += _cells(record, names, "mean_regret")
    start = ["study", "networks", "n"]
    for row, (_, record) in zip((*correlations, *regrets), (*runs, *runs), strict=True):
        row.insert(2, "" if record is None else str(record["results"]["n"]))
    return "\n\n".join(
        (
            "Pearson's r:",
            markdown_table([*start, "printed in the paper", *(names[name] for name in RULES)], correlations),
            "Mean regret, nats:",
            markdown_table([*start, *names.values()], regrets),
        )
    )


def _start(figure: PaperFigure) -> list[str]:
    return [f"`{figure.name}`", figure.titled(figure.data)]


def _cells(record: Mapping[str, Any] | None, names: Iterable[str], value: str) -> list[str]:
    """Return a row's figures; a dash stands for a method that the record has not."""
    if record is None:
        return ["not run here" for _ in names]
    methods = record["results"]["methods"]
    return [shown(methods[name][value], interval=True) if name in methods else "–" for name in names]


MARKS: Marks = {"reproduction table": reproduction, "reproduction at one rate": at_one_rate}
