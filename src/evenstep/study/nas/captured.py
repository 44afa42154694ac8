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
from evenstep.search.cuda import Precision, cuda_settings
from evenstep.study.nas.training import Lane, Squad, Training

_SAVE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
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


class Captured:
    """A squad's step recorded once on CUDA and replayed: nothing is launched twice. Recording changes the squad."""

    def __init__(self, squad: Squad) -> None:
        side = torch.cuda.Stream(squad.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # lets libraries choose their kernels before the recording
                squad.at.zero_()
                squad.step_()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            squad.step_()

    def step_(self) -> None:
        """Replay the step."""
        self.graph.replay()


def stepping_of(squad: Squad) -> Callable[[], None]:
    """Return the fastest way to take a squad's steps: recorded on CUDA, where it can be, else as it is."""
    if squad.device.type != "cuda":
        return squad.step_
    before = [tensor.clone() for tensor in squad.state()]
    step_ = squad.step_
    try:
        step_ = Captured(squad).step_
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        warnings.warn(f"the step cannot be recorded and is taken as it is, which is slower: {error}", stacklevel=2)
    for tensor, value in zip(squad.state(), before, strict=True):
        tensor.copy_(value)
    return step_


def train(
    lanes: Sequence[Lane],
    training: Training,
    *,
    precision: Precision = "float32",
    checkpoint: Checkpoint | None = None,
    notify: Callable[[int], None] = lambda _: None,
) -> list[Outcome]:
    """Train lanes to the end, from a checkpoint if it is of them, and return what became of each.

    `notify` hears how many epochs are done.
    """
    start = time.perf_counter()
    squad = Squad(lanes, precision)
    first, spent, curves = checkpoint.load_(squad) if checkpoint else (0, 0.0, [])
    with cuda_settings(precision, squad.device, timed=True):
        step_ = stepping_of(squad)
        drawn = [lane.draw(first) for lane in lanes]
        for epoch in range(first, training.epochs):
            squad.begin_(drawn, training.factor(epoch))
            for _ in range(squad.steps):
                step_()
            if epoch + 1 < training.epochs:  # drawn while the device is still at work
                drawn = [lane.draw(epoch + 1) for lane in lanes]
            curves.append(squad.losses())
            notify(epoch + 1)
            if checkpoint and epoch + 1 < training.epochs:
                checkpoint.save(squad, epoch + 1, spent + time.perf_counter() - start, curves)
        found = [lane.evaluate(precision) for lane in lanes]
    seconds = (spent + time.perf_counter() - start) / len(lanes)
    return [
        Outcome(accuracy, _number(loss), tuple(_number(losses[place]) for losses in curves), seconds)
        for place, (accuracy, loss) in enumerate(found)
    ]


class Checkpoint:
    """A file with the state of lanes under way, told from others by `key`, written once a minute."""

    def __init__(self, path: Path, key: str, every: float = _SAVE_SECONDS) -> None:
        self.path, self.key, self.every = path, key, every
        self.saved = time.perf_counter()

    def load_(self, squad: Squad) -> tuple[int, float, list[list[float]]]:
        """Put a squad where the file says, if it is this one's; return epochs done, seconds spent, losses so far."""
        nothing: tuple[int, float, list[list[float]]] = (0, 0.0, [])
        try:
            known: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            if known["key"] != self.key:
                return nothing
            for tensor, value in zip(squad.state(), known["state"], strict=True):
                tensor.copy_(value)
            return known["epoch"], known["seconds"], known["losses"]
        except FileNotFoundError:
            return nothing
        except Exception as error:  # a file of another kind fails in torch.load with nearly any exception
            raise StoreError(f"the checkpoint '{self.path}' cannot be read ({error}); remove it") from None

    def save(self, squad: Squad, epoch: int, seconds: float, losses: list[list[float]]) -> None:
        """Write the state after an epoch, in one step, if the last time is long enough ago."""
        if time.perf_counter() - self.saved < self.every:
            return
        state = [tensor.cpu() for tensor in squad.state()]
        beside = self.path.with_name(self.path.name + ".new")
        torch.save({"key": self.key, "epoch": epoch, "seconds": seconds, "losses": losses, "state": state}, beside)
        beside.replace(self.path)
        self.saved = time.perf_counter()

    def remove(self) -> None:
        """Forget the state, once the outcomes are written."""
        self.path.unlink(missing_ok=True)


def _number(value: float) -> float:
    return value if math.isfinite(value) else math.inf
