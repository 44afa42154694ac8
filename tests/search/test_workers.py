"""Check the pool of worker processes on functions of Python's own, and that no process outlives who started it."""

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest

from evenstep.errors import SearchError
from evenstep.search.engines.workers import answers

KILLED = """
import multiprocessing, threading, time
from evenstep.search.engines.workers import answers

def tell():
    while len(multiprocessing.active_children()) < 2:
        time.sleep(0.01)
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)

threading.Thread(target=tell, daemon=True).start()
list(answers(time.sleep, [(0.0,), (0.0,), (600.0,), (600.0,)], 2, remedy=""))
"""


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_task_is_answered_once_whatever_the_number_of_workers(workers: int) -> None:
    tasks = [(number**2,) for number in range(9)]
    assert dict(answers(math.isqrt, tasks, workers, remedy="")) == dict(enumerate(range(9)))
    assert not multiprocessing.active_children()


def test_what_fails_in_a_worker_is_said_with_the_remedy() -> None:
    with pytest.raises(SearchError, match=r"a worker failed with ValueError: .*; give other numbers"):
        list(answers(math.isqrt, [(-1,), (-4,)], 2, remedy="give other numbers"))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("losses", "said"), [(0, "a worker died"), (2, "workers died 3 times")])
def test_workers_that_die_are_replaced_so_many_times(losses: int, said: str) -> None:
    with pytest.raises(SearchError, match=f"{said}, perhaps for want of memory; take fewer"):
        list(answers(os._exit, [(1,)] * 4, 2, remedy="take fewer", losses=losses))
    assert not multiprocessing.active_children()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them")
def test_workers_end_with_the_process_that_started_them() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert all(runs(pid) for pid in workers)
        parent.send_signal(signal.SIGKILL)
    tick, end = Event(), time.monotonic() + 60
    while any(runs(pid) for pid in workers) and time.monotonic() < end:
        tick.wait(0.05)
    assert not any(runs(pid) for pid in workers)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
