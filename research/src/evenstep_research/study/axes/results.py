"""What a study says, as plain values: cells with their best rates, what rules lose there, powers, Muon, what lacks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from evenstep.search.plain_values import finite_or_none
from evenstep_research.study.axes.answers import AxesAnswers, Carried, CellAnswer, LineAnswer, MuonAnswer, Question
from evenstep_research.study.axes.benchmark import AxesResult
from evenstep_research.study.axes.powers import powers, summaries
from evenstep_research.study.axes.targets import targets
from evenstep_research.study.real.answers import Cell, RunCurve
from evenstep_research.study.real.networks import RealNetwork
from evenstep_research.study.real.training import COUNTED, WARM_UP

TABLE = (
    *("axis", "kind", "optimizer", "value", "rule", "shape", "lr", "loss", "spread", "n", "diverged"),
    *("best_lr", "best_loss", "above_own_best", "above_best_of_all", "octaves"),
)


def config_of(result: AxesResult) -> dict[str, Any]:
    """Return what was asked, as a record has it."""
    question = result.question
    axes = dict.fromkeys(line.axis for line in question.lines)
    return {
        "scale": question.scale.name,
        "axes": [asdict(axis) for axis in axes],
        "lines": [line.words for line in question.lines],
        "muon": [asdict(row) for row in question.rows],
        "muon_seeds": question.scale.muon_seeds,
        "data": sorted({question.scale.source(line.setup(line.axis.values[0])).words for line in question.lines}),
        "precision": question.precision,
        "protocol": {"warm_up": WARM_UP, "decay": "cosine to zero", "loss": f"mean of the last {COUNTED:.4g} of steps"},
    }


def results_of(result: AxesResult) -> dict[str, Any]:
    """Return what came out, as a record has it."""
    question, known = result.question, result.answers
    lines = [_line(question, answer) for answer in known.lines]
    regrets = list(_regrets(lines))
    of_lines = powers(known.lines)
    axes = list(dict.fromkeys(line["axis"] for line in lines))
    return {
        "targets": [asdict(target) | {"reached": target.reached} for target in targets(regrets, axes)],
        "regrets": regrets,
        "powers": {"lines": [asdict(p) for p in of_lines], "summaries": [asdict(s) for s in summaries(of_lines)]},
        "muon": [_muon(answer) for answer in known.muon],
        "lines": lines,
        "missing": list(_missing(known)),
        "measured_on": [asdict(origin) for origin in result.origins],
    }


def _line(question: Question, answer: LineAnswer) -> dict[str, Any]:
    line = answer.line
    network = question.scale.network(line.setup(line.axis.values[0]).network)
    return {
        "axis": line.axis.name,
        "kind": line.kind,
        "optimizer": line.optimizer,
        "seeds": line.axis.seeds,
        "guessing": _guessing(network),
        "cells": [_cell(cell, line.setup(cell.value).network, _guessing(network)) for cell in answer.cells],
    }


def _guessing(network: RealNetwork) -> float:
    return math.log(network.classes)


def _cell(cell: CellAnswer, network: str, guessing: float) -> dict[str, Any]:
    return {
        "value": cell.value,
        "network": network,
        "best": {
            shape: {"lr": curve.rate, "loss": None if (least := cell.least(shape)) is None else finite_or_none(least)}
            for shape, curve in cell.curves.items()
        },
        "curves": {shape: _curve(curve) for shape, curve in cell.curves.items()},
        "rules": {name: _rule(cell, name, carried, guessing) for name, carried in cell.carried.items()},
    }


def _rule(cell: CellAnswer, name: str, carried: Carried, guessing: float) -> dict[str, Any]:
    """Return what a rule carries to a cell and what that loses; a run that diverged counts as guessing."""
    own, every = cell.regrets(name, guessing)
    best = cell.curves[carried.shape].rate
    octaves = None if best is None else math.log2(carried.lr / best)
    return {
        "shape": carried.shape,
        "lr": carried.lr,
        "losses": losses_of(carried.cell),
        "above_own_best": own,
        "above_best_of_all": every,
        "octaves": octaves,
    }


def losses_of(cell: Cell) -> dict[str, Any] | None:
    """Return the mean over seeds and their standard deviation; None where a run is missing."""
    losses = cell.losses
    if not losses:
        return None
    diverged = sum(not math.isfinite(loss) for loss in losses)
    spread = statistics.stdev(losses) if len(losses) > 1 and not diverged else None
    return {"mean": None if diverged else statistics.fmean(losses), "spread": spread, "n": len(losses)} | {
        "diverged": diverged
    }


def _curve(curve: RunCurve) -> list[list[Any]]:
    """Return rates in their order, each with the losses of the seeds that tried it."""
    positions = sorted({position for position, _ in curve.curve.losses})
    return [
        [curve.start * 2.0**position, [finite_or_none(loss) for loss in curve.curve.at(position)]]
        for position in positions
    ]


def _regrets(lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the mean and worst regrets of every rule: axis by axis, for each optimiser and for all."""
    for axis in dict.fromkeys(line["axis"] for line in lines):
        some = [line for line in lines if line["axis"] == axis]
        for optimizer in ("all", *dict.fromkeys(line["optimizer"] for line in some)):
            chosen = [line for line in some if optimizer in ("all", line["optimizer"])]
            cells = [cell for line in chosen for cell in line["cells"][1:]]
            for rule in dict.fromkeys(rule for cell in cells for rule in cell["rules"]):
                entries = [cell["rules"][rule] for cell in cells if rule in cell["rules"]]
                whole = [entry for entry in entries if entry["above_own_best"] is not None]
                yield (
                    {"axis": axis, "optimizer": optimizer, "rule": rule, "n": len(whole), "cells": len(cells)}
                    | {
                        f"{how.__name__.replace('fmean', 'mean').replace('max', 'worst')}_{name}": _over(
                            how, whole, name
                        )
                        for name in ("above_own_best", "above_best_of_all")
                        for how in (statistics.fmean, max)
                    }
                    | {"mean_octaves": _over(statistics.fmean, whole, "octaves")}
                )


