"""Run a function on many arguments in processes of one thread each, and never leave a process behind."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

from evenstep.errors import EvenstepError, SearchError
from evenstep.search.engines.main_script import without_main

Result = TypeVar("Result")


def results_of(
    function: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[int, Result]]:
    """Yield the index of each task with its result, in the order in which tasks end.

    With one worker, everything runs in this process.
    """
    if workers == 1:
        for place, task in enumerate(tasks):
            yield place, function(*task)
        return
    waiting = list(range(len(tasks)))[::-1]
    busy: dict[Connection, int] = {}
    processes: list[BaseProcess] = []

    def give(pipe: Connection) -> None:
        busy[pipe] = waiting.pop()
        pipe.send(tasks[busy[pipe]])

    try:
        while waiting and len(processes) < workers:
            give(_started(function, processes))
        while busy:
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                place = busy.pop(pipe)
                try:
                    answer = pipe.recv()
                except (EOFError, OSError):
                    raise SearchError(
                        "a process was killed, perhaps because memory ran out; run the command again"
                    ) from None
                if isinstance(answer, Exception):
                    raise answer
                yield place, answer
                if waiting:
                    give(pipe)
                else:
                    pipe.close()  # the process ends by itself
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
            process.join()


def _started(function: Callable[..., Any], processes: list[BaseProcess]) -> Connection:
    """Start a process and return the pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(function, theirs), daemon=True)
    with without_main(), _interrupts_held():
        process.start()
    processes.append(process)
    theirs.close()  # so that waiting ends when the process, then its only holder, dies
    return ours


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: this process receives it and ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(function: Callable[..., Any], pipe: Connection) -> None:
    """Answer tasks that come through a pipe, until it closes."""
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                pipe.send(function(*task))
            except EvenstepError as error:
                pipe.send(error)
