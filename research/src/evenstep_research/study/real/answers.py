"""A pure function from what is known to what the table says so far, and to the runs that can be asked for now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from evenstep_research.study.real.curve import OctaveCurve, Point, octave_curve
from evenstep_research.study.real.plans import PLANNED, PlanName
from evenstep_research.study.real.runs import Run
from evenstep_research.study.real.scales import RealOptimizer, RealScale, Row

DEFAULT_RATES: Mapping[RealOptimizer, float] = {"adam": 1e-3, "momentum": 0.1}
PRODIGY_RATE = 1.0


@dataclass(frozen=True)
class Question:
    """What a study asks: rows of a scale, with so many seeds; plans' fingerprints, and the precision of training."""

    scale: RealScale
    rows: tuple[Row, ...]
    seeds: int
    fingerprints: Mapping[PlanName, str]
    precision: str

    def run(self, row: Row, seed: int, treatment: str, lr: float) -> Run:
        """Return a run's name."""
        setting = f"{self.scale.sources[row.network.data].words}, {self.precision}"
        optimizer = "prodigy" if treatment == "prodigy" else row.optimizer
        plan = self.fingerprints[row.network.name, row.optimizer, treatment] if treatment in PLANNED else ""
        return Run(row.network.name, optimizer, row.steps, seed, treatment, lr, setting, plan)


@dataclass(frozen=True)
class Cell:
    """Hold one run for every seed, and the losses of those that are known."""

    runs: tuple[Run, ...]
    known: tuple[float | None, ...]

    @property
    def losses(self) -> tuple[float, ...]:
        """The losses in the seeds' order, empty while one is missing."""
        return () if None in self.known else tuple(loss for loss in self.known if loss is not None)

    @property
    def wanted(self) -> tuple[Run, ...]:
        """The runs that are not known."""
        return tuple(run for run, loss in zip(self.runs, self.known, strict=True) if loss is None)


@dataclass(frozen=True)
class RunCurve:
    """Hold a curve of losses over octaves of `start`, and the runs it is made of."""

    start: float
    curve: OctaveCurve
    used: tuple[Run, ...]
    wanted: tuple[Run, ...]

    @property
    def rate(self) -> float | None:
        """The rate at the minimum to four digits, so that runs which use it are found again; None while unknown."""
        minimum = self.curve.minimum
        return None if minimum is None else float(f"{self.start * 2.0**minimum:.4g}")

    @property
    def best(self) -> tuple[float, tuple[float, ...]] | None:
        """The rate with the smallest mean loss and the losses there; None while unknown."""
        position = self.curve.best
        return None if position is None else (self.start * 2.0**position, self.curve.at(position))


@dataclass(frozen=True)
class RowAnswer:
    """Hold what is known of one row: cells by their names, and the curves of the tuned rate and the multiples.

    `bases` holds the curve of every rule on the row's base; planned cells are there as soon as the rate of theirs is.
    """

    row: Row
    tuned: RunCurve
    multiples: RunCurve | None
    cells: Mapping[str, Cell]
    bases: Mapping[str, RunCurve]

    @property
    def wanted(self) -> Iterator[Run]:
        """The runs that can be asked for now, the bases' first, as plans wait for them."""
        for curve in self.bases.values():
            yield from curve.wanted
        for cell in self.cells.values():
            yield from cell.wanted
        yield from self.tuned.wanted
        if self.multiples is not None:
            yield from self.multiples.wanted

    @property
    def used(self) -> Iterator[Run]:
        """The runs that the row's numbers are made of."""
        for cell in self.cells.values():
            yield from (run for run in cell.runs if run not in cell.wanted)
        for curve in (self.tuned, *([self.multiples] if self.multiples else ()), *self.bases.values()):
            yield from curve.used


@dataclass(frozen=True)
class Answers:
    """Hold all rows as far as they are known."""

    rows: tuple[RowAnswer, ...]

    @cached_property
    def wanted(self) -> tuple[Run, ...]:
        """All runs that can be asked for now, row by row, short ones first: what is cut off has whole rows."""
        rows = sorted(self.rows, key=lambda answer: answer.row.steps)
        return tuple(dict.fromkeys(run for answer in rows for run in answer.wanted))

    @cached_property
    def used(self) -> tuple[Run, ...]:
        """All runs that the numbers are made of."""
        return tuple(dict.fromkeys(run for answer in self.rows for run in answer.used))


def answers(question: Question, known: Mapping[Run, float]) -> Answers:
    """Return what is known of every row, and with it what is wanted."""
    based_on = {row: Row(question.scale.bases[row.network.kind], row.optimizer, row.steps) for row in question.rows}
    curves = {base: _base(question, base, known) for base in dict.fromkeys(based_on.values())}
    return Answers(tuple(_row(question, row, curves[based_on[row]], known) for row in question.rows))


def _base(question: Question, base: Row, known: Mapping[Run, float]) -> Mapping[str, RunCurve]:
    """Return the curve of every rule on a base."""
    start = DEFAULT_RATES[base.optimizer]
    return {rule: _curve(question, base, rule, start, known, centre=False) for rule in PLANNED}


def _row(question: Question, row: Row, bases: Mapping[str, RunCurve], known: Mapping[Run, float]) -> RowAnswer:
    start = DEFAULT_RATES[row.optimizer]
    cells = {
        "default": _cell(question, row, "own", start, known),
        "prodigy": _cell(question, row, "prodigy", PRODIGY_RATE, known),
    }
    for rule, curve in bases.items():
        if curve.rate is not None:
            cells["plan" if rule == "weighted" else rule] = _cell(question, row, rule, curve.rate, known)
    rate = bases["weighted"].rate
    multiples = None if rate is None else _curve(question, row, "weighted", rate, known, centre=True)
    return RowAnswer(row, _curve(question, row, "own", start, known, centre=True), multiples, cells, bases)


def _cell(question: Question, row: Row, treatment: str, lr: float, known: Mapping[Run, float]) -> Cell:
    runs = tuple(question.run(row, seed, treatment, lr) for seed in range(question.seeds))
    return Cell(runs, tuple(known.get(run) for run in runs))


def _curve(
    question: Question, row: Row, treatment: str, start: float, known: Mapping[Run, float], *, centre: bool
) -> RunCurve:
    def run(point: Point) -> Run:
        position, seed = point
        return question.run(row, seed, treatment, start * 2.0**position)

    curve = octave_curve(lambda point: known.get(run(point)), seeds=question.seeds, centre=centre)
    return RunCurve(start, curve, tuple(map(run, curve.losses)), tuple(map(run, curve.missing)))
