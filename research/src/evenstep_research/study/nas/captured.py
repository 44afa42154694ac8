"""Train lanes to the end: a CUDA step recorded once and replayed, plain steps elsewhere, goes on from a checkpoint."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evenstep.errors import StoreError
from evenstep.search.cuda import Precision, cuda_settings, put_back, recorded, warm_up
from evenstep_research.study.nas.training import Lane, LaneGroup, SweepTraining

_SAVE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What became of a run: test accuracy in percent, test loss, mean training losses by epoch, and its time's share.

    Losses are infinite where they stopped being finite; such a network guesses, and its accuracy says so.
    """

    accuracy: float
    test_loss: float
    train_losses: tuple[float, ...]
    seconds: float

    @property
    def diverged(self) -> bool:
        """Whether a loss stopped being finite."""
        return not all(map(math.isfinite, self.train_losses))


def stepping_of(group: LaneGroup) -> Callable[[], None]:
    """Return the fastest way to take a group's steps: recorded on CUDA, where it can be, else as it is."""
    if group.device.type != "cuda":
        return group.step_

    def first_step_() -> None:
        group.step_index.zero_()
        group.step_()

    try:
        with put_back(group.state):
            warm_up(first_step_, group.device)
            return recorded(group.step_)[0]
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        warnings.warn(f"the step cannot be recorded and is taken as it is, which is slower: {error}", stacklevel=2)
    return group.step_


def train(
    lanes: Sequence[Lane],
    training: SweepTraining,
    *,
    precision: Precision = "float32",
    checkpoint: Checkpoint | None = None,
    notify: Callable[[int], None] = lambda _: None,
) -> list[TrainingResult]:
    """Train lanes to the end, from a checkpoint if it is of them, and return what became of each.

    `notify` hears how many epochs are done.
    """
    start = time.perf_counter()
    group = LaneGroup(lanes, precision)
    first, spent, curves = checkpoint.load_(group) if checkpoint else (0, 0.0, [])
    with cuda_settings(precision, group.device, timed=True):
        step_ = stepping_of(group)
        drawn = [lane.draw(first) for lane in lanes]
        for epoch in range(first, training.epochs):
            group.begin_(drawn, training.factor(epoch))
            for _ in range(group.steps):
                step_()
            if epoch + 1 < training.epochs:  # drawn while the device is still at work
                drawn = [lane.draw(epoch + 1) for lane in lanes]
            curves.append(group.losses())
            notify(epoch + 1)
            if checkpoint and epoch + 1 < training.epochs:
                checkpoint.save(group, epoch + 1, spent + time.perf_counter() - start, curves)
        evaluated = [lane.evaluate(precision) for lane in lanes]
    seconds = (spent + time.perf_counter() - start) / len(lanes)
    return [
        TrainingResult(accuracy, _number(loss), tuple(_number(losses[place]) for losses in curves), seconds)
        for place, (accuracy, loss) in enumerate(evaluated)
    ]


class Checkpoint:
    """A file with the state of lanes under way, told from others by `key`, written once a minute."""

    def __init__(self, path: Path, key: str, every: float = _SAVE_SECONDS) -> None:
        self.path, self.key, self.every = path, key, every
        self.saved = time.perf_counter()

    def load_(self, group: LaneGroup) -> tuple[int, float, list[list[float]]]:
        """Put a group where the file says, if it is this one's; return epochs done, seconds spent, losses so far."""
        nothing: tuple[int, float, list[list[float]]] = (0, 0.0, [])
        try:
            known: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            if known["key"] != self.key:
                return nothing
            for tensor, value in zip(group.state(), known["state"], strict=True):
                tensor.copy_(value)
            return known["epoch"], known["seconds"], known["losses"]
        except FileNotFoundError:
            return nothing
        except Exception as error:  # a file of another kind fails in torch.load with nearly any exception
            raise StoreError(f"the checkpoint '{self.path}' cannot be read ({error}); remove it") from None

    def save(self, group: LaneGroup, epoch: int, seconds: float, losses: list[list[float]]) -> None:
        """Write the state after an epoch, in one step, if the last time is long enough ago."""
        if time.perf_counter() - self.saved < self.every:
            return
        state = [tensor.cpu() for tensor in group.state()]
        beside = self.path.with_name(self.path.name + ".new")
        torch.save({"key": self.key, "epoch": epoch, "seconds": seconds, "losses": losses, "state": state}, beside)
        beside.replace(self.path)
        self.saved = time.perf_counter()

    def remove(self) -> None:
        """Forget the state, once the results are written."""
        self.path.unlink(missing_ok=True)


def _number(value: float) -> float:
    return value if math.isfinite(value) else math.inf
