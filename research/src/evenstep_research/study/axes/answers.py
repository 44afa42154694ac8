"""A pure function from what is known to where the best rates are, what rules lose, and which runs can be asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from evenstep.rules.batch import BATCH_RULES
from evenstep.rules.length import LENGTH_RULES
from evenstep_research.study.axes.plans import USUAL, USUAL_MUON_RATE, PlanName, is_planned
from evenstep_research.study.axes.scales import DEFAULT, OWN, AxesScale, Line, MuonRow, Setup
from evenstep_research.study.real.answers import DEFAULT_RATES, Cell, RunCurve
from evenstep_research.study.real.curve import Point, octave_curve
from evenstep_research.study.real.runs import Run

# Where climbing begins on the smallest network; nothing else depends on it.
STARTS: Mapping[str, float] = {"adam": 0.004, "momentum": 0.1, "muon": 0.008}
NO_CHANGE = "none"


@dataclass(frozen=True)
class Question:
    """What a study asks: lines of a scale, whether Muon's usual rates too, plans' fingerprints, and the precision."""

    scale: AxesScale
    lines: tuple[Line, ...]
    muon: bool
    fingerprints: Mapping[PlanName, str]
    precision: str

    def run(self, setup: Setup, base: Setup, optimizer: str, shape: str, seed: int, lr: float) -> Run:
        """Return a run's name; rules whose plans agree share their runs."""
        setting = self.setting(setup)
        name = setup.network, base.network, optimizer, shape
        plan = self.fingerprints[name] if is_planned(optimizer, shape) else ""
        treatment = shape if shape in (OWN, USUAL) else "planned"
        return Run(setup.network, optimizer, setup.steps, seed, treatment, lr, setting, plan)

    def setting(self, setup: Setup) -> str:
        """Return what a network is trained on, in words."""
        return f"{self.scale.source(setup).words}, {self.precision}"

    @cached_property
    def setups(self) -> Mapping[tuple[str, str, int], Setup]:
        """Every setup by what its runs say of it: network, setting, steps."""
        setups = [line.setup(value) for line in self.lines for value in line.axis.values]
        setups += [setup for row in self.rows for setup in (row.setup, row.base)]
        return {(setup.network, self.setting(setup), setup.steps): setup for setup in setups}

    @property
    def rows(self) -> tuple[MuonRow, ...]:
        """The networks that Muon is compared on."""
        return self.scale.muon if self.muon else ()


@dataclass(frozen=True)
class Carried:
    """Hold the rate that a rule carries to a cell, under the shape of whose plan, and the losses there."""

    shape: str
    lr: float
    cell: Cell


@dataclass(frozen=True)
class CellAnswer:
    """Hold one value of an axis: the curve of every shape, and what rules carry there (nothing to the smallest).

    `waiting` names the shapes that have no curve yet, because the smallest cell's is not known.
    """

    value: int
    curves: Mapping[str, RunCurve]
    carried: Mapping[str, Carried]
    waiting: tuple[str, ...] = ()

    def least(self, shape: str) -> float | None:
        """Return the smallest mean loss measured under a shape; None while its curve is not known."""
        curve = self.curves.get(shape)
        if curve is None or curve.wanted:
            return None
        cells = (carried.cell.losses for carried in self.carried.values() if carried.shape == shape)
        return min([*curve.curve.means.values(), *(_mean(losses) for losses in cells if losses)], default=math.inf)

    @property
    def least_of_all(self) -> float | None:
        """The smallest mean loss under any shape; None while one of them is not known."""
        least = [self.least(shape) for shape in self.curves]
        known = [loss for loss in least if loss is not None]
        return min(known) if known and len(known) == len(least) and not self.waiting else None

    def regrets(self, rule: str, guessing: float) -> tuple[float | None, float | None]:
        """Return a rule's loss above the least under its own shape, and above the least of all.

        A run that diverged counts as `guessing`.
        """
        carried = self.carried[rule]
        if not carried.cell.losses:
            return None, None
        loss = _mean(tuple(loss if math.isfinite(loss) else guessing for loss in carried.cell.losses))
        own, every = self.least(carried.shape), self.least_of_all
        return None if own is None else loss - own, None if every is None else loss - every

    @property
    def wanted(self) -> Iterator[Run]:
        """The runs that can be asked for now."""
        for curve in self.curves.values():
            yield from curve.wanted
        for carried in self.carried.values():
            yield from carried.cell.wanted

    @property
    def used(self) -> Iterator[Run]:
        """The runs that the numbers are made of."""
        for curve in self.curves.values():
            yield from curve.used
        for carried in self.carried.values():
            yield from (run for run in carried.cell.runs if run not in carried.cell.wanted)


@dataclass(frozen=True)
class LineAnswer:
    """Hold the cells of a line, the smallest first."""

    line: Line
    cells: tuple[CellAnswer, ...]


@dataclass(frozen=True)
class MuonAnswer:
    """Hold what is known of one network under Muon and AdamW; the cells' losses stand under what was done."""

    row: MuonRow
    base: RunCurve
    tuned_adamw: RunCurve
    cells: Mapping[str, Cell]

    @property
    def wanted(self) -> Iterator[Run]:
        """The runs that can be asked for now."""
        for curve in (self.base, self.tuned_adamw):
            yield from curve.wanted
        for cell in self.cells.values():
            yield from cell.wanted

    @property
    def used(self) -> Iterator[Run]:
        """The runs that the numbers are made of."""
        for curve in (self.base, self.tuned_adamw):
            yield from curve.used
        for cell in self.cells.values():
            yield from (run for run in cell.runs if run not in cell.wanted)


