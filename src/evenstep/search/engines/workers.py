"""Run a function on many tasks in processes of one thread each, and leave none behind, whatever ends it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch
import torch.multiprocessing  # teaches pickle to hand tensors over as shared memory

from evenstep.errors import EvenstepError, SearchError
from evenstep.search.engines.main_script import without_main

Answer = TypeVar("Answer")

_GRACE = 5.0  # seconds for an idle worker to end


def answers(
    function: Callable[..., Answer],
    tasks: Sequence[tuple[Any, ...]],
    workers: int,
    *,
    remedy: str,
    losses: int = 0,
    needs_main: bool = False,
) -> Generator[tuple[int, Answer], None, None]:
    """Yield the place of every task and what the function returns for it, in the order in which they end.

    One worker is this process. The task of a worker that dies is given to a new one, until more than `losses` have
    died: that is an error which ends with `remedy`. Workers run the main script again only where the function or its
    tasks need what it defines.
    """
    if workers == 1:
        for place, task in enumerate(tasks):
            yield place, function(*task)
        return
    waiting = list(range(len(tasks)))[::-1]
    busy: list[_Worker] = []
    lost = 0
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                busy.append(_Worker.started(function, remedy, needs_main=needs_main))
                busy[-1].give(waiting.pop(), tasks)
            for ready in wait([worker.pipe for worker in busy]):
                worker = next(worker for worker in busy if worker.pipe is ready)
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    lost += 1
                    if lost > losses:
                        times = "a worker died" if lost == 1 else f"workers died {lost} times"
                        raise SearchError(f"{times}, perhaps for want of memory; {remedy}") from None
                    waiting.append(worker.place)
                    busy.remove(worker)
                    worker.stop()
                    continue
                if isinstance(answer, Exception):
                    raise answer
                yield worker.place, answer
                if waiting:
                    worker.give(waiting.pop(), tasks)
                else:
                    busy.remove(worker)
                    worker.dismiss()
    finally:
        for worker in busy:
            worker.stop()


@dataclass(eq=False)
class _Worker:
    """A worker process, the pipe to it, and the place of the task it is at."""

    process: BaseProcess
    pipe: Connection
    place: int = -1

    @classmethod
    def started(cls, function: Callable[..., Any], remedy: str, *, needs_main: bool) -> _Worker:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if context.get_start_method() == "forkserver":
            context.set_forkserver_preload(["evenstep.search.engines"])
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, function, remedy), daemon=True)
        with contextlib.nullcontext() if needs_main else without_main():
            process.start()
        theirs.close()  # so that the death of the worker, the last to hold it, ends our waiting
        return cls(process, ours)

    def give(self, place: int, tasks: Sequence[tuple[Any, ...]]) -> None:
        self.place = place
        with contextlib.suppress(OSError):  # a worker that is gone is noticed when it is waited for
            self.pipe.send(tasks[place])

    def dismiss(self) -> None:
        """Let a worker without a task end by itself, so that it can release what its imports hold."""
        self.pipe.close()
        self.process.join(_GRACE)
        self.stop()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, function: Callable[..., Any], remedy: str) -> None:
    """Answer the tasks that come through a pipe, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one hears it, and ends both
    end_with_parent()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                pipe.send(function(*task))
            except EvenstepError as error:
                pipe.send(error)
            except Exception as error:
                pipe.send(SearchError(f"a worker failed with {type(error).__name__}: {error}; {remedy}"))


def end_with_parent() -> None:
    """End this process when its parent has died, killed perhaps."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
