"""How a chunk of trials is best trained: stacked or single, and how many at a time; found by timing a few steps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from evenstep.search.cuda import Precision
from evenstep.search.job import Data, Job, Trial
from evenstep.search.memory import trials_that_fit
from evenstep.search.replicas import (
    ReplicaGroup,
    SeparateReplicas,
    StackedReplicas,
    TrialResult,
    step_count,
    step_seconds,
    train,
)

BatchingKind = Literal["stacked", "single"]


@dataclass(frozen=True, slots=True)
class Batching:
    """Say how trials are trained: `chunk` together, as one stacked network or each on its own.

    `seconds` is what one trial's step took when it was timed.
    """

    kind: BatchingKind
    chunk: int
    seconds: float = 0.0


def replica_group(batching: Batching, job: Job, trials: Sequence[Trial], device: torch.device) -> ReplicaGroup:
    """Return trials ready to train, stacked or each on its own."""
    if batching.kind == "stacked":
        return StackedReplicas(job, trials, device)
    return SeparateReplicas(job, trials, device, channels_last=device.type == "cuda")


def train_in(
    batching: Batching, job: Job, data: Data, trials: Sequence[Trial], device: torch.device, precision: Precision
) -> Iterator[TrialResult]:
    """Run trials chunk by chunk, with smaller chunks where memory runs out."""
    left, size = list(trials), batching.chunk
    while left:
        part = left[:size]
        try:
            with _own_randomness(part[0].seed, device):
                results = list(train(replica_group(batching, job, part, device), data, job.recipe, precision=precision))
        except (RuntimeError, MemoryError) as error:
            if size == 1 or not _is_shortage(error):
                raise
            size = max(min(size, len(part)) // 2, 1)
            torch.cuda.empty_cache()
            continue
        yield from results
        left = left[len(part) :]


def _is_shortage(error: Exception) -> bool:
    """Say whether an error means that memory ran out; torch's allocator for CPUs has no type of its own for that."""
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def fitted(batching: Batching, job: Job, data: Data, *, processes: int) -> Batching:
    """Return a batching whose chunks fit into a CPU's memory, in so many processes at once."""
    if batching.kind == "single" or batching.chunk < 2:
        return batching
    return replace(batching, chunk=min(batching.chunk, trials_that_fit(job, data, processes=processes)))


@contextlib.contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Let dropout draw from a seed of its own, and put the user's random state back."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


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

    Timing may cost a small part of what the plain loop would take in all; larger stacks are tried only while stacking
    wins, and on a CPU while they fit into memory in so many processes.
    """
    if device.type == "cuda" and not job.plan.graph.convolutions:
        # Matrix products stack well: nothing to choose, unless some other operator cannot be stacked.
        stacked = _timed(Batching("stacked", len(trials)), job, data, trials[:2], device, precision)
        return Batching("stacked" if math.isfinite(stacked.seconds) else "single", len(trials))
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
        batching = _timed(Batching("stacked", part), job, data, trials, device, precision)
        if batching.seconds >= best.seconds:
            break
        best = batching
    return best


def best_threads(batching: Batching, job: Job, data: Data, trials: Sequence[Trial]) -> tuple[int, float]:
    """Return how many of torch's threads train fastest on this CPU now, all or one, and the time of a trial's step.

    One thread was timed when the batching was chosen. Where that costs little, both are timed once more, in turns: on a
    busy machine a single timing is a coin's toss.
    """
    every = torch.get_num_threads()
    if every == 1 or _too_small_to_try(job, data, trials):
        return every, batching.seconds
    spent = {1: batching.seconds or math.inf, every: math.inf}
    part, device = trials[: batching.chunk], torch.device("cpu")
    with _own_randomness(0, device):
        group = replica_group(batching, job, part, device)
        total = step_count(len(data[0]), job.recipe) * len(trials) / len(part)
        for count in (every, 1, every) if total > _SHORT else (every,):
            with threads(count):
                measured = step_seconds(group, data, job.recipe, "float32", steps=1)
            spent[count] = min(spent[count], measured / len(part))
    best = min(spent, key=lambda count: spent[count])
    return best, spent[best]


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run torch's operators on so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_TIMING_SHARE = 0.04  # of the plain loop's whole time
_TIMED_STEPS = 2
_SHORT = 1000  # steps of chunks: 2 in each timing are then at most a fifth of a per cent each
_FEW_STEPS = 400  # of all trials together: fewer than some thirty times what timing takes
_FEW_OPERATIONS = 2e10


def _too_small_to_try(job: Job, data: Data, trials: Sequence[Trial]) -> bool:
    """Say whether timing would cost a good part of the work: few steps of a small network without convolutions."""
    steps = step_count(len(data[0]), job.recipe) * len(trials)
    size = sum(parameter.numel() for parameter in job.template.parameters())
    operations = 6 * size * min(job.recipe.batch_size, len(data[0])) * steps
    return steps < _FEW_STEPS and operations < _FEW_OPERATIONS and not job.plan.graph.convolutions


def _timed(
    batching: Batching, job: Job, data: Data, trials: Sequence[Trial], device: torch.device, precision: Precision
) -> Batching:
    """Return a batching with the time of one trial's step, infinite where it fails: not every operator stacks."""
    part = trials[: min(batching.chunk, 8) if batching.kind == "single" else batching.chunk]
    try:
        with _own_randomness(0, device):
            spent = step_seconds(replica_group(batching, job, part, device), data, job.recipe, precision, _TIMED_STEPS)
    except (RuntimeError, NotImplementedError, MemoryError):
        if batching.kind == "single":
            raise
        return Batching(batching.kind, batching.chunk, math.inf)
    return Batching(batching.kind, batching.chunk, spent / len(part))
