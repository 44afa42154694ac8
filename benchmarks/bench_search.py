"""The search's engine against what one would write by hand, as ratios of wall time within one run.

    python benchmarks/bench_search.py [--cases NAME ...] [--repeats 5] [--record results/bench_search/cpu.json]

(a) a plain eager loop over trials, data on the device, torch.optim; (b) on a CPU one process per trial, as many at a
time as there are cores, one thread each. A ratio above 1 means that the engine is faster; all trained trials and the
evaluation at the end count, and so do the engine's own timings and its workers' start. The ways take turns; times are
medians over the repeats, ratios those of medians.

`--cases "2000 copies"` runs another check, once and on the engine alone: that many trials of a large network finish,
and how much memory all processes together had at most.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import evenstep as es
from evenstep.search import LocalEngine
from evenstep.search.cuda import Precision
from evenstep.search.fields import TensorPair
from evenstep.search.job import Job, Trial
from evenstep.search.memory import trials_that_fit
from evenstep.search.recipe import Recipe
from evenstep.search.replicas import order
from evenstep_research.spaces import DagCNN, DagMLP, NasBench201
from evenstep_research.study.record import write_record

CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_3x3~1|nor_conv_3x3~2|"


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    examples: int
    trials: int
    recipe: Recipe
    precision: Precision = "float32"


def mlp_small() -> nn.Module:
    return DagMLP("2", width=64, inputs=64)


def mlp_cifar() -> nn.Module:
    return DagMLP("2", width=256)


def cnn_small() -> nn.Module:
    return DagCNN("2_02", width=16, channels=3, norm="batch")


def nasbench() -> nn.Module:
    return NasBench201(CELL)


CPU = {
    "mlp 64-64, 192 copies": Case(mlp_small, (64,), 4096, 192, Recipe(batch_size=64, epochs=2)),
    "mlp 64-64, 8 copies": Case(mlp_small, (64,), 4096, 8, Recipe(batch_size=64, epochs=2)),
    "mlp 64-64, 2 copies, 20 steps": Case(mlp_small, (64,), 1280, 2, Recipe(batch_size=64)),
    "mlp 3072-256, 24 copies": Case(mlp_cifar, (3072,), 5120, 24, Recipe(batch_size=256)),
    "cnn 16 channels, 16 copies": Case(cnn_small, (3, 16, 16), 2560, 16, Recipe(batch_size=64)),
}
MANY = {"mlp 3072-256, 2000 copies": Case(mlp_cifar, (3072,), 512, 2000, Recipe(batch_size=256))}
CUDA = {
    "mlp 3072-256-256-10, 81 copies, tf32": Case(
        mlp_cifar, (3072,), 50_000, 81, Recipe(optimizer="momentum", batch_size=256), "tf32"
    ),
    "mlp 3072-256-256-10, 81 copies, float32": Case(
        mlp_cifar, (3072,), 50_000, 81, Recipe(optimizer="momentum", batch_size=256)
    ),
    "nasbench201 C=16 N=5, 24 copies, bfloat16": Case(
        nasbench, (3, 32, 32), 50_000, 24, Recipe(optimizer="momentum", batch_size=256), "bfloat16"
    ),
}


def trials_of(case: Case) -> list[Trial]:
    rates = max(case.trials // 3, 1)
    step = min(1 / 8, 8 / rates)  # octaves; eight of them at most, for trials that diverge leave early
    return [Trial(0.005 * 2.0 ** (i % rates * step), i // rates) for i in range(case.trials)]


def by_hand(job: Job, data: TensorPair, trial: Trial, device: torch.device) -> float:
    """Train one trial with torch.optim; return its loss on all the data."""
    recipe = job.recipe
    model = job.start(trial.seed).to(device).train()
    optimizer = torch.optim.SGD(
        job.plan.param_groups(model, lr=trial.lr), momentum=recipe.momentum_used, nesterov=recipe.nesterov_used
    )
    for index in order(len(data[0]), recipe):
        place = index.to(device)
        optimizer.zero_grad()
        recipe.loss(model(data[0][place]), data[1][place]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()
    with torch.no_grad():
        parts = zip(torch.split(data[0], 1024), torch.split(data[1], 1024), strict=True)
        total = sum(float(recipe.loss(model(x), y)) * len(x) for x, y in parts)
    return total / len(data[0])


_shared: dict[str, tuple[Job, TensorPair]] = {}


def _prepare(job: Job, data: TensorPair) -> None:
    torch.set_num_threads(1)
    _shared["work"] = (job, data)


def _one(trial: Trial) -> float:
    job, data = _shared["work"]
    return by_hand(job, data, trial, torch.device("cpu"))


def in_processes(job: Job, data: TensorPair, trials: Sequence[Trial]) -> list[float]:
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context, initializer=_prepare, initargs=(job, data)) as pool:
        return list(pool.map(_one, trials))


def prepared(case: Case, device: torch.device) -> tuple[Job, TensorPair, list[Trial]]:
    """Return the job of a case, its data on the device, and its trials."""
    generator = torch.Generator().manual_seed(0)
    inputs: Tensor = torch.randn(case.examples, *case.shape, generator=generator)
    targets = torch.randint(10, (case.examples,), generator=generator)
    plan = es.plan(case.make(), inputs[:2], optimizer=case.recipe.optimizer)
    job = Job.of(case.make, plan, case.recipe, range(3))
    return job, (inputs.to(device), targets.to(device)), trials_of(case)


def measured(case: Case, device: torch.device, repeats: int) -> dict[str, float]:
    """Return the median wall times of one case and their ratios; losses must agree."""
    job, data, trials = prepared(case, device)
    # The loop is the same work for every trial: on a GPU some trials stand for all.
    tried = trials if device.type == "cpu" else trials[:: max(len(trials) // 5, 1)]
    engine = LocalEngine(device=device.type, precision=case.precision)
    ways: dict[str, Callable[[], dict[Trial, float]]] = {
        "loop": lambda: {one: by_hand(job, data, one, device) for one in tried},
        "engine": lambda: {result.trial: result.loss for result in engine.run(job, data, trials)},
    }
    if device.type == "cpu":
        ways["processes"] = lambda: dict(zip(trials, in_processes(job, data, trials), strict=True))
    spent: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, dict[Trial, float]] = {}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            found[name] = way()
            share = len(found[name]) / len(trials)
            spent[name].append((time.perf_counter() - start) / share)
    differences = [abs(found["engine"][one] - loss) for one, loss in found["loop"].items() if math.isfinite(loss)]
    median = {name: statistics.median(times) for name, times in spent.items()}
    return {
        **{f"{name}_seconds": seconds for name, seconds in median.items()},
        **{f"{name}_over_engine": median[name] / median["engine"] for name in ways if name != "engine"},
        "largest_loss_difference": max(differences),
    }


def remembered(case: Case, device: torch.device) -> dict[str, float]:
    """Return how many of a case's trials finish, and the most memory that this process and its workers had."""
    job, data, trials = prepared(case, device)
    before = resident()
    most, over = before, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.05):
            most = max(most, resident())

    watching = threading.Thread(target=watch)
    watching.start()
    start = time.perf_counter()
    try:
        found = list(LocalEngine(device=device.type, precision=case.precision).run(job, data, trials))
    finally:
        over.set()
        watching.join()
    return {
        "outcomes": len({result.trial for result in found}),
        "finite": sum(not outcome.diverged for outcome in found),
        "seconds": time.perf_counter() - start,
        "resident_gib_before": before / 2**30,
        "peak_resident_gib": most / 2**30,
        "peak_resident_gib_of_this_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "largest_copies_that_fit": trials_that_fit(job, data, processes=os.cpu_count() or 1),
    }


