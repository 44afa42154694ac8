"""The study of axes, shown: what was asked, powers, regrets, best rates, Muon's rates, and a picture of all curves."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evenstep.report.marks import Marks
from evenstep.report.table import markdown_table
from evenstep_research.study.axes.results import TABLE
from evenstep_research.study.axes.targets import OURS

_COLOURS = ("#1b6ca8", "#c9702b", "#3d8f4f", "#8a4fa3", "#7a7a7a")
_MUON = ("planned", "usual", "one rate", "tuned AdamW")
_PANEL = (3.0, 2.4)


def table_rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for every rule in every cell of a record's results."""
    return [
        {
            **{name: line[name] for name in ("axis", "kind", "optimizer")},
            **{"value": cell["value"], "rule": name, **{key: rule[key] for key in ("shape", "lr")}},
            **_losses(rule["losses"]),
            "best_lr": cell["best"][rule["shape"]]["lr"],
            "best_loss": cell["best"][rule["shape"]]["loss"],
            **{key: rule[key] for key in ("above_own_best", "above_best_of_all", "octaves")},
        }
        for line in results["lines"]
        for cell in line["cells"]
        for name, rule in cell["rules"].items()
    ]


def _losses(losses: Mapping[str, Any] | None) -> dict[str, Any]:
    names = {"loss": "mean", "spread": "spread", "n": "n", "diverged": "diverged"}
    return {name: None if losses is None else losses[key] for name, key in names.items()}


def write_table(results: Mapping[str, Any], path: Path) -> None:
    """Write every rule in every cell as a line of a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, TABLE)
        writer.writeheader()
        writer.writerows(table_rows(results))


def targets(record: Mapping[str, Any]) -> str:
    """Return what was asked of our rules, and whether it is so."""
    rows = [
        [line["what"], _number(line["limit"]), _number(line["measured"]), verdict(line["reached"]), line["note"]]
        for line in record["results"]["targets"]
    ]
    return f"{_certificate(record)}\n\n{markdown_table(['what', 'at most', 'measured', '', ''], rows)}"


def verdict(reached: bool | None) -> str:
    """Return whether a target is reached, in words."""
    return {True: "reached", False: "not reached", None: "not measured yet"}[reached]


def powers(record: Mapping[str, Any]) -> str:
    """Return the powers that best rates follow, on average and line by line."""
    found = record["results"]["powers"]
    head = ["axis", "optimiser", "start and shape", "networks", "mean power", "95% interval", "by network"]
    rows = []
    for line in found["summaries"]:
        key = ("axis", "optimizer", "shape")
        own = [p for p in found["lines"] if all(p[name] == line[name] for name in key)]
        between = "–" if line["low"] is None else f"{line['low']:+.2f} to {line['high']:+.2f}"
        each = ", ".join(f"{p['kind']} {p['power']:+.2f}" for p in own)
        rows.append([*(line[name] for name in key), str(line["n"]), f"{line['mean']:+.2f}", between, each])
    return markdown_table(head, rows) if rows else "*Not measured yet.*"


def regrets(record: Mapping[str, Any]) -> str:
    """Return what every rule loses on every axis, for each optimiser and for all."""
    parts = []
    scores = record["results"]["regrets"]
    for axis in dict.fromkeys(line["axis"] for line in scores):
        head = [
            "rule",
            "optimiser",
            "cells",
            "above its own best: mean",
            "worst",
            "above the best of all: mean",
            "worst",
        ]
        rows = [
            [line["rule"], line["optimizer"], _of(line)]
            + [
                _number(line[f"{how}_{name}"])
                for name in ("above_own_best", "above_best_of_all")
                for how in ("mean", "worst")
            ]
            + [_number(line["mean_octaves"], 2)]
            for line in scores
            if line["axis"] == axis and line["n"]
        ]
        if rows:
            parts.append(f"### {axis.capitalize()}\n\n{markdown_table([*head, 'mean octaves'], rows)}")
    missing = record["results"]["missing"]
    if missing:
        lines = dict.fromkeys(words.partition(":")[0].rpartition(", ")[0] for words in missing)
        parts.append(f"{len(missing)} cells are not whole, of these lines: {'; '.join(lines)}.")
    return "\n\n".join(parts) or "*Not measured yet.*"


def best_rates(record: Mapping[str, Any]) -> str:
    """Return the best rate of every cell, under our shape and from torch's own start."""
    rows = []
    for line in record["results"]["lines"]:
        for shape in ("weighted", "own"):
            rates = [cell["best"].get(shape, {}).get("lr") for cell in line["cells"]]
            if any(rate is not None for rate in rates):
                values = [
                    f"{cell['value']}: {_number(rate, 3, general=True)}"
                    for cell, rate in zip(line["cells"], rates, strict=True)
                ]
                rows.append([line["axis"], line["kind"], line["optimizer"], shape, ", ".join(values)])
    return markdown_table(["axis", "network", "optimiser", "start and shape", "best rates"], rows)


