"""Kill searches with signal 9, thirty times over four kinds, and compare with searches that nothing disturbed.

    python benchmarks/kills.py [--kinds mlp cnn transformer ray] [--kills 8 8 8 6]

Every kind is searched once in peace. The same search, in the same form, is then killed again and again, at moments
spread over its rows, and goes on until it ends. Rows (rates, seeds, losses, whole curves) and the answer have to be
equal to the last bit; a difference ends the program with 1. On Ray, workers and the driver are killed in turn.

Measured in November 2026 on two cores of an x86-64 CPU, torch 2.13.0: 30 kills, no difference.

    mlp          55 rows, 8 kills, stacked by five in two workers
    cnn          60 rows, 8 kills, single: it has dropout, and batch norm
    transformer  60 rows, 8 kills, stacked by five, readout tied to the embedding
    ray          55 rows, 3 kills of a worker and 3 of the driver, stacked by five
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenstep.search import LocalEngine, search_lr
from evenstep.search.engines.batching import Batching
from evenstep.search.fields import TensorPair

ROOT = Path(__file__).resolve().parents[1]
SEEDS = 5
PATIENCE = 600.0  # seconds without which a search is taken to hang


class Stacked(LocalEngine):
    """An engine that stacks, whatever the clock says: the form in which chunks could matter."""

    def choose(self, *_: Any) -> Batching:
        """Return chunks of five, for two processes."""
        return Batching("stacked", 5, processes=2)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 4))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 6)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(192, 4),
    )


class Transformer(nn.Module):
    """A language model whose readout is its embedding."""

    def __init__(self, tokens: int = 12, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.norm, self.queries, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.last_norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, tokens, bias=False)
        self.readout.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        query, key, value = self.queries(self.norm(x)).unsqueeze(1).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1))
        result: Tensor = self.readout(self.last_norm(x))
        return result


def next_token(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def vectors() -> TensorPair:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(512, 24, generator=generator)
    return inputs, (inputs @ torch.randn(24, 4, generator=generator)).argmax(1)


def sentences() -> TensorPair:
    """Return walks over twelve tokens, each a step or two on, and what follows."""
    generator = torch.Generator().manual_seed(4)
    walk = torch.cumsum(torch.randint(1, 3, (256, 11), generator=generator), 1) % 12
    return walk[:, :-1].contiguous(), walk[:, 1:].contiguous()


def search(kind: str, store: str, *, steps: int, seeds: int) -> Any:
    """Run one kind of search to its end and return its answer."""
    make = {"cnn": convolutions, "transformer": Transformer}.get(kind, perceptron)
    engine: Any = LocalEngine(workers=1) if kind == "cnn" else Stacked(workers=1 if kind == "transformer" else 2)
    if kind == "ray":
        from evenstep.search.engines.ray import RayEngine

        class StackedRay(RayEngine):
            def choose(self, *_: Any) -> Batching:
                return Batching("stacked", 5)

        engine = StackedRay()
    try:
        found = search_lr(
            make,
            sentences() if kind == "transformer" else vectors(),
            loss=next_token if kind == "transformer" else F.cross_entropy,
            optimizer="adam" if kind == "transformer" else "momentum",
            start=0.01 if kind == "transformer" else 0.1,
            steps=steps,
            batch_size=32,
            seeds=seeds,
            store=store,
            engine=engine,
            on_failure="return",
        )
    finally:
        engine.close()
    return [found.best, found.bracket, found.interval, found.estimate, found.grid, found.losses]


Rows = list[tuple[Any, ...]]


def rows(path: Path) -> Rows:
    """Read a store without the library."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as base:
        return base.execute("SELECT config, lr, seed, loss, curve, status FROM copies ORDER BY 2, 3").fetchall()


def form(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as base:
        settled = json.loads(base.execute("SELECT form FROM searches").fetchone()[0])
    return f"{settled['kind']}, chunks of {settled['chunk']}, {settled['threads']} threads"


def started(kind: str, store: Path, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__)), "--child", kind, str(store), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finished(kind: str, store: Path, steps: int) -> Any:
    process = started(kind, store, steps)
    out, error = process.communicate(timeout=PATIENCE)
    if process.returncode:
        raise RuntimeError(f"{kind} ended with {process.returncode}: {error[-2000:]}")
    return json.loads(out.strip().splitlines()[-1])


