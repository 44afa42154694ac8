"""Kill searches, with signals that cannot be caught, and check that nothing is lost, doubled or changed."""

import contextlib
import json
import math
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from evenstep.errors import SearchError
from evenstep.search import LocalEngine, search_lr
from evenstep.search.engines.batching import Batching
from tests.search import plain

ROOT = Path(__file__).parents[2]

# Few steps on much data: slow enough to be killed in, and the same arithmetic in every run (single trials).
SEARCH = """
import json, sys
import torch
from torch import nn
from evenstep.search import LocalEngine, search_lr
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(3)
inputs = torch.randn(2048, 96, generator=generator)
targets = (inputs @ torch.randn(96, 4, generator=generator)).argmax(1)

def make():
    return nn.Sequential(nn.Linear(96, {width}), nn.ReLU(), nn.Linear({width}, 4))

found = search_lr(make, (inputs, targets), steps={steps}, batch_size={batch}, seeds={seeds}, start=0.5,
                  store=sys.argv[1], engine=LocalEngine(workers=1), resume="--resume" in sys.argv)
print(json.dumps([found.best, found.bracket, found.interval, found.estimate, found.grid, found.losses]))
"""
EXACT = SEARCH.format(width=192, steps=4, batch=1024, seeds=6)
LONGER = SEARCH.format(width=192, steps=4, batch=1024, seeds=18)
STACKED = SEARCH.format(width=8, steps=300, batch=16, seeds=12)

Rows = list[tuple[Any, ...]]


def rows(path: Path) -> Rows:
    """Read a store without the library, from beside a search that may be writing; nothing where there is none yet."""
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as base:
        try:
            return base.execute("SELECT config, lr, seed, loss, curve, status FROM copies ORDER BY 2, 3").fetchall()
        except sqlite3.OperationalError:  # its tables are being made
            return []


