"""Choose how to train a chunk of trials, by timing a few steps: stacked or single, and how many at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from evenstep.module.threads import threads
from evenstep.search.cuda import Precision
from evenstep.search.fields import Data, each
from evenstep.search.job import Job, Trial
from evenstep.search.memory import in_parts, trials_that_fit
from evenstep.search.randomness import own_randomness
from evenstep.search.replicas import (
    ReplicaGroup,
    SeparateReplicas,
    StackedReplicas,
    TrialResult,
    order,
    stacked_quietly,
    step_count,
    step_seconds,
    train,
)

BatchingKind = Literal["stacked", "single"]


@dataclass(frozen=True, slots=True)
class Batching:
    """Say how trials train: `chunk` at a time, stacked as one network or separately.

    This holds everything that a loss's last digits depend on: which trials are stacked together, and on how many CPU
    `threads`. So a search that is resumed, or continues elsewhere, ends with the same digits. `processes` share the
    trials of a wave; `seconds` is the measured time of one trial's step, on one thread.
    """

    kind: BatchingKind
    chunk: int
    seconds: float = 0.0
    threads: int = 1
    processes: int = 1

    def for_wave(self, count: int) -> Batching:
        """Return the batching of `count` trials, with chunks small enough to give every process one."""
        return replace(self, chunk=max(min(self.chunk, -(-count // self.processes)), 1))


def replica_group(batching: Batching, job: Job, trials: Sequence[Trial], device: torch.device) -> ReplicaGroup:
    """Return trials ready to train, stacked or separate."""
    if batching.kind == "stacked":
        return StackedReplicas(job, trials, device)
    return SeparateReplicas(job, trials, device, channels_last=device.type == "cuda")


def train_in(
    batching: Batching, job: Job, data: Data, trials: Sequence[Trial], device: torch.device, precision: Precision
) -> Iterator[TrialResult]:
    """Run trials chunk by chunk, with smaller chunks if memory runs out."""

    def trained(part: Sequence[Trial]) -> list[TrialResult]:
        with threads(batching.threads, device):
            return list(train(replica_group(batching, job, part, device), data, job.recipe, precision=precision))

    for _, results in in_parts(trials, batching.chunk, trained):
        yield from results


def fitted(batching: Batching, job: Job, data: Data, *, processes: int) -> Batching:
    """Return a batching whose chunks fit into a CPU's memory, in this many processes at once.

    It may use more of the memory than when a batching is chosen, so a batching chosen on this machine stays unchanged.
    """
    if batching.kind == "single" or batching.chunk < 2:
        return batching
    room = trials_that_fit(job, data, processes=processes, share=_SHARE_OF_A_RUN)
    return replace(batching, chunk=min(batching.chunk, room))


def placed(data: Data, device: torch.device) -> Data:
    """Return data on a device in torch's standard layout, because sums over other layouts round differently."""
    inputs, targets = (each(part, lambda tensor: _aligned(tensor.to(device))) for part in data)
    return inputs, targets


def _aligned(tensor: Tensor) -> Tensor:
    """Return a tensor that begins at a cache line, as those made from NumPy arrays may not."""
    return tensor.clone() if tensor.layout == torch.strided and tensor.data_ptr() % 64 else tensor


def chosen_batching(
    job: Job,
    data: Data,
    trials: Sequence[Trial],
    device: torch.device,
    precision: Precision = "float32",
    *,
    processes: int = 1,
) -> Batching:
    """Return the fastest batching, by timing a step or two of each.

    Timing may cost a small share of the plain loop's whole time. Larger stacks are tried only while stacking wins, and
    on a CPU while they fit into memory in all processes. Trials are stacked only if `stacks` confirms it.
    """
    if device.type == "cuda" and not job.plan.graph.convolutions:
        # Matrix products stack well, so there is nothing to choose, unless another operator cannot be stacked.
        stacked = _timed(Batching("stacked", len(trials)), job, data, trials[:2], device, precision)
        stackable = math.isfinite(stacked.seconds) and stacks(job, data, trials, device)
        return Batching("stacked" if stackable else "single", len(trials))
    if device.type == "cpu" and _too_small_to_try(job, data, trials):
        return Batching("single", 1)
    total = step_count(len(data[0]), job.recipe) * len(trials)
    best = _timed(Batching("single", len(trials) if device.type == "cuda" else 1), job, data, trials, device, precision)
    allowed = _TIMING_SHARE * best.seconds * total
    most = len(trials)
    if device.type == "cpu" and most > 1:
        most = min(most, trials_that_fit(job, data, processes=processes))
    sizes = [most] if device.type == "cuda" else [8, 48, 192]
    for size in sizes:
        part = min(size, most)
        expected = best.seconds * part * (_TIMED_STEPS + 1)
        if part < 2 or (best.kind == "stacked" and part == best.chunk) or (device.type == "cpu" and expected > allowed):
            break
        if best.kind == "single" and not stacks(job, data, trials, device):
            break
        batching = _timed(Batching("stacked", part), job, data, trials, device, precision)
        if batching.seconds >= best.seconds:
            break
        best = batching
    return best


