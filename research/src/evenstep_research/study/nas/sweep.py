"""Train many runs, several at a time, and write each down; what is known is not trained again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch

from evenstep.errors import InputError, SearchError
from evenstep.search.cuda import Precision, free_memory
from evenstep.search.engines.ray_cluster import RayCluster
from evenstep.search.grid import parabola_minimum, rate_at, wanted
from evenstep.search.memory import in_parts
from evenstep_research.data import DATA_SETS, DataSet, digits, load_folder
from evenstep_research.data.files import missing
from evenstep_research.study.nas.captured import Checkpoint, TrainingResult, train
from evenstep_research.study.nas.ledger import LedgerRow, Run, RunLedger, SweepSetting, key_of, treatment_of
from evenstep_research.study.nas.protocols import BENCHMARK_LR, TrainingProtocol
from evenstep_research.study.nas.training import Images, Lane
from evenstep_research.study.progress import Notify, StudyProgress

_RETRIES = 5
_LOW, _HIGH = -8, 12  # quarter octaves either side of the benchmark's rate


@dataclass(frozen=True, slots=True)
class SweepResources:
    """Where runs train: the data's folder (None: digits), device, precision, so many side by side, and the engine."""

    data: str | None = None
    device: str | None = None
    precision: Precision = "float32"
    together: int = 1
    engine: Literal["local", "ray"] = "local"

    @property
    def kind(self) -> str:
        """The device's name: the one asked for, else a GPU if there is one."""
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")


def data_set_in(folder: str) -> DataSet:
    """Return which data set of the benchmark a folder holds."""
    if not Path(folder).is_dir():
        raise InputError(f"there is no folder '{folder}'; give the one of CIFAR-10, CIFAR-100 or ImageNet16")
    for data_set in DATA_SETS:
        for version in data_set.versions:
            for candidate in (Path(folder), Path(folder) / version.folder):
                if len(missing(version, candidate)) < len(version.files):
                    return data_set
    raise InputError(f"'{folder}' holds no data set of the benchmark; give CIFAR-10, CIFAR-100 or ImageNet16")


@lru_cache(maxsize=1)
def images_at(data: str | None, device: str, padding: int) -> Images:
    """Return a data set on a device, loaded once."""
    split = digits() if data is None else load_folder(data)
    name = "digits" if data is None else data_set_in(data).name
    return Images.of(split, name=name, padding=padding, device=torch.device(device))


def sweep(
    runs: Sequence[Run],
    setting: SweepSetting,
    resources: SweepResources,
    ledger: RunLedger,
    *,
    notify: Notify = lambda _: None,
    checkpoint: Path | None = None,
) -> Iterator[LedgerRow]:
    """Train the runs that are not known, in their order, and yield the entry of each when it is there.

    Runs that stand together in the order train side by side: let them be of one cell, which takes one time.
    """
    left, done = [], 0
    for run in runs:
        entry = ledger.known(run, setting)
        if entry is None:
            left.append(run)
            continue
        done += 1
        yield entry
    notify(StudyProgress(done, len(runs), f"{done} known, {len(left)} to train"))
    groups = [tuple(left[start : start + resources.together]) for start in range(0, len(left), resources.together)]
    trained = _over_ray if resources.engine == "ray" else _here
    for group, results in trained(groups, setting, resources, checkpoint):
        for run, result in zip(group, results, strict=True):
            where = {"precision": resources.precision, "together": len(group), "engine": resources.engine}
            yield ledger.note(run, setting, result, **where)
            done += 1
            notify(StudyProgress(done, len(runs), _told(run, result)))


def _told(run: Run, result: TrainingResult) -> str:
    what = f"tuning {run.protocol.name} at {run.protocol.lr:.4g}" if run.tuning else run.protocol.name
    end = "diverged" if result.diverged else f"{result.accuracy:.2f}%"
    return f"{run.code} {what}, seed {run.seed}: {end}, {result.seconds:.1f} s"


RunGroup = tuple[Run, ...]


def _here(
    groups: Sequence[RunGroup], setting: SweepSetting, resources: SweepResources, checkpoint: Path | None
) -> Iterator[tuple[RunGroup, list[TrainingResult]]]:
    """Train groups one after the other; one that memory has no room for is halved."""

    def trained(group: Sequence[Run]) -> list[TrainingResult]:
        try:
            return train_group(tuple(group), setting, resources, checkpoint)
        finally:
            free_memory(torch.device(resources.kind))

    for group in groups:
        for part, results in in_parts(group, len(group), trained):
            yield tuple(part), results


