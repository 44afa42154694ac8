"""The loop of a study: ask what is wanted, hand runs out, write every loss down at once, and ask again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from evenstep.errors import SearchError
from evenstep_research.study.progress import Notify, StudyProgress
from evenstep_research.study.real.answers import Answers, Question, answers
from evenstep_research.study.real.plans import PLANNED, Plans
from evenstep_research.study.real.runs import RealLedger, Run
from evenstep_research.study.real.scales import RealScale, Row
from evenstep_research.study.real.work import Place
from evenstep_research.study.real.workers import RunWorkers
from evenstep_research.study.record import Origin


@dataclass(frozen=True)
class RealResources:
    """Where a study runs: device, processes, the folder of CIFAR-10, the ledger, and minutes until it stops."""

    device: str = "cpu"
    workers: int = 1
    folder: str | None = None
    ledger: Path | None = None
    minutes: float | None = None


class Known(Protocol):
    """What is known so far: the runs it is made of, and those that can be asked for now."""

    @property
    def wanted(self) -> Sequence[Run]:
        """The runs that are not known, the most wanted first."""

    @property
    def used(self) -> Sequence[Run]:
        """The runs that are."""


@dataclass(frozen=True)
class RealResult:
    """Hold what a study asked, what it knows, and where that was measured."""

    question: Question
    answers: Answers
    origins: tuple[Origin, ...]


def study(
    scale: RealScale,
    rows: Sequence[Row],
    seeds: int,
    resources: RealResources,
    notify: Notify = lambda _: None,
) -> RealResult:
    """Measure rows until nothing is wanted, or until the minutes are over; what is in the ledger is not run again."""
    begun = time.monotonic()
    deadline = None if resources.minutes is None else begun + 60 * resources.minutes
    ledger = RealLedger(resources.ledger)
    place = Place(scale.name, resources.device, resources.folder)
    notify(StudyProgress(0, 1, "planning"))
    with RunWorkers(place, resources.workers, apart=deadline is not None) as workers:
        plans = Plans.of(scale, rows, workers.graphs)
        question = Question(scale, tuple(rows), seeds, plans.fingerprints, place.precision)
        measure(
            lambda losses: answers(question, losses),
            lambda run: plans.plans[_plan_name(run)] if run.treatment in PLANNED else None,
            ledger,
            workers,
            deadline,
            notify,
        )
    known = answers(question, ledger.losses)
    return RealResult(question, known, tuple(ledger.origins(known.used)))


def measure(
    ask: Callable[[Mapping[Run, float]], Known],
    details: Callable[[Run], Any],
    ledger: RealLedger,
    workers: RunWorkers,
    deadline: float | None,
    notify: Notify,
) -> None:
    """Run what is wanted until nothing is; runs under way when the deadline comes are left to be ended.

    `ask` answers with what losses say so far, `details` with what a worker needs besides the run's name.
    """
    side_by_side = workers.workers
    while deadline is None or time.monotonic() < deadline:
        known = ask(ledger.losses)
        waiting = [run for run in known.wanted if run not in workers.under_way.values()]
        for run in waiting[: side_by_side - len(workers.under_way)]:
            workers.hand_out(run, details(run))
        if not workers.under_way:
            return
        for done in workers.finished(deadline=deadline):
            if done.loss is None:  # no room beside the others: it is still wanted, and asked for again
                side_by_side = min(side_by_side, len(workers.under_way) + 1) - 1
                if not side_by_side:
                    raise SearchError(f"the device has no memory for '{done.run.words}' alone; choose other --networks")
                continue
            ledger.note(done.run, done.loss, done.seconds)
            total = len(known.used) + len(known.wanted)
            notify(StudyProgress(len(known.used) + 1, total, f"{done.run.words}: {_told(done.loss, done.seconds)}"))


def _plan_name(run: Run) -> tuple[str, str, str]:
    return run.network, run.optimizer, run.treatment


def _told(loss: float, seconds: float) -> str:
    return f"{f'loss {loss:.4f}' if loss < float('inf') else 'diverged'}, {seconds:.1f} s"
