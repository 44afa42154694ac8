"""The benchmark on networks that people train, shown: tables in Markdown and CSV, and a picture of all curves."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from evenstep.report.marks import Marks
from evenstep.report.table import markdown_table
from evenstep_research.study.real.results import TABLE, mean_of, table_row

_PANELS = 6  # in a row of the picture
_PLAN, _TUNED = "#1b6ca8", "#c9702b"
COLUMN_NAMES = {
    "tuned": "tuned (at)",
    "default": "default",
    "constant": "constant",
    "mup": "mup",
    "prodigy": "Prodigy",
    "plan": "plan",
    "best_multiple_loss": "plan, best multiple (at)",
}


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write every row of a record as one of a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, TABLE)
        writer.writeheader()
        writer.writerows(table_row(dict(row)) for row in rows)


def markdown(record: Mapping[str, Any]) -> str:
    """Return a record's tables: where it was made, every row by optimiser and steps, and what is missing."""
    results = record["results"]
    parts = [_certificate(record)]
    groups = dict.fromkeys((row["steps"], row["optimizer"]) for row in results["rows"])
    for steps, optimizer in sorted(groups):
        rows = [row for row in results["rows"] if (row["steps"], row["optimizer"]) == (steps, optimizer)]
        table = markdown_table(
            ["network", *COLUMN_NAMES.values()],
            [[row["network"], *(shown(row, name) for name in COLUMN_NAMES)] for row in rows],
        )
        parts.append(f"### {optimizer.capitalize()}, {steps} steps\n\n{table}")
    if results["missing"]:
        parts.append("Not measured yet: " + "; ".join(results["missing"]) + ".")
    return "\n\n".join(parts)


def glance(record: Mapping[str, Any]) -> str:
    """Return the summary of a record: what plans are worth for each optimiser and number of steps."""
    head = ["optimizer", "steps", "networks", "mean above tuned", "worst", "mean above best multiple"]
    rows = []
    for line in record["results"]["summary"]:
        worst = _signed(line["worst_above_tuned"])
        rows.append(
            [
                line["optimizer"],
                str(line["steps"]),
                f"{line['n']} of {line['rows']}",
                _signed(line["mean_above_tuned"]),
                worst if line["worst_network"] is None else f"{worst} ({line['worst_network']})",
                _signed(line["mean_above_best_multiple"]),
                *(f"{won} of {n}" for won, n in (line[f"beats_{other}"] for other in ("tuned", "default", "prodigy"))),
            ]
        )
    return markdown_table([*head, "beats tuned", "beats default", "beats Prodigy"], rows)


# What a page may ask for, by scale.
_MARKS: Mapping[str, Marks] = {
    "full": {"real glance": glance, "real table": markdown},
    "cpu": {"real cpu glance": glance, "real cpu table": markdown},
    "smoke": {"real smoke glance": glance, "real smoke table": markdown},
}


def real_marks(scale: str) -> Marks:
    """Return the tables that a run has for pages, by the names they are asked for with."""
    return _MARKS[scale]


def shown(row: Mapping[str, Any], column: str) -> str:
    """Return a cell as text: the mean over seeds, its spread, and where; a dash where it is missing."""
    cell = row["cells"][column]
    if cell is None:
        return "–"
    if cell["diverged"]:
        return f"diverged [{cell['diverged']} of {cell['n']}]"
    text = f"{cell['mean']:.3f}" + ("" if cell["spread"] is None else f" ± {cell['spread']:.3f}")
    where = {"tuned": row["tuned_lr"], "best_multiple_loss": row["best_multiple"]}.get(column)
    return text if where is None else f"{text} ({where:.3g})"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}"


def _certificate(record: Mapping[str, Any]) -> str:
    config = record["config"]
    where = (
        f"{one['device']}, torch {one['torch']}, commit {one['commit'] or 'unknown'}"
        for one in record["results"]["measured_on"]
    )
    return (
        f"Scale `{config['scale']}`: {'; '.join(config['data'])}; {config['precision']}, {config['seeds']} seeds "
        f"(means ± standard deviations). Measured on: {'; '.join(where)}."
    )


def draw_real(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the picture of a record: a panel for every row, loss over multiples of the plan."""
    columns = min(_PANELS, len(rows))
    lines = math.ceil(len(rows) / columns)
    figure = Figure(figsize=(2.7 * columns, 2.3 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for axes, row in zip(panels, rows, strict=False):
        _draw_row(axes, row)
    for axes in list(panels)[len(rows) :]:
        axes.set_axis_off()
    figure.savefig(path, dpi=110)


def _draw_row(axes: Axes, row: Mapping[str, Any]) -> None:
    """Draw one row: the curve of multiples, the plan marked on it, the tuned rate's loss as a line."""
    axes.set_title(f"{row['network']}, {row['optimizer']}, {row['steps']}", fontsize=7, loc="left")
    means = {
        multiple: sum(losses) / len(losses)
        for multiple, losses in row["multiples"]
        if len(losses) == row["seed_count"] and None not in losses
    }
    seeds = [(multiple, loss) for multiple, losses in row["multiples"] for loss in losses if loss is not None]
    axes.plot([m for m, _ in seeds], [loss for _, loss in seeds], ".", color=_PLAN, markersize=3, alpha=0.5)
    axes.plot(list(means), list(means.values()), "-", color=_PLAN, linewidth=1)
    plan, tuned = row["cells"]["plan"], row["cells"]["tuned"]
    if plan is not None and not plan["diverged"]:
        axes.plot([1], [plan["mean"]], "o", color=_PLAN, markersize=5)
    if tuned is not None and not tuned["diverged"]:
        axes.axhline(mean_of(tuned), color=_TUNED, linewidth=1)
    tried = [1.0, *(multiple for multiple, _ in row["multiples"])]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(tried) / 1.5, max(tried) * 1.5)
    axes.xaxis.set_minor_locator(NullLocator())
    heights = [loss for _, loss in seeds] + ([mean_of(tuned)] if tuned and not tuned["diverged"] else [])
    if heights:  # what ends above guessing is cut off: the bottom is what counts
        low, high = min(heights), min(max(heights), row["guessing"])
        axes.set_ylim(low - 0.05 * max(high - low, 0.01), high + 0.05 * max(high - low, 0.01))
    axes.tick_params(labelsize=6)
