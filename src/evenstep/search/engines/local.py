"""Run trials on this machine: in this process, or in worker processes with one thread each."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evenstep.errors import SearchWarning, warn
from evenstep.module.threads import threads
from evenstep.search.copying import NotAsSentError
from evenstep.search.cuda import Precision
from evenstep.search.engines.batching import Batching, best_threads, chosen_batching, fitted, placed, train_in
from evenstep.search.engines.main_script import refers_to_main, why_not_again
from evenstep.search.engines.workers import answers
from evenstep.search.fields import Data, each
from evenstep.search.job import Job, Trial
from evenstep.search.replicas import TrialResult, step_count

_START_SECONDS = 4.0  # cost of starting workers, mostly importing torch
_TRIES = 3
_ALONE = "in this process alone: engine=evenstep.search.LocalEngine(workers=1)"


@dataclass(frozen=True)
class LocalEngine:
    """Train on the GPU if there is one, else on the CPU's cores.

    `workers` is the number of processes on a CPU: by default one for each core if that pays; 1 stays in this process.
    `precision` applies on a GPU.
    """

    device: str | None = None
    workers: int | None = None
    precision: Precision = "float32"

    def choose(self, job: Job, data: Data, trials: Sequence[Trial]) -> Batching:
        """Return the fastest batching by timing a few steps, on a CPU with one thread, as in a worker."""
        device, processes = self._device(), self._processes(trials)
        here = placed(data, device)
        with threads(1, device):
            batching = chosen_batching(job, here, trials, device, self.precision, processes=processes)
        if device.type != "cpu":
            return batching
        count, seconds = best_threads(batching, job, here, trials)
        if self._worth_workers(batching, seconds, job, here, trials):
            if _can_travel(job):
                return replace(batching, processes=processes)
            _report_script(job)
        return replace(batching, threads=count)

    def run(
        self, job: Job, data: Data, trials: Sequence[Trial], batching: Batching | None = None
    ) -> Iterator[TrialResult]:
        """Run the trials and yield each as soon as it is known."""
        device = self._device()
        here = placed(data, device)
        batching = batching or self.choose(job, here, trials).for_wave(len(trials))
        if device.type == "cpu":
            batching = fitted(batching, job, here, processes=self._processes(trials))
            worth = self._worth_workers(batching, batching.seconds, job, here, trials)
            if worth and not job.stays and _can_travel(job):
                left = list(trials)
                try:
                    for result in _in_workers(batching, job, here, trials, self.workers or _cores()):
                        left.remove(result.trial)
                        yield result
                except NotAsSentError as error:
                    job.keep_here_()
                    warn(f"the trials train in one process: {error}", SearchWarning)
                trials = left
        yield from train_in(batching, job, here, trials, device, self.precision if device.type == "cuda" else "float32")

    def _processes(self, trials: Sequence[Trial]) -> int:
        return min(self.workers or _cores(), len(trials))

    def _device(self) -> torch.device:
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def close(self) -> None:
        """Do nothing: the engine holds nothing between runs."""

    def _worth_workers(self, batching: Batching, seconds: float, job: Job, data: Data, trials: Sequence[Trial]) -> bool:
        """Say whether workers with one thread each beat this process, if a trial's step takes `seconds`."""
        workers = self._processes(trials)
        if workers < 2:
            return False
        steps = len(trials) * step_count(len(data[0]), job.recipe)
        pays = batching.threads == 1 and batching.seconds * steps / workers + _START_SECONDS < seconds * steps
        return pays or self.workers is not None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _can_travel(job: Job) -> bool:
    """Say whether a job can be sent to other processes.

    Classes from a function, a notebook, or a script that starts searches without a guard cannot.
    """
    pickled = _pickled(job)
    return pickled is not None and (not refers_to_main(pickled) or why_not_again() is None)


def _report_script(job: Job) -> None:
    """Warn that trials train in one process because of the script that defines their network."""
    if _pickled(job) is not None:
        kind = type(job.template).__name__
        warn(f"the trials of {kind} train in one process: {why_not_again()}", SearchWarning)


def _pickled(job: Job) -> bytes | None:
    try:
        return pickle.dumps(job)
    except Exception:
        return None


def _train_chunk(pickled: bytes, data: Data, batching: Batching, trials: list[Trial]) -> list[TrialResult]:
    """Train a chunk, in a worker.

    The job comes as bytes, not as tensors in shared memory, which would be freed with the sender's copy before they are
    read.
    """
    return list(train_in(batching, _unpickled(pickled), data, trials, torch.device("cpu"), "float32"))


@functools.lru_cache(maxsize=1)
def _unpickled(pickled: bytes) -> Job:
    """Return a worker's job, after checking that it is the same as where it was made."""
    try:
        job: Job = pickle.loads(pickled)
    except Exception as error:
        raise NotAsSentError(
            f"a new process cannot load the network or the loss ({type(error).__name__}: {error}); define their "
            "classes and functions in a module that it can import"
        ) from error
    job.require_as_sent()
    return job


def _in_workers(
    batching: Batching, job: Job, data: Data, trials: Sequence[Trial], workers: int
) -> Iterator[TrialResult]:
    """Hand chunks to worker processes; a lost worker's chunk goes to a new one."""
    shared, pickled = (each(data[0], _shared), each(data[1], _shared)), pickle.dumps(job)
    size = batching.chunk
    chunks = [(batching, list(trials[start : start + size])) for start in range(0, len(trials), size)]
    trained = answers(
        functools.partial(_train_chunk, pickled, shared),
        chunks,
        workers,
        remedy=f"train with fewer workers, or {_ALONE}",
        losses=_TRIES * workers,
        needs_main=refers_to_main(pickled),
    )
    with contextlib.closing(trained):  # so that workers end at once where a search is given up
        for _, results in trained:
            yield from results


def _shared(tensor: Tensor) -> Tensor:
    """Return a copy that other processes can read without another copy."""
    copied: Tensor = tensor.clone().share_memory_()  # type: ignore[no-untyped-call]
    return copied
