"""What a study says, as plain values: rows with their spread, curves, bases' rates, what is missing, and a summary."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from evenstep.search import plain_values
from evenstep_research.study.real.answers import RowAnswer, RunCurve
from evenstep_research.study.real.benchmark import RealResult
from evenstep_research.study.real.training import COUNTED, WARM_UP

COLUMNS = ("tuned", "default", "constant", "mup", "prodigy", "plan", "best_multiple_loss")
TABLE = (
    *("network", "optimizer", "steps", "seed_count", "tuned", "tuned_lr", "default", "constant", "mup", "prodigy"),
    *("plan", "best_multiple", "best_multiple_loss"),
)


def config_of(result: RealResult) -> dict[str, Any]:
    """Return what was asked, as a record has it."""
    question = result.question
    used = dict.fromkeys(row.network.data for row in question.rows)
    return {
        "scale": question.scale.name,
        "seeds": question.seeds,
        "data": [question.scale.sources[data].words for data in used],
        "precision": question.precision,
        "protocol": {"warm_up": WARM_UP, "decay": "cosine to zero", "loss": f"mean of the last {COUNTED:.4g} of steps"},
        "rows": [[row.network.name, row.optimizer, row.steps] for row in question.rows],
    }


def results_of(result: RealResult) -> dict[str, Any]:
    """Return what came out, as a record has it."""
    rows = [_row(answer, result.question.seeds) for answer in result.answers.rows]
    return {
        "rows": rows,
        "bases": _bases(result),
        "summary": summary(rows),
        "missing": [line for row in rows for line in _missing(row)],
        "measured_on": [asdict(origin) for origin in result.origins],
    }


def table_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record's row as one of the table: mean losses, `inf` where a run diverged, None where one is missing."""
    cells = {name: None if cell is None else mean_of(cell) for name, cell in row["cells"].items()}
    return {name: cells[name] if name in cells else row[name] for name in TABLE}


def mean_of(cell: dict[str, Any]) -> float:
    """Return a cell's mean loss, infinite if one of its runs diverged."""
    return math.inf if cell["diverged"] else float(cell["mean"])


def _row(answer: RowAnswer, seeds: int) -> dict[str, Any]:
    row, losses = answer.row, {name: cell.losses for name, cell in answer.cells.items()}
    tuned = answer.tuned.best
    multiple = answer.multiples.best if answer.multiples else None
    if tuned is not None:
        losses["tuned"] = tuned[1]
    if multiple is not None:
        losses["best_multiple_loss"] = multiple[1]
    return {
        "network": row.network.name,
        "kind": row.network.kind,
        "optimizer": row.optimizer,
        "steps": row.steps,
        "guessing": math.log(row.network.classes),
        "seed_count": seeds,
        "cells": {name: _cell(losses.get(name, ())) for name in COLUMNS},
        "tuned_lr": None if tuned is None else tuned[0],
        "best_multiple": None if multiple is None or answer.multiples is None else multiple[0] / answer.multiples.start,
        "tuned_curve": _curve(answer.tuned, answer.tuned.start),
        "multiples": _curve(answer.multiples, 1.0) if answer.multiples else [],
        "base_lr": {rule: curve.rate for rule, curve in answer.bases.items()},
        "without_rate": _without_rate(answer),
    }


def _cell(losses: Sequence[float]) -> dict[str, Any] | None:
    """Return the mean over seeds and their standard deviation; None where a run is missing."""
    if not losses:
        return None
    diverged = sum(not math.isfinite(loss) for loss in losses)
    spread = statistics.stdev(losses) if len(losses) > 1 and not diverged else None
    mean = None if diverged else statistics.fmean(losses)
    return {"mean": mean, "spread": spread, "n": len(losses), "diverged": diverged}


def _curve(curve: RunCurve, start: float) -> list[list[Any]]:
    """Return rates (or multiples) in their order, each with the losses of the seeds that tried it."""
    positions = sorted({position for position, _ in curve.curve.losses})
    return [
        [start * 2.0**position, [plain_values.finite_or_none(loss) for loss in curve.curve.at(position)]]
        for position in positions
    ]


def _without_rate(answer: RowAnswer) -> list[str]:
    """Return what has no rate however long one measures: every one that was tried diverged."""
    curves = {f"the base's rate for '{rule}'": curve for rule, curve in answer.bases.items()}
    curves |= {"the tuned rate": answer.tuned}
    if answer.multiples:
        curves["the best multiple"] = answer.multiples
    return [name for name, curve in curves.items() if not curve.wanted and curve.rate is None]


def _bases(result: RealResult) -> list[dict[str, Any]]:
    bases = {}
    for answer in result.answers.rows:
        row = answer.row
        for rule, curve in answer.bases.items():
            name = result.question.scale.bases[row.network.kind].name
            bases[name, row.optimizer, row.steps, rule] = {
                "network": name,
                "optimizer": row.optimizer,
                "steps": row.steps,
                "rule": rule,
                "lr": curve.rate,
                "curve": _curve(curve, curve.start),
            }
    return list(bases.values())


def _missing(row: dict[str, Any]) -> Iterator[str]:
    """Yield what a row lacks, in words."""
    name = f"{row['network']}, {row['optimizer']}, {row['steps']} steps"
    if lost := [column for column, cell in row["cells"].items() if cell is None]:
        why = f" ({', '.join(row['without_rate'])}: all diverged)" if row["without_rate"] else ""
        yield f"{name}: {', '.join(lost)}{why}"


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for every optimiser and number of steps what plans are worth, over the rows that have the numbers.

    Losses are differences in nats; a run that diverged counts as guessing.
    """
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["optimizer"], row["steps"]), []).append(row)
    return [{"optimizer": optimizer, "steps": steps} | _group(some) for (optimizer, steps), some in groups.items()]


def _group(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    against = {other: _differences(rows, other) for other in ("tuned", "best_multiple_loss", "default", "prodigy")}
    tuned, multiple = against["tuned"], against["best_multiple_loss"]
    worst = max(tuned, key=lambda network: tuned[network]) if tuned else None
    return {
        "n": len(tuned),
        "rows": len(rows),
        "mean_above_tuned": _mean(tuned),
        "worst_above_tuned": None if worst is None else tuned[worst],
        "worst_network": worst,
        "mean_above_best_multiple": _mean(multiple),
        "beats_tuned": _won(tuned),
        "beats_default": _won(against["default"]),
        "beats_prodigy": _won(against["prodigy"]),
        "diverged": sum(bool(row["cells"]["plan"] and row["cells"]["plan"]["diverged"]) for row in rows),
    }


def _differences(rows: Sequence[dict[str, Any]], other: str) -> dict[str, float]:
    """Return the plan's loss minus another column's, for every network that has both."""
    both = [row for row in rows if row["cells"]["plan"] and row["cells"][other]]
    return {row["network"]: _counted(row, "plan") - _counted(row, other) for row in both}


def _counted(row: dict[str, Any], column: str) -> float:
    loss = mean_of(row["cells"][column])
    return loss if math.isfinite(loss) else float(row["guessing"])


def _mean(differences: dict[str, float]) -> float | None:
    return statistics.fmean(differences.values()) if differences else None


def _won(differences: dict[str, float]) -> list[int]:
    """Return how often the plan ends lower, and of how many."""
    return [sum(difference < 0 for difference in differences.values()), len(differences)]
