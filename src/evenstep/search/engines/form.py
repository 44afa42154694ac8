"""How a chunk of copies is best trained: stacked or single, and how many at a time; found by a short trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from evenstep.search.fleet import Fleet, Outcome, Precision, Singles, Squad, order, step_count, train
from evenstep.search.job import Copy, Data, Job
from evenstep.search.recipe import Recipe

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
            outcomes = list(train(squad_of(form, job, part, device), data, job.recipe, precision=precision))
        except (torch.cuda.OutOfMemoryError, MemoryError):
            if size == 1:
                raise
            size = max(min(size, len(part)) // 2, 1)
            torch.cuda.empty_cache()
            continue
        yield from outcomes
        left = left[len(part) :]


def chosen_form(job: Job, data: Data, copies: Sequence[Copy], device: torch.device) -> Form:
    """Return the fastest form, by timing a few steps of each; the plain loop where the work is too little to try."""
    steps = step_count(len(data[0]), job.recipe)
    single = Form("single", len(copies) if device.type == "cuda" else 1)
    if steps * len(copies) < _TRIAL_WORTH:
        return single
    candidates = [single]
    sizes = [len(copies)] if device.type == "cuda" else sorted({min(8, len(copies)), min(48, len(copies))})
    candidates += [Form("stacked", size) for size in sizes if size > 1]
    timed = [_timed(form, job, data, copies, device) for form in candidates]
    return min(timed, key=lambda form: form.seconds)


_TRIAL_WORTH = 64  # steps of single copies below which a trial costs more than it can save
_TRIAL_STEPS = 3


def _timed(form: Form, job: Job, data: Data, copies: Sequence[Copy], device: torch.device) -> Form:
    """Return a form with the time one copy's step takes in it, infinite where it fails: not every operator stacks."""
    part = copies[: min(form.chunk, 8 if form.kind == "single" else form.chunk)]
    try:
        squad = squad_of(form, job, part, device)
        best = _fastest(lambda: _steps(squad, data, job.recipe), device)
    except (RuntimeError, NotImplementedError, MemoryError):
        return Form(form.kind, form.chunk, float("inf") if form.kind == "stacked" else 1e9)
    return Form(form.kind, form.chunk, best / _TRIAL_STEPS / len(part))


def _steps(squad: Squad, data: Data, recipe: Recipe) -> None:
    for _, index in zip(range(_TRIAL_STEPS), order(len(data[0]), recipe), strict=False):
        place = index.to(squad.factor.device)
        squad.step_(data[0][place], data[1][place])


def _fastest(work: Callable[[], None], device: torch.device) -> float:
    times = []
    for _ in range(3):  # the first warms caches and allocators up
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
