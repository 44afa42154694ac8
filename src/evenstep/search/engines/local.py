"""Train copies on this machine: in this process, or on several cores in worker processes of one thread each."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import torch
import torch.multiprocessing  # teaches pickle to hand tensors over as shared memory
from torch import Tensor

from evenstep.errors import SearchError
from evenstep.search.engines.form import Form, best_threads, chosen_form, train_in
from evenstep.search.fleet import Outcome, Precision, step_count
from evenstep.search.job import Copy, Data, Job

_START_SECONDS = 6.0  # what starting workers costs, importing torch above all
_TRIES = 3


@dataclass(frozen=True)
class LocalEngine:
    """Train on the GPU if there is one, else on the CPU's cores.

    `workers` is the number of processes on a CPU: left out, one for each core where that pays; 1 stays in this process.
    `precision` applies on a GPU.
    """

    device: str | None = None
    workers: int | None = None
    precision: Precision = "float32"

    def run(self, job: Job, data: Data, copies: Sequence[Copy]) -> Iterator[Outcome]:
        """Train the copies and yield each as soon as it is known."""
        device = torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        placed = (data[0].to(device), data[1].to(device))
        if device.type == "cuda":
            form = chosen_form(job, placed, copies, device, self.precision)
            yield from train_in(form, job, placed, copies, device, self.precision)
            return
        with threads(1):
            form = chosen_form(job, placed, copies, device)
        if self._worth_workers(form, job, placed, copies):
            yield from _in_workers(form, job, placed, copies, self.workers or _cores())
        else:
            with threads(best_threads(form, job, placed, copies)):
                yield from train_in(form, job, placed, copies, device, "float32")

    def close(self) -> None:
        """Hold nothing between runs."""

    def _worth_workers(self, form: Form, job: Job, data: Data, copies: Sequence[Copy]) -> bool:
        workers = self.workers or _cores()
        if workers < 2 or len(copies) < 2:
            return False
        alone = form.seconds * len(copies) * step_count(len(data[0]), job.recipe)
        asked = self.workers is not None
        return (asked or alone * (1 - 1 / workers) > _START_SECONDS) and _can_travel(job)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run torch's operators on so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _can_travel(job: Job) -> bool:
    """Say whether a job can be sent to another process: classes defined in a function or a notebook cannot."""
    try:
        pickle.dumps(job)
    except Exception:
        return False
    return True


_worker: dict[str, object] = {}


def _prepare(job: Job, data: Data) -> None:
    """Set a worker up, once."""
    torch.set_num_threads(1)
    _worker["job"], _worker["data"] = job, data


def _work(form: Form, copies: list[Copy]) -> list[Outcome]:
    job, data = _worker["job"], _worker["data"]
    assert isinstance(job, Job)
    return list(train_in(form, job, data, copies, torch.device("cpu"), "float32"))  # type: ignore[arg-type]


def _in_workers(form: Form, job: Job, data: Data, copies: Sequence[Copy], workers: int) -> Iterator[Outcome]:
    """Hand chunks to worker processes; what a lost worker had is given to a new one."""
    shared = (_shared(data[0]), _shared(data[1]))
    size = max(min(form.chunk, -(-len(copies) // workers)), 1)
    waiting = [list(copies[start : start + size]) for start in range(0, len(copies), size)]
    for _ in range(_TRIES):
        lost: list[list[Copy]] = []
        yield from _one_pool(form, job, shared, waiting, workers, lost)
        waiting = lost
        if not waiting:
            return
        time.sleep(0.1)
    raise SearchError(f"workers died {_TRIES} times while training {len(waiting)} chunks; train with fewer workers")


def _shared(tensor: Tensor) -> Tensor:
    """Return a copy that other processes can read without copying it again."""
    copied: Tensor = tensor.clone().share_memory_()  # type: ignore[no-untyped-call]
    return copied


def _one_pool(
    form: Form, job: Job, data: Data, chunks: list[list[Copy]], workers: int, lost: list[list[Copy]]
) -> Iterator[Outcome]:
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["evenstep.search.engines.local"])
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare, initargs=(job, data))
    running: dict[Future[list[Outcome]], list[Copy]] = {}
    try:
        running = {pool.submit(_work, form, chunk): chunk for chunk in chunks}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                chunk = running.pop(future)
                try:
                    outcomes = future.result()
                except BrokenProcessPool:
                    lost.append(chunk)
                    continue
                yield from outcomes
    finally:
        for process in list((pool._processes or {}).values()) if running else ():
            process.terminate()  # interrupted: do not wait for chunks that nobody wants
        pool.shutdown(wait=True, cancel_futures=True)
