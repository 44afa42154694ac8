"""The study: `study real`'s loop, asked for what axes want."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from evenstep_research.study.axes import work
from evenstep_research.study.axes.answers import AxesAnswers, Question, answers
from evenstep_research.study.axes.plans import Plans
from evenstep_research.study.axes.scales import AxesScale, Line
from evenstep_research.study.progress import Notify, StudyProgress
from evenstep_research.study.real.benchmark import RealResources, measure
from evenstep_research.study.real.runs import RealLedger, Run
from evenstep_research.study.real.work import Place
from evenstep_research.study.real.workers import RunWorkers
from evenstep_research.study.record import Origin


@dataclass(frozen=True)
class AxesResult:
    """Hold what a study asked, what it knows, and where that was measured."""

    question: Question
    answers: AxesAnswers
    origins: tuple[Origin, ...]


def study(
    scale: AxesScale,
    lines: Sequence[Line],
    resources: RealResources,
    notify: Notify = lambda _: None,
    *,
    muon: bool = True,
) -> AxesResult:
    """Measure lines, and Muon's rates, until nothing is wanted or the minutes are over."""
    begun = time.monotonic()
    deadline = None if resources.minutes is None else begun + 60 * resources.minutes
    ledger = RealLedger(resources.ledger)
    place = Place(scale.name, resources.device, resources.folder)
    notify(StudyProgress(0, 1, "planning"))
    with RunWorkers(place, resources.workers, apart=deadline is not None, work=work) as workers:
        plans = Plans.of(scale, lines, workers.graphs, muon=muon)
        question = Question(scale, tuple(lines), muon, plans.fingerprints, place.precision)

        def details(run: Run) -> work.Details:
            setup = question.setups[run.network, run.setting, run.steps]
            return work.Details(setup, plans.plans[run.plan] if run.plan else None)

        measure(lambda losses: answers(question, losses), details, ledger, workers, deadline, notify)
    known = answers(question, ledger.losses)
    return AxesResult(question, known, tuple(ledger.origins(known.used)))