def started(script: str, path: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def finished(script: str, path: Path, *options: str) -> Any:
    process = started(script, path, *options)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return json.loads(out)


def await_rows(process: subprocess.Popen[str], path: Path, count: int) -> bool:
    """Wait until a store has so many rows; False where the search ended first."""
    for _ in range(6000):
        if len(rows(path)) >= count:
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    raise AssertionError("no row within a minute")


def killed_until_done(script: str, path: Path, *, kills: int, seed: int, spread: float) -> Any:
    """Start a search, kill it at a random moment, and so on; when it was killed often enough, let it end."""
    rng = random.Random(seed)
    done = 0
    while done < kills:
        known = len(rows(path))
        process = started(script, path)
        if rng.random() < 0.25:  # at any moment from the start on: importing, tracing, opening, training
            time.sleep(rng.uniform(0.0, 3.0))
        elif not await_rows(process, path, known + 1):
            break
        else:
            time.sleep(rng.uniform(0.0, spread))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL, "the search ended before it was killed: make it longer"
        after = rows(path)
        assert len(after) >= known
        assert len({row[:3] for row in after}) == len(after)
        done += 1
    assert done == kills
    return finished(script, path, *(["--resume"] if rows(path) else []))


def check_kills(script: str, folder: Path, *, kills: int, seed: int) -> None:
    answer = finished(script, folder / "undisturbed.db")
    undisturbed = rows(folder / "undisturbed.db")
    assert len(undisturbed) > 60
    again = killed_until_done(script, folder / "killed.db", kills=kills, seed=seed, spread=0.1)
    assert rows(folder / "killed.db") == undisturbed
    assert again == answer


def test_a_search_killed_again_and_again_ends_with_the_rows_of_an_undisturbed_one(tmp_path: Path) -> None:
    check_kills(EXACT, tmp_path, kills=4, seed=1)


@pytest.mark.exhaustive
def test_a_search_killed_twenty_times_ends_with_the_rows_of_an_undisturbed_one(tmp_path: Path) -> None:
    check_kills(LONGER, tmp_path, kills=20, seed=2)


@pytest.mark.exhaustive
def test_a_search_of_many_short_steps_killed_again_and_again_has_the_same_copies_and_answer(tmp_path: Path) -> None:
    """Trials long enough for stacking: the clock may choose another form for each of the two stores, so to rounding."""
    answer = finished(STACKED, tmp_path / "undisturbed.db")
    again = killed_until_done(STACKED, tmp_path / "killed.db", kills=4, seed=3, spread=0.3)
    expected, found = rows(tmp_path / "undisturbed.db"), rows(tmp_path / "killed.db")
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    losses, wanted = ([math.inf if row[3] is None else row[3] for row in some] for some in (found, expected))
    assert losses == pytest.approx(wanted, rel=1e-2)
    assert again[:2] == answer[:2]


def test_an_interrupt_ends_a_search_soon_and_it_goes_on_later(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    process = started(EXACT, path)
    assert await_rows(process, path, 3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    said = re.search(r"KeyboardInterrupt: stopped after (\d+) of at most \d+ trials; they are in '(.*)': run .*", error)
    assert said, error
    kept = rows(path)
    assert (int(said[1]), Path(said[2])) == (len(kept), path)
    assert len(kept) >= 3
    finished(EXACT, path, "--resume")
    done = rows(path)
    assert len(done) > len(kept)
    assert set(kept) <= set(done)


def test_two_searches_that_write_into_one_store_at_once_agree(tmp_path: Path) -> None:
    """The same search twice, and another beside them: each has its own rows, once."""
    other = EXACT.replace("steps=4", "steps=3")
    assert other != EXACT
    processes = [started(script, tmp_path / "s.db") for script in (EXACT, EXACT, other)]
    answers = []
    for process in processes:
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        answers.append(json.loads(out))
    assert answers[0] == answers[1] != answers[2]
    found = rows(tmp_path / "s.db")
    assert len({row[:3] for row in found}) == len(found)
    configs = {row[0] for row in found}
    assert len(configs) == 2
    trials = sorted([sum(map(len, answer[5])) for answer in answers[1:]])
    assert sorted(sum(row[0] == config for row in found) for config in configs) == trials


def test_a_search_that_is_done_trains_nothing_again(tmp_path: Path) -> None:
    data = plain.images()
    options: dict[str, Any] = {"epochs": 1, "seeds": 2, "batch_size": 8, "on_failure": "return"}
    options["store"] = tmp_path / "s.db"
    first = search_lr(plain.mlp, data, engine=LocalEngine(workers=1), **options)

    class Refusing:
        def choose(self, *_: Any) -> Any:
            raise AssertionError("nothing is missing")

        def run(self, *_: Any) -> Any:
            raise AssertionError("nothing is missing")

        def close(self) -> None: ...

    assert search_lr(plain.mlp, data, engine=Refusing(), resume=True, **options) == first
    assert len(rows(tmp_path / "s.db")) == 2 * len(first.grid)
    # More seeds train the missing ones alone.
    more = search_lr(plain.mlp, data, engine=LocalEngine(workers=1), **{**options, "seeds": 3})
    known = dict(zip(first.grid, first.losses, strict=True))
    shared = [(known[rate], seeds) for rate, seeds in zip(more.grid, more.losses, strict=True) if rate in known]
    assert shared
    assert all(seeds[:2] == before for before, seeds in shared)


def test_a_resumed_search_trains_in_the_form_it_began_in(tmp_path: Path) -> None:
    """Stacked and single trials differ by rounding, and a timing on a busy machine may choose either."""
    inputs, labels = plain.images()
    options: dict[str, Any] = {"epochs": 1, "seeds": 2, "batch_size": 8, "on_failure": "return"}

    class Settled(LocalEngine):
        kind: Literal["stacked", "single"] = "stacked"

        def choose(self, *_: Any) -> Batching:
            return Batching(self.kind, 3)

    class Single(Settled):
        kind = "single"

    whole = search_lr(plain.mlp, (inputs, labels), engine=Settled(workers=1), **options)
    grid = list(whole.grid)
    part = {**options, "store": tmp_path / "s.db"}
    search_lr(plain.mlp, (inputs, labels), engine=Settled(workers=1), grid=grid[:2], **part)
    resumed = search_lr(plain.mlp, (inputs, labels), engine=Single(workers=1), grid=grid, resume=True, **part)
    stacked = search_lr(plain.mlp, (inputs, labels), engine=Settled(workers=1), grid=grid, **options)
    single = search_lr(plain.mlp, (inputs, labels), engine=Single(workers=1), grid=grid, **options)
    assert resumed.losses == stacked.losses
    assert stacked.losses != single.losses  # or this test shows nothing


def test_another_configuration_is_not_resumed(tmp_path: Path) -> None:
    """Other data, loss, network, steps or optimizer is another search: its rows are not taken for this one's."""
    inputs, labels = plain.images()
    options: dict[str, Any] = {
        "store": tmp_path / "s.db",
        "epochs": 1,
        "seeds": 1,
        "batch_size": 8,
        "engine": LocalEngine(workers=1),
        "on_failure": "return",
        "grid": [0.01, 0.02],
    }
    search_lr(plain.mlp, (inputs, labels), **options)
    others: list[tuple[Any, Any, dict[str, Any]]] = [
        (plain.gelu, (inputs, labels), {}),
        (plain.mlp, (inputs * 1.0001, labels), {}),
        (plain.mlp, (inputs, labels.flip(0)), {}),
        (plain.mlp, (inputs, labels), {"steps": 3}),
        (plain.mlp, (inputs, labels), {"optimizer": "adam"}),
        (plain.mlp, (inputs, labels), {"weight_decay": 0.1}),
        (plain.mlp, (inputs, labels), {"init": "he"}),
        (plain.mlp, (inputs, labels), {"schedule": lambda step: 0.5}),
    ]
    for make, data, changed in others:
        with pytest.raises(SearchError, match="holds no search of this configuration"):
            search_lr(make, data, **options, **changed, resume=True)
    assert len(rows(tmp_path / "s.db")) == 2
    search_lr(plain.mlp, (inputs, labels), **options, resume=True)
    assert len(rows(tmp_path / "s.db")) == 2
