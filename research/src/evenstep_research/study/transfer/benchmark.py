"""Run families of the transfer benchmark: bases first, then every architecture, several at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from evenstep.errors import InputError
from evenstep.search import LocalEngine, plain_values
from evenstep.search.cuda import Precision, free_memory
from evenstep.search.engines.batching import Batching
from evenstep.search.engines.workers import answers
from evenstep.search.fields import Data
from evenstep.search.job import Job, Trial
from evenstep.search.replicas import TrialResult
from evenstep_research.data import Split, cifar10, digits, image_folder, imagenet
from evenstep_research.study import statistics
from evenstep_research.study.progress import Notify, StudyProgress
from evenstep_research.study.record import Origin
from evenstep_research.study.transfer.families import Architecture, Family, FamilySetting
from evenstep_research.study.transfer.ledger import MeasurementLedger
from evenstep_research.study.transfer.measure import (
    DIVERGED,
    METHODS,
    Bench,
    Choice,
    Known,
    Measured,
    TransferTraining,
    loss_between,
    measure,
    predictions,
)
from evenstep_research.study.transfer.rivals import Attempt

LOADERS: Mapping[str, Callable[..., Split]] = {"cifar10": cifar10, "imagenet": imagenet, "images": image_folder}


@dataclass(frozen=True)
class BenchmarkResources:
    """Where and on what a benchmark runs: the data's folder (None: digits), device, precision, processes, ledger.

    `source` names the data set in the folder: `cifar10`, `imagenet`, or `images` for other images in its layout.
    """

    data: str | None = None
    device: str | None = None
    precision: Precision = "float32"
    workers: int = 1
    ledger: Path | None = None
    source: str = "cifar10"

    @property
    def data_set(self) -> str:
        """The name of the data set."""
        return "digits" if self.data is None else self.source

    def load(self, image: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the training data with images of the given shape, on the device; grey ones fill all channels."""
        if self.data is None and image[1:] != (8, 8):
            raise InputError(f"the digits are 8 x 8, the family's images {image[1]} x {image[2]}; take a smaller scale")
        split = digits() if self.data is None else LOADERS[self.source](self.data, side=image[1])
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        images = split.train[0].expand(-1, image[0], -1, -1).contiguous()
        return images.to(device), split.train[1].to(device)