def resident() -> int:
    """Return the resident memory of this process and all below it; pages they share count once for each."""
    above, pages = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                above[int(entry.name)], pages[int(entry.name)] = int(fields[1]), int(fields[21])
    found, fresh = {os.getpid()}, {os.getpid()}
    while fresh:
        fresh = {pid for pid, parent in above.items() if parent in fresh} - found
        found |= fresh
    return sum(pages.get(pid, 0) for pid in found) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", help="only cases whose name holds one of these words")
    parser.add_argument("--repeats", type=int, default=3, help="how often each way is timed")
    parser.add_argument("--record", type=Path, help="also write the figures, with versions and device, to this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = CUDA if device.type == "cuda" else CPU
    results = {}
    for name, case in (cases | MANY).items():
        if not (any(word in name for word in options.cases) if options.cases else name in cases):
            continue
        results[name] = remembered(case, device) if name in MANY else measured(case, device, options.repeats)
        shown = ", ".join(f"{key} {value:.4g}" for key, value in results[name].items())
        print(f"{name}: {shown}", flush=True)
    if options.record:
        config = {
            name: {"copies": c.trials, "examples": c.examples, "batch": c.recipe.batch_size, "repeats": options.repeats}
            for name, c in (cases | MANY).items()
            if name in results
        }
        write_record(options.record, config=config, results=results)


if __name__ == "__main__":
    main()