def stacks(job: Job, data: Data, trials: Sequence[Trial], device: torch.device) -> bool:
    """Say whether stacked trials train like single ones: equal losses and gradients to rounding, and nothing drawn.

    Not every module can be stacked, and some then silently compute something else: those that read a parameter through
    a list, count their calls, or draw from Python's random numbers.
    """
    part = [next((t for t in trials if t.seed == seed), trials[0]) for seed in sorted({t.seed for t in trials})[:2]]
    index = next(order(len(data[0]), job.recipe)).to(device)
    inputs, targets = data[0][index], data[1][index]
    with own_randomness(0, device), stacked_quietly():
        single = SeparateReplicas(job, part, device)
        losses, gradients = single.gradients(inputs, targets)
        again, _ = single.gradients(inputs, targets)  # what the first step left in the module counts too
        drawn = single.drew()
        evaluated = single.evaluate(inputs, targets)
        if drawn or single.drew():
            return False
        try:
            stacked = StackedReplicas(job, part, device)
            losses_stacked, gradients_stacked = stacked.gradients(inputs, targets)
            again_stacked, _ = stacked.gradients(inputs, targets)
            evaluated_stacked = stacked.evaluate(inputs, targets)
        except (RuntimeError, NotImplementedError, MemoryError):
            return False
    return (
        _nearly_equal(losses, losses_stacked)
        and _nearly_equal(again, again_stacked)
        and _nearly_equal(evaluated, evaluated_stacked)
        and all(_nearly_parallel(*pair) for pair in zip(gradients, gradients_stacked, strict=True))
    )


def _nearly_equal(own: Tensor, other: Tensor) -> bool:
    tolerance = _tolerance(own.dtype)
    return torch.allclose(own, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def _tolerance(dtype: torch.dtype) -> float:
    return min(_ROUNDING * math.sqrt(torch.finfo(dtype).eps), 0.1)


def _nearly_parallel(own: list[Tensor], other: list[Tensor]) -> bool:
    """Say whether a trial's gradients agree, each relative to its size, or to the size of all if it is tiny."""
    tolerance = _tolerance(own[0].dtype)
    sizes = [float(gradient.double().norm()) for gradient in own]
    total = math.hypot(*sizes)
    if not math.isfinite(total):
        return True  # a trial that diverges at once, in both forms
    errors = [float((a.double() - b.double()).norm()) for a, b in zip(own, other, strict=True)]
    return all(error <= tolerance * (size + total / _ROUNDING) for error, size in zip(errors, sizes, strict=True))


def best_threads(batching: Batching, job: Job, data: Data, trials: Sequence[Trial]) -> tuple[int, float]:
    """Return whether all of torch's threads or one train faster on this CPU now, and the time of a trial's step.

    One thread was timed when the batching was chosen. If it costs little, both are timed again in turns, because a
    single timing on a busy machine is unreliable.
    """
    every = torch.get_num_threads()
    if every == 1 or _too_small_to_try(job, data, trials):
        return 1, batching.seconds
    spent = {1: batching.seconds or math.inf, every: math.inf}
    part, device = trials[: batching.chunk], torch.device("cpu")
    group = replica_group(batching, job, part, device)
    total = step_count(len(data[0]), job.recipe) * len(trials) / len(part)
    for count in (every, 1, every) if total > _SHORT else (every,):
        with threads(count, device):
            measured = step_seconds(group, data, job.recipe, "float32", steps=1)
        spent[count] = min(spent[count], measured / len(part))
    best = min(spent, key=lambda count: spent[count])
    return best, spent[best]


_SHARE_OF_A_RUN = 0.75  # of the memory; a batching is chosen for half of it
_ROUNDING = 32.0  # in square roots of the machine epsilon: 0.011 in single precision
_TIMING_SHARE = 0.04  # of the plain loop's whole time
_TIMED_STEPS = 2
_SHORT = 1000  # steps of chunks: the 2 in each timing are then at most a fifth of a per cent
_FEW_STEPS = 400  # of all trials together: about thirty times what timing takes
_FEW_OPERATIONS = 2e10


def _too_small_to_try(job: Job, data: Data, trials: Sequence[Trial]) -> bool:
    """Say whether timing would cost much of the work: few steps of a small network without convolutions."""
    steps = step_count(len(data[0]), job.recipe) * len(trials)
    size = sum(parameter.numel() for parameter in job.template.parameters())
    operations = 6 * size * min(job.recipe.batch_size, len(data[0])) * steps
    return steps < _FEW_STEPS and operations < _FEW_OPERATIONS and not job.plan.graph.convolutions


def _timed(
    batching: Batching, job: Job, data: Data, trials: Sequence[Trial], device: torch.device, precision: Precision
) -> Batching:
    """Return a batching with the time of one trial's step, infinite if it fails, as not every operator stacks."""
    part = trials[: min(batching.chunk, 8) if batching.kind == "single" else batching.chunk]
    try:
        spent = step_seconds(replica_group(batching, job, part, device), data, job.recipe, precision, _TIMED_STEPS)
    except (RuntimeError, NotImplementedError, MemoryError):
        if batching.kind == "single":
            raise
        return Batching(batching.kind, batching.chunk, math.inf)
    return Batching(batching.kind, batching.chunk, spent / len(part))