def _over(how: Any, entries: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [entry[name] for entry in entries if entry[name] is not None]
    return float(how(map(abs, values) if name == "octaves" else values)) if values else None


def _muon(answer: MuonAnswer) -> dict[str, Any]:
    cells = {name: losses_of(cell) for name, cell in answer.cells.items()}
    best = answer.tuned_adamw.best
    tuned = None if best is None else losses_of(Cell((), best[1]))
    return {
        "network": answer.row.setup.network,
        "base": answer.row.base.network,
        "steps": answer.row.setup.steps,
        "batch": answer.row.setup.batch,
        "base_lr": answer.base.rate,
        "tuned_adamw_lr": None if best is None else best[0],
        "cells": {name: cells.get(name) for name in ("planned", "usual", "one rate")} | {"tuned AdamW": tuned},
        "base_curve": _curve(answer.base),
        "tuned_adamw_curve": _curve(answer.tuned_adamw),
    }


def _missing(known: AxesAnswers) -> Iterator[str]:
    """Yield what lines and rows lack, in words."""
    for answer in known.lines:
        for cell in answer.cells:
            what = f"{answer.line.words}, {cell.value}"
            wanted = [shape for shape, curve in cell.curves.items() if curve.wanted]
            wanted += [name for name, carried in cell.carried.items() if carried.cell.wanted and name not in wanted]
            shapes = answer.line.axis.shapes
            flat = [s for s in shapes if s not in (*wanted, *cell.waiting) and _without_rate(cell, s)]
            if lost := (*wanted, *cell.waiting):
                yield f"{what}: {', '.join(dict.fromkeys(lost))}"
            if flat:
                yield f"{what}: {', '.join(flat)} (all diverged)"
    for row in known.muon:
        if any(True for _ in row.wanted):
            yield f"Muon, {row.row.setup.network}"


def _without_rate(cell: CellAnswer, shape: str) -> bool:
    """Return whether all rates of a shape diverged, here or on the smallest cell."""
    return shape not in cell.curves or cell.curves[shape].rate is None
