"""Check that every engine trains the same trials to the same losses, whatever dies on the way."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenstep.errors import SearchError
from evenstep.search import Engine, LocalEngine
from evenstep.search.engines.batching import Batching, train_in
from evenstep.search.job import Job, Trial
from evenstep.search.recipe import Recipe
from evenstep.search.replicas import TrialResult
from tests.search import plain

torch.set_num_threads(1)

CPU = torch.device("cpu")
TRIALS = [Trial(lr, seed) for lr in (0.01, 0.05, 0.2, 1e30) for seed in range(2)]


def job(make: plain.Make = plain.mlp, *, steps: int = 8) -> Job:
    return plain.job_of(make, plain.images(), Recipe(steps=steps, batch_size=10, optimizer="momentum"))


def by_trial(found: list[TrialResult]) -> dict[Trial, TrialResult]:
    assert len({result.trial for result in found}) == len(found), "a trial was yielded twice"
    return {result.trial: result for result in found}


def assert_plain(found: dict[Trial, TrialResult], make: plain.Make, trials: list[Trial], *, steps: int = 8) -> None:
    """Compare with trials trained one after the other by torch's own SGD."""
    assert set(found) == set(trials)
    for one in trials:
        expected = plain.trained(
            make,
            plain.images(),
            lr=one.lr,
            seed=one.seed,
            optimizer=lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
            steps=steps,
            batch_size=10,
        )
        assert found[one].loss == pytest.approx(expected.loss, rel=1e-8)
        known = len(expected.curve) - (expected.loss == float("inf"))
        assert found[one].curve[:known] == pytest.approx(expected.curve[:known], rel=1e-8)


@pytest.mark.parametrize("workers", [1, 2, 3, None])
def test_workers_train_what_a_plain_loop_trains(workers: int | None) -> None:
    found = by_trial(list(LocalEngine(workers=workers).run(job(), plain.images(), TRIALS)))
    assert_plain(found, plain.mlp, TRIALS)


def children(parent: int) -> set[int]:
    """Return the processes below one, by /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                status = (entry / "stat").read_text()
                parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
    found: set[int] = set()
    fresh = {parent}
    while fresh:
        fresh = {pid for pid, above in parents.items() if above in fresh} - found
        found |= fresh
    return found


class Marked(nn.Module):
    """A network that leaves the id of every process that trains it in a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.inner = plain.mlp()

    def forward(self, x: Tensor) -> Tensor:
        Path(self.folder, str(os.getpid())).touch()
        result: Tensor = self.inner(x)
        return result


def marked_job(folder: Path, *, steps: int) -> Job:
    """Return a job like `job`, of networks that say where they run."""
    plainly = job(steps=steps)
    template = Marked(str(folder))
    own = {f"inner.{p.name}": p for p in plainly.plan.parameters}
    planned = dataclasses.replace(
        plainly.plan, parameters=tuple(dataclasses.replace(p, name=name) for name, p in own.items())
    )
    kept = {seed: {f"inner.{n}": v for n, v in values.items()} for seed, values in plainly.kept.items()}
    return Job(template, planned, plainly.recipe, kept)


@contextlib.contextmanager
def killer(folder: Path, *, kills: int) -> Iterator[list[int]]:
    """Kill processes that train, other than this one, as soon as they are seen in the folder."""
    killed: list[int] = []
    stop = threading.Event()

    def hunt() -> None:
        while not stop.wait(0.005) and len(killed) < kills:
            for name in os.listdir(folder):
                pid = int(name)
                if pid != os.getpid() and pid not in killed and pid in children(os.getpid()) and len(killed) < kills:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=hunt)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


LONG = 400
MANY = [Trial(lr, seed) for lr in (0.001, 0.002, 0.004) for seed in range(2)]


def test_a_worker_killed_at_work_changes_nothing(tmp_path: Path) -> None:
    with killer(tmp_path, kills=1) as killed:
        found = by_trial(list(LocalEngine(workers=2).run(marked_job(tmp_path, steps=LONG), plain.images(), MANY)))
    assert len(killed) == 1
    assert_plain(found, plain.mlp, MANY, steps=LONG)


def test_workers_that_always_die_end_the_search_with_a_reason(tmp_path: Path) -> None:
    with killer(tmp_path, kills=10**6) as killed, pytest.raises(SearchError, match=r"workers died .* fewer workers"):
        list(LocalEngine(workers=2).run(marked_job(tmp_path, steps=20 * LONG), plain.images(), MANY))
    assert len(killed) >= 3