def ray_workers(group: int) -> list[int]:
    """Return the processes of a session that train for Ray."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ProcessLookupError):
                if os.getsid(int(entry.name)) == group and b"ray::_work" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def await_rows(process: subprocess.Popen[str], store: Path, count: int) -> bool:
    """Wait until a store has so many rows; False where the search ended first."""
    last = time.monotonic() + PATIENCE
    while len(rows(store)) < count:
        if process.poll() is not None:
            return False
        if time.monotonic() > last:
            raise RuntimeError(f"no {count} rows within {PATIENCE:.0f} s")
        time.sleep(0.002)
    return True


@dataclass(frozen=True)
class Outcome:
    """What kills did to a search."""

    kind: str
    form: str
    rows: int
    kills: list[str]
    equal_rows: bool
    equal_answer: bool
    seconds: float


def killed(kind: str, folder: Path, *, kills: int, steps: int, seed: int = 0) -> Outcome:
    """Search in peace, then the same under so many kills, and compare."""
    begun, rng = time.monotonic(), random.Random(seed)
    peaceful, disturbed = folder / f"{kind}-peaceful.db", folder / f"{kind}-disturbed.db"
    answer = finished(kind, peaceful, steps)
    expected = rows(peaceful)
    shutil.copy(peaceful, disturbed)  # the form it began in, which the clock may have chosen, and no rows
    with contextlib.closing(sqlite3.connect(disturbed)) as base, base:
        base.execute("DELETE FROM copies")
    done: list[str] = []
    while len(done) < kills:
        # Spread over the rows; the moment within a chunk is a matter of chance.
        target = max(round(len(expected) * (len(done) + rng.random()) / (kills + 1)), len(rows(disturbed)) + 1)
        process = started(kind, disturbed, steps)
        if not await_rows(process, disturbed, target):
            process.communicate()
            break
        if kind == "ray" and len(done) % 2 == 0:
            _kill_worker(process, done, disturbed)
        os.killpg(process.pid, signal.SIGKILL)  # the driver and all that it started
        process.communicate()
        if len(done) < kills:
            done.append(f"{len(rows(disturbed))}")
    again = finished(kind, disturbed, steps)
    return Outcome(
        kind,
        form(disturbed),
        len(expected),
        done,
        rows(disturbed) == expected,
        again == answer,
        time.monotonic() - begun,
    )


def _kill_worker(process: subprocess.Popen[str], done: list[str], store: Path) -> None:
    """Kill a worker of Ray at work, and wait until the search has gone on all the same."""
    known = len(rows(store))
    while process.poll() is None:
        for worker in ray_workers(process.pid)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                done.append(f"{known} (worker)")
                await_rows(process, store, known + 1)
                return
        time.sleep(0.002)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=["mlp", "cnn", "transformer", "ray"])
    parser.add_argument("--kills", nargs="+", type=int, default=[8, 8, 8, 6])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--child", nargs=3)
    given = parser.parse_args()
    if given.child:
        kind, store, steps = given.child
        print(json.dumps(search(kind, store, steps=int(steps), seeds=SEEDS)))
        return 0
    failed = False
    print(
        f"{'kind':12} {'rows':>5} {'kills':>5} {'rows equal':>10} {'answer equal':>12} {'seconds':>8}  form; killed at"
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind, kills in zip(given.kinds, given.kills, strict=True):
            outcome = killed(kind, Path(folder), kills=kills, steps=given.steps)
            short = len(outcome.kills) < kills
            failed |= short or not (outcome.equal_rows and outcome.equal_answer)
            print(
                f"{kind:12} {outcome.rows:5d} {len(outcome.kills):5d} {outcome.equal_rows!s:>10} "
                f"{outcome.equal_answer!s:>12} {outcome.seconds:8.0f}  {outcome.form}; {', '.join(outcome.kills)}"
                f"{' (ended too soon: more --steps)' if short else ''}",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