def train_group(
    group: RunGroup, setting: SweepSetting, resources: SweepResources, checkpoint: Path | None = None
) -> list[TrainingResult]:
    """Train a group side by side, and return the result of each run."""
    images = images_at(resources.data, resources.kind, setting.training.padding)
    lanes = []
    for run in group:
        treatment = treatment_of(run.protocol, run.code, setting.shape)
        model = treatment.start(lambda code=run.code: setting.shape.network(code), run.seed)  # type: ignore[misc]
        lanes.append(Lane(model, treatment, run.seed, images, setting.training))
    saved = None
    if checkpoint is not None:
        keys = " ".join(key_of(run, setting) for run in group)
        saved = Checkpoint(checkpoint, hashlib.sha256(keys.encode()).hexdigest())
    results = train(lanes, setting.training, precision=resources.precision, checkpoint=saved)
    if saved:
        saved.remove()
    return results


def _over_ray(
    groups: Sequence[RunGroup], setting: SweepSetting, resources: SweepResources, checkpoint: Path | None
) -> Iterator[tuple[RunGroup, list[TrainingResult]]]:
    """Train every group as a task on a Ray cluster, whose machines all have the data's folder."""
    del checkpoint  # a lost task is begun anew on another machine, which has not this one's files
    cluster = RayCluster()
    needs = {"num_gpus": 1} if resources.kind.startswith("cuda") else {"num_cpus": 1}
    tasks = [(group, setting, resources) for group in groups]
    try:
        remedy = "go on with fewer runs side by side, or with the engine 'local'"
        for place, results in cluster.answers(train_group, tasks, retries=_RETRIES, remedy=remedy, **needs):
            yield groups[place], results
    finally:
        cluster.leave()


@dataclass(frozen=True)
class Tuned:
    """Hold the rate found on a base cell, and the mean training loss of the last epoch at every rate tried."""

    protocol: str
    base: str
    lr: float
    losses: dict[float, float] = field(hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        tried = [[lr, loss if math.isfinite(loss) else None] for lr, loss in sorted(self.losses.items())]
        return {"protocol": self.protocol, "base": self.base, "lr": self.lr, "losses": tried}


def tune(
    make: Callable[[float], TrainingProtocol],
    setting: SweepSetting,
    resources: SweepResources,
    ledger: RunLedger,
    *,
    seeds: int = 1,
    notify: Notify = lambda _: None,
    checkpoint: Path | None = None,
) -> Tuned:
    """Search the rate of a protocol on its base cell: octaves, more at an edge, then halves beside the best.

    The rate is the minimum of a parabola through the smallest mean training losses of the last epoch. No test image is
    looked at.
    """
    name, base = make(BENCHMARK_LR).name, make(BENCHMARK_LR).base
    if base is None:
        raise InputError(f"the protocol '{name}' has no base cell; its rate is given, not searched")
    mean_losses: dict[int, float] = {}
    while positions := [position for position in wanted(mean_losses, low=_LOW, high=_HIGH) if position % 2 == 0]:
        runs = [
            Run(base, make(rate_at(BENCHMARK_LR, position)), seed, tuning=True)
            for position in positions
            for seed in range(seeds)
        ]
        losses: dict[float, list[float]] = {}
        for entry in sweep(runs, setting, resources, ledger, notify=notify, checkpoint=checkpoint):
            losses.setdefault(entry.protocol["lr"], []).append(entry.outcome.train_losses[-1])
        for position in positions:
            seed_losses = losses[rate_at(BENCHMARK_LR, position)]
            mean_losses[position] = sum(seed_losses) / len(seed_losses)
    best = min(mean_losses, key=lambda position: mean_losses[position])
    if math.isinf(mean_losses[best]):
        raise SearchError(f"every rate diverged for '{name}' on its base cell {base}; give its rate as --base-lr")
    minimum = parabola_minimum(mean_losses)
    lr = BENCHMARK_LR * 2.0 ** ((best if minimum is None else minimum) / 4)
    return Tuned(name, base, lr, {rate_at(BENCHMARK_LR, position): loss for position, loss in mean_losses.items()})