@dataclass(frozen=True)
class AxesAnswers:
    """Hold all lines and rows as far as they are known."""

    lines: tuple[LineAnswer, ...]
    muon: tuple[MuonAnswer, ...]

    @cached_property
    def wanted(self) -> tuple[Run, ...]:
        """All runs that can be asked for now, line by line; those from torch's own start last."""
        runs = [run for line in self.lines for cell in line.cells for run in cell.wanted]
        runs += [run for row in self.muon for run in row.wanted]
        return tuple(dict.fromkeys(sorted(runs, key=lambda run: run.treatment == OWN)))

    @cached_property
    def used(self) -> tuple[Run, ...]:
        """All runs that the numbers are made of."""
        runs = [run for line in self.lines for cell in line.cells for run in cell.used]
        return tuple(dict.fromkeys((*runs, *(run for row in self.muon for run in row.used))))


def answers(question: Question, known: Mapping[Run, float]) -> AxesAnswers:
    """Return what is known of every line and row, and with it what is wanted."""
    lines = tuple(_line(question, line, known) for line in question.lines)
    return AxesAnswers(lines, tuple(_muon(question, row, known) for row in question.rows))


def _line(question: Question, line: Line, known: Mapping[Run, float]) -> LineAnswer:
    first, *others = line.axis.values
    base, seeds = line.setup(first), line.axis.seeds
    start = STARTS[line.optimizer]
    curves = {
        shape: _curve(question, base, base, line.optimizer, shape, start, known, seeds=seeds, centre=False)
        for shape in line.axis.shapes
    }
    rates = {shape: curve.rate for shape, curve in curves.items() if curve.rate is not None}
    waiting = tuple(shape for shape, curve in curves.items() if curve.wanted)
    cells = [CellAnswer(first, curves, {})]
    for value in others:
        setup = line.setup(value)
        at = {
            shape: _curve(question, setup, base, line.optimizer, shape, rate, known, seeds=seeds, centre=True)
            for shape, rate in rates.items()
        }
        carried = {
            name: Carried(shape, lr, _cell(question, setup, base, line.optimizer, shape, lr, known, seeds=seeds))
            for name, (shape, lr) in _carried(line, value, rates).items()
        }
        cells.append(CellAnswer(value, at, carried, waiting))
    return LineAnswer(line, tuple(cells))


def _carried(line: Line, value: int, rates: Mapping[str, float]) -> dict[str, tuple[str, float]]:
    """Return the shape and the rate that every rule carries from the smallest cell to a value."""
    carried = {shape: (shape, rate) for shape, rate in rates.items()}
    if line.axis.of_size or DEFAULT not in rates:
        return carried
    rate, first, optimizer = rates[DEFAULT], line.axis.values[0], line.optimizer
    if line.axis.name == "batch":
        factors = {n: r.factor(value, searched=first, optimizer=optimizer).value for n, r in BATCH_RULES.items()}
    else:
        factors = {n: r.factor(value, searched=first, optimizer=optimizer).value for n, r in LENGTH_RULES.items()}
    return {name: (DEFAULT, rate * factor) for name, factor in ({NO_CHANGE: 1.0} | factors).items()}


def _muon(question: Question, row: MuonRow, known: Mapping[Run, float]) -> MuonAnswer:
    seeds, setup = question.scale.muon_seeds, row.setup
    base = _curve(question, row.base, row.base, "muon", DEFAULT, STARTS["muon"], known, seeds=seeds, centre=False)
    start = DEFAULT_RATES["adam"]  # as in the study of real networks, so that runs of one serve the other
    tuned = _curve(question, setup, setup, "adam", OWN, start, known, seeds=seeds, centre=False)
    cells = {
        "usual": _cell(question, setup, setup, "muon", USUAL, 1.0, known, seeds=seeds),
        "one rate": _cell(question, setup, setup, "muon", OWN, USUAL_MUON_RATE, known, seeds=seeds),
    }
    if base.rate is not None:
        cells["planned"] = _cell(question, setup, row.base, "muon", DEFAULT, base.rate, known, seeds=seeds)
    return MuonAnswer(row, base, tuned, cells)


def _cell(
    question: Question,
    setup: Setup,
    base: Setup,
    optimizer: str,
    shape: str,
    lr: float,
    known: Mapping[Run, float],
    *,
    seeds: int,
) -> Cell:
    runs = tuple(question.run(setup, base, optimizer, shape, seed, lr) for seed in range(seeds))
    return Cell(runs, tuple(known.get(run) for run in runs))


def _curve(
    question: Question,
    setup: Setup,
    base: Setup,
    optimizer: str,
    shape: str,
    start: float,
    known: Mapping[Run, float],
    *,
    seeds: int,
    centre: bool,
) -> RunCurve:
    def run(point: Point) -> Run:
        position, seed = point
        return question.run(setup, base, optimizer, shape, seed, start * 2.0**position)

    curve = octave_curve(lambda point: known.get(run(point)), seeds=seeds, centre=centre)
    return RunCurve(start, curve, tuple(map(run, curve.losses)), tuple(map(run, curve.missing)))


def _mean(losses: tuple[float, ...]) -> float:
    return sum(losses) / len(losses)
