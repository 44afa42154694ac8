"""Run families of the transfer benchmark: bases first, then every architecture, several at a time."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from evenstep.data import cifar10, digits
from evenstep.search import LocalEngine
from evenstep.search.fleet import Precision
from evenstep.study import statistics
from evenstep.study.transfer.families import Architecture, Family, Setting
from evenstep.study.transfer.ledger import Ledger
from evenstep.study.transfer.measure import METHODS, Bench, Known, Measured, Training, measure, predictions

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where and on what a benchmark runs: the data's folder (None: digits), device, precision, processes, ledger."""

    data: str | None = None
    device: str | None = None
    precision: Precision = "float32"
    workers: int = 1
    ledger: Path | None = None

    def load(self, image: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the training data with images of the given shape, on the device."""
        split = digits() if self.data is None else cifar10(self.data, side=image[1])
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        return split.train[0].to(device), split.train[1].to(device)


@dataclass(frozen=True)
class Task:
    """One architecture to measure; a base is measured without picks."""

    family: str
    setting: Setting
    architecture: Architecture
    picked: dict[str, float]
    known: Known
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True)
class FamilyResult:
    """Hold a family's base and the measured architectures."""

    family: Family
    base_lr: float
    measured: tuple[Measured, ...]

    @property
    def known(self) -> tuple[Measured, ...]:
        """The architectures whose truth is one: its optimum lies inside the grid."""
        return tuple(one for one in self.measured if one.true_lr is not None)

    def summary(self) -> dict[str, dict[str, statistics.Figure]]:
        """Return every method's figures over the known architectures."""
        true = [one.true_lr or math.nan for one in self.known]
        methods = self.known[0].choices if self.known else {}
        return {
            name: statistics.summary(
                true, [one.choices[name].lr for one in self.known], [one.regret(name) for one in self.known]
            )
            for name in methods
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "family": self.family.name,
            "title": self.family.title,
            "setting": asdict(self.family.setting),
            "calibrates": self.family.calibrates,
            "base_lr": self.base_lr,
            "n": len(self.known),
            "without_truth": [one.architecture.name for one in self.measured if one.true_lr is None],
            "methods": {name: statistics.to_dict(figures) for name, figures in self.summary().items()},
            "architectures": [one.to_dict() for one in self.measured],
        }


def run(
    families: Sequence[Family], place: Place, training: Training, notify: Notify = lambda _: None
) -> Iterator[FamilyResult]:
    """Measure families and yield each when its last architecture is done."""
    ledger = Ledger(place.ledger, "digits" if place.data is None else "cifar10", training)
    bases = {
        family.setting: Task(family.name, family.setting, family.base, {}, ledger.known(family.setting, family.base))
        for family in families
    }
    found: dict[Setting, Measured] = {}
    with _Workers(place, training) as workers:
        for task, measured in workers.measured(bases.values()):
            found[task.setting] = measured
            ledger.note(task.setting, measured)
            notify(f"base of {task.family}: learning rate {measured.true_lr or math.nan:.4g}")
        tasks: list[Task] = []
        waiting: dict[str, int] = {}
        done: dict[str, dict[Architecture, Measured]] = {}
        for family in families:
            base = found[family.setting]
            if base.true_lr is None:
                notify(f"{family.name} skipped: the search of its base ended as '{base.status}'")
                continue
            waiting[family.name], done[family.name] = len(family.architectures), {}
            for architecture in family.architectures:
                picked = predictions(family.setting, architecture, family.base, base.true_lr)
                known = ledger.known(family.setting, architecture)
                tasks.append(Task(family.name, family.setting, architecture, picked, known, family.rivals))
        by_name = {family.name: family for family in families}
        for task, measured in workers.measured(tasks):
            family = by_name[task.family]
            ledger.note(task.setting, measured)
            done[task.family][task.architecture] = measured
            waiting[task.family] -= 1
            if not waiting[task.family]:
                ordered = tuple(done[task.family][a] for a in family.architectures)
                yield FamilyResult(family, found[family.setting].true_lr or math.nan, ordered)


class _Workers:
    """Measure tasks in processes, or in this one where one is enough."""

    def __init__(self, place: Place, training: Training) -> None:
        self.place, self.training = place, training
        self.pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> _Workers:
        if self.place.workers > 1:
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(
                self.place.workers, mp_context=context, initializer=_settle, initargs=(self.place, self.training)
            )
        else:
            _settle(self.place, self.training)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # do not wait for measurements that nobody will read
            for process in multiprocessing.active_children():
                process.kill()
        if self.pool:
            self.pool.shutdown(cancel_futures=True)

    def measured(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Measured]]:
        if self.pool is None:
            for task in tasks:
                yield task, _measured(task)
            return
        futures = {self.pool.submit(_measured, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()


_here: dict[str, Any] = {}


def _settle(place: Place, training: Training) -> None:
    """Prepare a process: one thread where several share the machine, data loaded when first needed."""
    if place.workers > 1:
        torch.set_num_threads(1)
        threading.Thread(target=_end_with_parent, daemon=True).start()
    _here.update(place=place, training=training, data={})


def _end_with_parent() -> None:
    """Wait for the parent to die, killed perhaps, and go with it."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _measured(task: Task) -> Measured:
    place: Place = _here["place"]
    image = task.setting.image
    if image not in _here["data"]:
        _here["data"][image] = place.load(image)
    engine = LocalEngine(device=place.device, workers=1, precision=place.precision)
    bench = Bench(_here["data"][image], engine, _here["training"])
    try:
        return measure(bench, task.setting, task.architecture, task.picked, task.known, task.rivals)
    finally:
        if torch.cuda.is_available():  # other processes share the device
            gc.collect()
            torch.cuda.empty_cache()


__all__ = ["METHODS", "FamilyResult", "Place", "run"]
