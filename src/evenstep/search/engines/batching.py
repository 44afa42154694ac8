"""How a chunk of copies is best trained: stacked or single, and how many at a time; found by a short trial."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from evenstep.search.cuda import Precision
from evenstep.search.job import Copy, Data, Job
from evenstep.search.memory import copies_that_fit
from evenstep.search.replicas import Fleet, Outcome, Singles, Squad, step_count, train, trial_seconds

Kind = Literal["stacked", "single"]


@dataclass(frozen=True, slots=True)
class Form:
    """A way to train: `chunk` copies together; `seconds` is what one copy's step took in the trial."""

    kind: Kind
    chunk: int
    seconds: float = 0.0


def squad_of(form: Form, job: Job, copies: Sequence[Copy], device: torch.device) -> Squad:
    """Return copies ready to train in a form."""
    if form.kind == "stacked":
        return Fleet(job, copies, device)
    return Singles(job, copies, device, channels_last=device.type == "cuda")


def train_in(
    form: Form, job: Job, data: Data, copies: Sequence[Copy], device: torch.device, precision: Precision
) -> Iterator[Outcome]:
    """Train copies chunk by chunk, with smaller chunks where memory runs out."""
    left, size = list(copies), form.chunk
    while left:
        part = left[:size]
        try:
            with _own_randomness(part[0].seed, device):
                outcomes = list(train(squad_of(form, job, part, device), data, job.recipe, precision=precision))
        except (RuntimeError, MemoryError) as error:
            if size == 1 or not _is_shortage(error):
                raise
            size = max(min(size, len(part)) // 2, 1)
            torch.cuda.empty_cache()
            continue
        yield from outcomes
        left = left[len(part) :]


def _is_shortage(error: Exception) -> bool:
    """Say whether an error means that memory ran out; torch's allocator for CPUs has no type of its own for that."""
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def fitted(form: Form, job: Job, data: Data, *, processes: int) -> Form:
    """Return a form whose chunks fit into a CPU's memory, in so many processes at once."""
    if form.kind == "single" or form.chunk < 2:
        return form
    return replace(form, chunk=min(form.chunk, copies_that_fit(job, data, processes=processes)))


@contextlib.contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Let dropout draw from a seed of its own, and put the user's random state back."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def chosen_form(
    job: Job,
    data: Data,
    copies: Sequence[Copy],
    device: torch.device,
    precision: Precision = "float32",
    *,
    processes: int = 1,
) -> Form:
    """Return the fastest form, by timing a step or two of each.

    A trial may cost a small part of what the plain loop would take in all; larger stacks are tried only while stacking
    wins, and on a CPU while they fit into memory in so many processes.
    """
    if device.type == "cuda" and not job.plan.graph.convolutions:
        # Matrix products stack well: nothing to choose, unless some other operator cannot be stacked.
        stacked = _timed(Form("stacked", len(copies)), job, data, copies[:2], device, precision)
        return Form("stacked" if math.isfinite(stacked.seconds) else "single", len(copies))
    if device.type == "cpu" and _too_small_to_try(job, data, copies):
        return Form("single", 1)
    total = step_count(len(data[0]), job.recipe) * len(copies)
    best = _timed(Form("single", len(copies) if device.type == "cuda" else 1), job, data, copies, device, precision)
    allowed = _TRIAL_SHARE * best.seconds * total
    most = len(copies)
    if device.type == "cpu" and most > 1:
        most = min(most, copies_that_fit(job, data, processes=processes))
    sizes = [most] if device.type == "cuda" else [8, 48, 192]
    for size in sizes:
        part = min(size, most)
        expected = best.seconds * part * (_TRIAL_STEPS + 1)
        if part < 2 or (best.kind == "stacked" and part == best.chunk) or (device.type == "cpu" and expected > allowed):
            break
        form = _timed(Form("stacked", part), job, data, copies, device, precision)
        if form.seconds >= best.seconds:
            break
        best = form
    return best


def best_threads(form: Form, job: Job, data: Data, copies: Sequence[Copy]) -> tuple[int, float]:
    """Return how many of torch's threads train a form fastest on this CPU now, all or one, and a copy's step's time.

    One thread was timed when the form was chosen. Where that costs little, both are timed once more, in turns: on a
    busy machine a single trial is a coin's toss.
    """
    every = torch.get_num_threads()
    if every == 1 or _too_small_to_try(job, data, copies):
        return every, form.seconds
    spent = {1: form.seconds or math.inf, every: math.inf}
    part, device = copies[: form.chunk], torch.device("cpu")
    with _own_randomness(0, device):
        squad = squad_of(form, job, part, device)
        total = step_count(len(data[0]), job.recipe) * len(copies) / len(part)
        for count in (every, 1, every) if total > _SHORT else (every,):
            with threads(count):
                trial = trial_seconds(squad, data, job.recipe, "float32", steps=1)
            spent[count] = min(spent[count], trial / len(part))
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


_TRIAL_SHARE = 0.04  # of the plain loop's whole time
_TRIAL_STEPS = 2
_SHORT = 1000  # steps of chunks: 2 in each trial are then at most a fifth of a per cent each
_FEW_STEPS = 400  # of all copies together: fewer than some thirty times what trials take
_FEW_OPERATIONS = 2e10


def _too_small_to_try(job: Job, data: Data, copies: Sequence[Copy]) -> bool:
    """Say whether trials would cost a good part of the work: few steps of a small network without convolutions."""
    steps = step_count(len(data[0]), job.recipe) * len(copies)
    size = sum(parameter.numel() for parameter in job.template.parameters())
    operations = 6 * size * min(job.recipe.batch_size, len(data[0])) * steps
    return steps < _FEW_STEPS and operations < _FEW_OPERATIONS and not job.plan.graph.convolutions


def _timed(
    form: Form, job: Job, data: Data, copies: Sequence[Copy], device: torch.device, precision: Precision
) -> Form:
    """Return a form with the time one copy's step takes in it, infinite where it fails: not every operator stacks."""
    part = copies[: min(form.chunk, 8) if form.kind == "single" else form.chunk]
    try:
        with _own_randomness(0, device):
            spent = trial_seconds(squad_of(form, job, part, device), data, job.recipe, precision, _TRIAL_STEPS)
    except (RuntimeError, NotImplementedError, MemoryError):
        if form.kind == "single":
            raise
        return Form(form.kind, form.chunk, math.inf)
    return Form(form.kind, form.chunk, spent / len(part))