def test_workers_are_gone_when_a_run_is_given_up(tmp_path: Path) -> None:
    """The first results are taken and the rest is not wanted: what still trains is ended, and soon."""
    crowd = [Trial(0.001 + 0.0001 * place, place % 2) for place in range(400)]
    engine = LocalEngine(workers=2)
    stream = engine.run(marked_job(tmp_path, steps=LONG // 4), plain.images(), crowd)
    next(stream)
    workers = {int(name) for name in os.listdir(tmp_path)} - {os.getpid()}
    assert workers
    before = time.monotonic()
    stream.close()  # type: ignore[attr-defined]
    assert time.monotonic() - before < 4.0
    assert not workers & children(os.getpid())


def test_a_job_that_cannot_travel_is_trained_here() -> None:
    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = plain.mlp()
            self.act: Callable[[Tensor], Tensor] = lambda value: value  # no pickle takes this

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.layers(x))

    found = by_trial(list(LocalEngine(workers=2).run(job(Local), plain.images(), TRIALS)))
    assert_plain(found, Local, TRIALS)


# Chunks


@pytest.mark.parametrize("kind", ["stacked", "single"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_trials_in_chunks_are_the_trials_together(kind: Any, chunk: int) -> None:
    found = by_trial(list(train_in(Batching(kind, chunk), job(), plain.images(), TRIALS, CPU, "float32")))
    assert_plain(found, plain.mlp, TRIALS)


def scarce(room: int, seen: list[int]) -> Any:
    """Return a loss that runs out of memory where more than `room` trials are stacked."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        # Under vmap a tensor wraps another with one dimension more: the trials.
        stacked: Tensor = torch._C._functorch.get_unwrapped(output)
        trials = stacked.numel() // max(output.numel(), 1)
        seen.append(trials)
        if trials > room:
            raise MemoryError
        return nn.functional.cross_entropy(output, target)

    return loss


@pytest.mark.parametrize("room", [1, 2, 5])
def test_where_memory_runs_out_chunks_become_smaller(room: int) -> None:
    seen: list[int] = []
    data = plain.images()
    recipe = Recipe(steps=8, batch_size=10, optimizer="momentum", loss=scarce(room, seen))
    scarcely = plain.job_of(plain.mlp, data, recipe)
    found = by_trial(list(train_in(Batching("stacked", 8), scarcely, data, TRIALS, CPU, "float32")))
    assert_plain(found, plain.mlp, TRIALS)
    # Each size was tried, and refused, until one fitted.
    tried = [size for size in (8, 4, 2, 1) if size > room or size * 2 > room]
    assert list(dict.fromkeys(seen))[: len(tried)] == tried


def test_where_there_is_no_room_for_one_trial_the_error_is_raised() -> None:
    data = plain.images()
    recipe = Recipe(steps=8, batch_size=10, loss=scarce(0, []))
    with pytest.raises(MemoryError):
        list(train_in(Batching("stacked", 8), plain.job_of(plain.mlp, data, recipe), data, TRIALS, CPU, "float32"))


# Ray


@pytest.fixture(scope="module")
def ray_engine() -> Iterator[Engine]:
    pytest.importorskip("ray")
    from evenstep.search.engines.ray import RayEngine

    engine = RayEngine(chunk=2)
    yield engine
    engine.close()


# Ray itself leaves files and sockets to the garbage collector.
RAY = [
    pytest.mark.exhaustive,  # a cluster takes a minute to start on two busy cores
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class TestRay:
    pytestmark = RAY

    def test_ray_trains_what_a_plain_loop_trains(self, ray_engine: Engine) -> None:
        found = by_trial(list(ray_engine.run(job(), plain.images(), TRIALS)))
        assert_plain(found, plain.mlp, TRIALS)

    def test_a_ray_worker_killed_at_work_changes_nothing(self, ray_engine: Engine, tmp_path: Path) -> None:
        with killer(tmp_path, kills=2) as killed:
            found = by_trial(list(ray_engine.run(marked_job(tmp_path, steps=LONG), plain.images(), MANY)))
        assert len(killed) == 2
        assert_plain(found, plain.mlp, MANY, steps=LONG)

    def test_a_cluster_of_one_machine_listens_to_nobody_else(self, ray_engine: Engine) -> None:
        list(ray_engine.run(job(), plain.images(), TRIALS[:2]))
        assert {host for _, host in listening(os.getpid())} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        assert {"raylet", "gcs_server"} <= {name for name, _ in listening(os.getpid())}  # it is there to be looked at

    def test_what_ray_says_of_a_dead_worker_is_not_on_standard_output(self, tmp_path: Path) -> None:
        script = tmp_path / "dying.py"
        script.write_text(DYING)
        said = tmp_path / "flag.err"
        with said.open("w") as file:
            done = subprocess.run(
                [sys.executable, str(script), str(tmp_path / "flag")],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                check=False,
                timeout=300,
            )
        assert done.returncode == 0, said.read_text()
        assert done.stdout == "[0, 1, 2]\n"

    def test_what_a_task_raises_is_raised_as_it_was(self, ray_engine: Engine) -> None:
        wrong = plain.images()[0], torch.full_like(plain.images()[1], 99)
        with pytest.raises(IndexError, match="99 is out of bounds"):
            list(ray_engine.run(job(), wrong, TRIALS[:2], Batching("single", 1)))


DYING = """
import os, sys, time
from evenstep.search.engines.ray_cluster import RayCluster

cluster = RayCluster()
ray = cluster.join()


@ray.remote(num_cpus=1, max_retries=5)
def work(number, flag):
    if number == 0 and not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), 9)
    return number


answers = ray.get([work.remote(number, sys.argv[1]) for number in range(3)])
while "worker died" not in open(sys.argv[1] + ".err").read():  # it is said a little later, by a thread
    os.sched_yield()
cluster.leave()
print(answers)
"""


def listening(pid: int) -> set[tuple[str, str]]:
    """Return the names and addresses of what a process and all that it started listen on, from what Linux says."""
    psutil = pytest.importorskip("psutil")
    me = psutil.Process(pid)
    return {
        (process.name(), connection.laddr.ip)
        for process in (me, *me.children(recursive=True))
        for connection in process.net_connections(kind="tcp")
        if connection.status == "LISTEN"
    }
