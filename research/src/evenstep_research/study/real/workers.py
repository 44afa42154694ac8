"""Hand runs to processes and take their losses back, or train in this process where one is enough."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from evenstep.errors import EvenstepError, SearchError
from evenstep.graph import Graph
from evenstep_research.study.real import work
from evenstep_research.study.real.runs import Run
from evenstep_research.study.real.work import Place


@dataclass(frozen=True)
class Done:
    """Hold a finished run, its loss and the seconds it took; `loss` is None where memory had no room for it."""

    run: Run
    loss: float | None
    seconds: float = 0.0


class Work(Protocol):
    """What processes do: a module whose functions they find by their names."""

    def settle(self, place: Place) -> None:
        """Prepare a process."""

    def traced(self, name: str) -> Graph:
        """Return the graph of a network."""

    def trained(self, run: Run, details: Any) -> tuple[float, float]:
        """Train a run by what its name does not hold, such as its plan; return its loss and the seconds taken."""


class RunWorkers:
    """Train runs in processes that can be ended at any time; one worker without a deadline trains in this process."""

    def __init__(self, place: Place, workers: int, *, apart: bool, work: Work = work) -> None:
        self.work = work
        self.workers, self.place = workers, replace(place, shared=workers > 1)
        self.pool: ProcessPoolExecutor | None = None
        self.apart = apart or workers > 1
        self.under_way: dict[Future[tuple[float, float]], Run] = {}
        self.others = set(multiprocessing.active_children())

    def __enter__(self) -> RunWorkers:
        if self.apart:
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(
                self.workers, mp_context=context, initializer=self.work.settle, initargs=(self.place,)
            )
        else:
            self.work.settle(self.place)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or self.under_way:  # do not wait for runs that nobody will read
            for process in set(multiprocessing.active_children()) - self.others:
                process.kill()
        if self.pool:
            self.pool.shutdown(cancel_futures=True)

    def graphs(self, names: Sequence[str]) -> list[Graph]:
        """Return the graphs of networks, traced by all workers."""
        if self.pool is None:
            return [self.work.traced(name) for name in names]
        try:
            with _interrupts_held():
                futures = [self.pool.submit(self.work.traced, name) for name in names]
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise _died() from None

    def hand_out(self, run: Run, details: Any) -> None:
        """Begin a run; without processes it is trained when it is waited for."""
        future: Future[tuple[float, float]] = Future()
        if self.pool is not None:
            try:
                with _interrupts_held():
                    future = self.pool.submit(self.work.trained, run, details)
            except BrokenProcessPool:
                raise _died() from None
        else:
            future.set_result(self._here(run, details))
        self.under_way[future] = run

    def finished(self, *, deadline: float | None) -> list[Done]:
        """Wait for runs under way and return those that are done; none where the deadline has come first."""
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        done, _ = wait(self.under_way, timeout=left, return_when=FIRST_COMPLETED)
        return [_result(self.under_way.pop(future), future) for future in done]

    def _here(self, run: Run, details: Any) -> tuple[float, float]:
        """Train in this process, with errors that name the run."""
        try:
            return self.work.trained(run, details)
        except Exception as error:
            raise _named(run, error) from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes that an interrupt from the keyboard does not reach: this one hears it, later, and ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _result(run: Run, future: Future[tuple[float, float]]) -> Done:
    try:
        return Done(run, *future.result())
    except BrokenProcessPool:
        raise _died() from None
    except torch.cuda.OutOfMemoryError:
        return Done(run, None)
    except Exception as error:
        raise _named(run, error) from error


def _named(run: Run, error: Exception) -> SearchError:
    """Return an error that names the run it came from."""
    said = str(error) if isinstance(error, EvenstepError) else f"{type(error).__name__}: {error}"
    return SearchError(f"the run '{run.words}' failed ({said}); what was measured before is in the ledger, if any")


def _died() -> SearchError:
    return SearchError(
        "a worker process died, for want of memory perhaps; what was measured is in the ledger, if there is one: go on "
        "with fewer --workers"
    )