def muon(record: Mapping[str, Any]) -> str:
    """Return the losses of Muon at its planned rate and its usual ones, and of AdamW tuned."""
    head = ["network", "steps", "Muon, planned (base's rate)", "Muon, usual", "Muon, 0.02 for all", "AdamW, tuned (at)"]
    rows = []
    for row in record["results"]["muon"]:
        where = {"planned": row["base_lr"], "tuned AdamW": row["tuned_adamw_lr"]}
        cells = [_loss(row["cells"][name], where.get(name)) for name in _MUON]
        rows.append([row["network"], str(row["steps"]), *cells])
    return markdown_table(head, rows) if rows else "*Not measured yet.*"


def axes_marks(scale: str) -> Marks:
    """Return the tables that a run has for pages, by the names they are asked for with."""
    made = {"targets": targets, "powers": powers, "regrets": regrets, "rates": best_rates, "muon": muon}
    prefix = "axes" if scale == "full" else f"axes {scale}"
    return {f"{prefix} {name}": table for name, table in made.items()}


def _of(line: Mapping[str, Any]) -> str:
    return str(line["n"]) if line["n"] == line["cells"] else f"{line['n']} of {line['cells']}"


def _number(value: float | None, digits: int = 4, *, general: bool = False) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if general else f"{value:.{digits}f}"


def _loss(losses: Mapping[str, Any] | None, at: float | None) -> str:
    if losses is None:
        return "–"
    if losses["diverged"]:
        return f"diverged [{losses['diverged']} of {losses['n']}]"
    text = f"{losses['mean']:.3f}" + ("" if losses["spread"] is None else f" ± {losses['spread']:.3f}")
    return text if at is None else f"{text} ({at:.3g})"


def _certificate(record: Mapping[str, Any]) -> str:
    config = record["config"]
    commits: dict[str, list[str]] = {}
    for origin in record["results"]["measured_on"]:
        commits.setdefault(f"{origin['device']}, torch {origin['torch']}", []).append(origin["commit"] or "unknown")
    where = (f"{device}, commits {', '.join(names)}" for device, names in commits.items())
    seeds = ", ".join(f"{axis['name']} {axis['seeds']}" for axis in config["axes"])
    return (
        f"Scale `{config['scale']}`; {config['precision']}; seeds: {seeds}, Muon's table {config['muon_seeds']}. "
        f"Measured on: {'; '.join(where)}."
    )


def draw_axes(results: Mapping[str, Any], path: Path) -> None:
    """Write the picture: a panel for every line, loss over rate for each value, with what our rule carries marked."""
    lines = results["lines"]
    columns = max((sum(line["axis"] == axis for line in lines) for axis in {line["axis"] for line in lines}), default=1)
    axes = list(dict.fromkeys(line["axis"] for line in lines))
    size = (_PANEL[0] * columns, _PANEL[1] * max(len(axes), 1))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(max(len(axes), 1), columns, squeeze=False)
    for row, axis in zip(panels, axes, strict=False):
        some = [line for line in lines if line["axis"] == axis]
        for panel, line in zip(row, some, strict=False):
            _draw_line(panel, line)
        for panel in row[len(some) :]:
            panel.set_axis_off()
    figure.savefig(path, dpi=110)


def _draw_line(panel: Axes, line: Mapping[str, Any]) -> None:
    panel.set_title(f"{line['axis']}: {line['kind']}, {line['optimizer']}", fontsize=7, loc="left")
    heights = []
    for cell, colour in zip(line["cells"], _COLOURS, strict=False):
        for shape, style in (("weighted", "-"), ("own", ":")):
            points = [
                (lr, sum(losses) / len(losses))
                for lr, losses in cell["curves"].get(shape, [])
                if len(losses) == line["seeds"] and None not in losses
            ]
            if points:
                label = str(cell["value"]) if shape == "weighted" else None
                panel.plot(*zip(*points, strict=True), style, color=colour, linewidth=1, label=label)
                heights += [loss for _, loss in points]
        _mark(panel, cell, line["axis"], colour)
    panel.set_xscale("log", base=2)
    panel.tick_params(labelsize=6)
    finite = [height for height in heights if math.isfinite(height)]
    if finite:  # what ends above guessing is cut off: the bottom is what counts
        low, high = min(finite), min(max(finite), line["guessing"])
        panel.set_ylim(low - 0.05 * max(high - low, 0.01), high + 0.05 * max(high - low, 0.01))
        panel.legend(fontsize=5, frameon=False)


def _mark(panel: Axes, cell: Mapping[str, Any], axis: str, colour: str) -> None:
    """Mark the loss at the rate that our rule carries."""
    rule = cell["rules"].get(OURS[axis])
    if rule is not None and rule["losses"] is not None and not rule["losses"]["diverged"]:
        panel.plot([rule["lr"]], [rule["losses"]["mean"]], "o", color=colour, markersize=4)