@dataclass(frozen=True)
class Task:
    """One architecture to measure; a base is measured without picks."""

    family: str
    setting: FamilySetting
    architecture: Architecture
    picked: dict[str, float]
    known: Known
    training: TransferTraining
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True)
class FamilyResult:
    """Hold a family's base, the measured architectures, and where base and architectures were measured."""

    family: Family
    base_lr: float
    measured: tuple[Measured, ...]
    origins: tuple[Origin, ...] = ()

    @property
    def known(self) -> tuple[Measured, ...]:
        """The architectures whose truth is one: its optimum lies inside the grid."""
        return tuple(measured for measured in self.measured if measured.true_lr is not None)

    @property
    def precision(self) -> str:
        """What the losses were measured in, wherever that was; empty where nobody noted it."""
        return " and ".join(sorted({origin.precision for origin in self.origins} - {""}))

    def summary(self) -> dict[str, dict[str, statistics.Figure]]:
        """Return every method's figures over the known architectures."""
        true = [measured.true_lr or math.nan for measured in self.known]
        methods = self.known[0].choices if self.known else {}
        return {
            name: statistics.summary(
                true,
                [measured.choices[name].lr for measured in self.known],
                [measured.regret(measured.choices[name].loss) for measured in self.known],
            )
            for name in methods
        }

    def rivals(self) -> dict[str, dict[str, Any]]:
        """Return what every rival's losses are above the best, and what it costs on the target, as plain values.

        `weighted_no_worse` counts the architectures on which the rule's rate ends at the rival's loss or below.
        """
        figures = {}
        for name in self.known[0].attempts if self.known else {}:
            attempts = [(measured, measured.attempts[name]) for measured in self.known if name in measured.attempts]
            mean, p90 = statistics.mean_and_p90([measured.regret(attempt.loss) for measured, attempt in attempts])
            ours = [measured.choices["weighted"].loss <= attempt.loss for measured, attempt in attempts]
            figures[name] = {
                "weighted_no_worse": sum(ours),
                "mean_regret": mean.to_dict(),
                "p90_regret": p90.to_dict(),
                "diverged": sum(not attempt.loss <= DIVERGED for _, attempt in attempts),
                "target_steps": sum(attempt.steps for _, attempt in attempts) / len(attempts),
            }
        return figures

    def best_constant(self) -> dict[str, float] | None:
        """Return the one rate for all that would have lost least, known in hindsight only, and its mean regret.

        Losses at that rate lie between measured ones; beyond those it gets the last, the better of what it may be.
        """
        if not self.known:
            return None
        tried = {
            rate: sum(measured.regret(loss_between(measured.curve, rate)) for measured in self.known) / len(self.known)
            for rate in dict.fromkeys(rate for measured in self.known for rate in measured.curve)
        }
        best = min(tried, key=lambda rate: tried[rate])
        return {"lr": best, "mean_regret": tried[best]}

    def drift(self) -> dict[str, float]:
        """Return by how many octaves the searched rate differs over the widths of one shape, for every shape."""
        rates: dict[str, list[float]] = {}
        for measured in self.known:
            if measured.architecture.width is not None and measured.true_lr is not None:
                rates.setdefault(measured.architecture.shape, []).append(measured.true_lr)
        return {
            shape: math.log2(max(shape_rates) / min(shape_rates))
            for shape, shape_rates in rates.items()
            if len(shape_rates) > 1
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values; `rows` has the architectures one by one."""
        methods = {name: statistics.to_dict(figures) for name, figures in self.summary().items()}
        for name, figures in methods.items():
            choices = [measured.choices[name] for measured in self.known]
            figures["diverged"] = sum(not choice.loss <= DIVERGED for choice in choices)
            figures["target_steps"] = sum(choice.steps for choice in choices) / len(choices)
        return {
            "family": self.family.name,
            "title": self.family.title,
            "setting": asdict(self.family.setting),
            "calibrates": self.family.calibrates,
            "base_lr": self.base_lr,
            "n": len(self.known),
            "without_truth": {
                measured.architecture.name: measured.status for measured in self.measured if measured.true_lr is None
            },
            "methods": methods,
            "rivals": self.rivals(),
            "best_constant": self.best_constant(),
            "best_loss": sum(measured.best_loss for measured in self.known) / len(self.known) if self.known else None,
            "drift": self.drift(),
            "measured_on": [asdict(origin) for origin in self.origins],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat row for every architecture; what is not known or diverged is None."""
        rows = []
        for measured in self.measured:
            row: dict[str, Any] = {"family": self.family.name, **asdict(measured.architecture)}
            row |= {
                "status": measured.status,
                "true_lr": measured.true_lr,
                "best_loss": plain_values.finite_or_none(measured.best_loss),
            }
            tried: dict[str, Choice | Attempt] = (
                {**measured.choices, **measured.attempts} if measured.true_lr is not None else {}
            )
            for name, choice in tried.items():
                row |= {f"{name} lr": choice.lr, f"{name} loss": plain_values.finite_or_none(choice.loss)}
            rows.append(row)
        return rows


def run(
    families: Sequence[Family],
    resources: BenchmarkResources,
    training: TransferTraining,
    notify: Notify = lambda _: None,
) -> Iterator[FamilyResult]:
    """Measure families and yield each when its last architecture is done; one whose base has no truth is left out."""
    ledger = MeasurementLedger(resources.ledger, resources.data_set, resources.precision)
    bases = {}
    for family in families:
        known = ledger.known(family.setting, family.base, training.of_bases)
        bases[family.setting] = Task(family.name, family.setting, family.base, {}, known, training.of_bases)
    measured_bases: dict[FamilySetting, Measured] = {}
    finished, total = 0, len(bases) + sum(len(family.architectures) for family in families)
    notify(StudyProgress(0, total, "searching the bases"))
    for task, measured in _measured_tasks([*bases.values()], resources):
        measured_bases[task.setting] = measured
        ledger.note(task.setting, measured, task.training)
        finished += 1
        rate = f"learning rate {measured.true_lr:.4g}" if measured.true_lr else measured.status
        notify(StudyProgress(finished, total, f"base of {task.family}: {rate}"))
    tasks: list[Task] = []
    done: dict[str, dict[Architecture, Measured]] = {}
    for family in families:
        base = measured_bases[family.setting]
        if base.true_lr is None:
            total -= len(family.architectures)
            notify(StudyProgress(finished, total, f"{family.name} left out: the search of its base says {base.status}"))
            continue
        done[family.name] = {}
        for architecture in family.architectures:
            picked = predictions(family.setting, architecture, family.base, base.true_lr)
            known = ledger.known(family.setting, architecture, training)
            tasks.append(Task(family.name, family.setting, architecture, picked, known, training, family.rivals))
    by_name = {family.name: family for family in families}
    for task, measured in _measured_tasks(tasks, resources):
        family, by_architecture = by_name[task.family], done[task.family]
        ledger.note(task.setting, measured, task.training)
        by_architecture[task.architecture] = measured
        finished += 1
        notify(StudyProgress(finished, total, f"{family.name}: {task.architecture.name}"))
        if len(by_architecture) == len(family.architectures):
            ordered = tuple(by_architecture[architecture] for architecture in family.architectures)
            origins = ledger.origin(family.setting, family.base, training.of_bases).union(
                *(ledger.origin(family.setting, network, training) for network in family.architectures)
            )
            yield FamilyResult(
                family, measured_bases[family.setting].true_lr or math.nan, ordered, tuple(sorted(origins))
            )


def _measured_tasks(tasks: Sequence[Task], resources: BenchmarkResources) -> Iterator[tuple[Task, Measured]]:
    """Measure tasks in processes, or in this one where one is enough, in the order in which they end."""
    remedy = "what was measured is in the ledger, if there is one: go on with fewer workers"
    results = answers(partial(_measured, resources), [(task,) for task in tasks], resources.workers, remedy=remedy)
    for place, measured in results:
        yield tasks[place], measured


class _OneBatching:
    """Try out how trials of one architecture are best trained only once, though they come in several searches."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.batching: Batching | None = None

    def choose(self, job: Job, data: Data, trials: Sequence[Trial]) -> Batching:
        if self.batching is None:
            self.batching = self.engine.choose(job, data, trials)
        if data[0].device.type == "cpu":
            return self.batching
        return replace(
            self.batching, chunk=len(trials)
        )  # a device takes all at once, or halves them where they do not fit

    def run(
        self, job: Job, data: Data, trials: Sequence[Trial], batching: Batching | None = None
    ) -> Iterator[TrialResult]:
        return self.engine.run(job, data, trials, batching or self.choose(job, data, trials))

    def close(self) -> None:
        self.engine.close()


@lru_cache(maxsize=4)
def _data(resources: BenchmarkResources, image: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training data of a shape, loaded once in a process."""
    return resources.load(image)


def _measured(resources: BenchmarkResources, task: Task) -> Measured:
    engine = _OneBatching(LocalEngine(device=resources.device, workers=1, precision=resources.precision))
    bench = Bench(_data(resources, task.setting.image), engine, task.training)
    try:
        return measure(bench, task.setting, task.architecture, task.picked, task.known, task.rivals)
    finally:
        free_memory(bench.data[0].device)


__all__ = ["METHODS", "BenchmarkResources", "FamilyResult", "run"]
