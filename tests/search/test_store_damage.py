"""Check stores that are lost, foreign, damaged or on a medium that cannot be written to: said clearly, nothing lost."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import evenstep as es
from evenstep.errors import StoreError
from evenstep.search import LocalEngine, SearchProgress
from evenstep.search.store import Store, StoreRow

torch.set_num_threads(1)

INPUTS = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long()
GRID = (1e-4, 0.01, 1.0, 1000.0)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def search(store: Path, **options: Any) -> es.LRSearch:
    usual: dict[str, Any] = {"steps": 4, "seeds": 2, "grid": GRID, "on_failure": "return"}
    return es.search_lr(small, (INPUTS, LABELS), store=store, engine=LocalEngine(workers=1), **usual | options)


def filled(path: Path, count: int = 3) -> None:
    store = Store(path)
    store.begin("c" * 64, {"recipe": {"optimizer": "sgd", "batch_size": 8}})
    store.settle_batching("c" * 64, {"kind": "single", "chunk": 1, "seconds": 0.1})
    store.add([StoreRow("c" * 64, 0.1, seed, 1.5, (3.0, 1.5), 0.25, {}) for seed in range(count)])
    store.close()


# Lost


@pytest.mark.parametrize("how", ["deleted", "replaced", "its folder deleted"])
def test_a_store_lost_under_a_running_search_is_said_and_its_rows_are_kept(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    path = tmp_path / "runs" / "s.db"
    path.parent.mkdir()
    whole = search(tmp_path / "whole.db")
    search(path, grid=GRID[:1])  # rows of an earlier search are kept, too

    def lose(progress: SearchProgress) -> None:
        if progress.done != 5 or not path.exists():
            return
        if how == "its folder deleted":
            shutil.rmtree(path.parent)
            return
        for file in path.parent.glob("s.db*"):
            file.unlink()
        if how == "replaced":
            filled(path)

    with pytest.raises(
        StoreError, match=r"was deleted or replaced while the search was running; all its.*'.*'"
    ) as caught:
        search(path, progress=lose)
    place = Path(str(caught.value).split("are kept in '")[1].split("'")[0])
    assert place.parent == (tmp_path / "spare" if how == "its folder deleted" else path.parent)
    kept = Store(place, read_only=True)
    (only,) = kept.searches()
    rows = kept.rows(only["config"])
    kept.close()
    assert len(rows) >= 5
    known = {
        (rate, seed): loss for rate, row in zip(whole.grid, whole.losses, strict=True) for seed, loss in enumerate(row)
    }
    assert {(row.lr, row.seed): row.loss for row in rows}.items() <= known.items()
    path.parent.mkdir(exist_ok=True)
    for file in path.parent.glob("s.db*"):
        file.unlink()
    shutil.move(place, path)  # the advice
    assert search(path, resume=True) == whole


def test_a_store_that_is_only_moved_over_by_itself_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    first = search(path)
    assert search(path) == first  # nothing is rescued where nothing is lost
    assert [file.name for file in tmp_path.iterdir() if "rescued" in file.name] == []


# Foreign


def test_another_program_s_database_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    base = sqlite3.connect(path)
    base.executescript("CREATE TABLE accounts (name TEXT, sum REAL); INSERT INTO accounts VALUES ('me', 3.5);")
    base.close()
    before = path.read_bytes()
    for act in (lambda: Store(path), lambda: Store(path, read_only=True), lambda: search(path)):
        with pytest.raises(StoreError, match=r"bank\.db' is another program's database.*left as it is"):
            act()
        assert path.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == ["bank.db"]


def test_a_database_with_tables_of_our_names_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    base = sqlite3.connect(path)
    base.executescript("CREATE TABLE searches (words TEXT); CREATE TABLE copies (words TEXT);")
    base.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program's database"):
        Store(path)
    assert path.read_bytes() == before


# Damaged

DAMAGE = {
    "loss of text": ("UPDATE copies SET loss = 'low' WHERE seed = 1", "loss is 'low', not a number"),
    "loss gone": ("UPDATE copies SET loss = NULL WHERE seed = 1", "loss is None, with the status 'ok'"),
    "loss infinite": ("UPDATE copies SET loss = 9e999 WHERE seed = 1", "loss is inf"),
    "status": ("UPDATE copies SET status = 'fine' WHERE seed = 1", "status is 'fine'"),
    "diverged with a loss": ("UPDATE copies SET status = 'diverged' WHERE seed = 1", "with the status 'diverged'"),
    "rate below zero": ("UPDATE copies SET lr = -1 WHERE seed = 1", "lr is -1.0"),
    "rate of text": ("UPDATE copies SET lr = 'fast' WHERE seed = 1", "lr is 'fast'"),
    "seed of text": ("UPDATE copies SET seed = 'one' WHERE seed = 1", "seed is 'one'"),
    "seconds": ("UPDATE copies SET seconds = 'long' WHERE seed = 1", "seconds is 'long'"),
    "curve cut off": ("UPDATE copies SET curve = '[1.0, 2' WHERE seed = 1", "curve is not JSON"),
    "curve of text": ("UPDATE copies SET curve = '[\"a\"]' WHERE seed = 1", "a loss of the curve is 'a'"),
    "curve of nan": ("UPDATE copies SET curve = '[NaN]' WHERE seed = 1", "a loss of the curve is nan"),
    "curve no list": ("UPDATE copies SET curve = '3' WHERE seed = 1", "curve is 3, not a list"),
    "curve bytes": ("UPDATE copies SET curve = x'00ff' WHERE seed = 1", "curve is b"),
    "curve deep": (f"UPDATE copies SET curve = '{'[' * 100_000}' WHERE seed = 1", ""),
    "provenance": ("UPDATE copies SET provenance = '{' WHERE seed = 1", "provenance is not JSON"),
    "provenance no object": ("UPDATE copies SET provenance = '[]' WHERE seed = 1", "provenance is [], not an object"),
}


@pytest.mark.parametrize(("change", "words"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_row_is_named(tmp_path: Path, change: str, words: str) -> None:
    path = tmp_path / "s.db"
    filled(path)
    base = sqlite3.connect(path)
    base.execute(change)
    base.commit()
    base.close()
    store = Store(path, read_only=True)
    with pytest.raises(
        StoreError, match=r"the trial of search cccccccccccc, lr .*, seed .* in the store '.*' is damaged"
    ) as caught:
        store.rows("c" * 64)
    store.close()
    assert words in str(caught.value)
    assert "restore a copy of the file, or delete that row" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("description = '{'", "description is not JSON"),
        ("description = '5'", "description is 5, not an object"),
        ("started = 'today'", "started is 'today'"),
        ("started = 1e300", "started is 1e+300, not a time"),
    ],
)
def test_a_damaged_search_is_named(tmp_path: Path, change: str, words: str) -> None:
    path = tmp_path / "s.db"
    filled(path)
    base = sqlite3.connect(path)
    base.execute(f"UPDATE searches SET {change}")
    base.commit()
    base.close()
    store = Store(path, read_only=True)
    with pytest.raises(StoreError, match=r"the search cccccccccccc in the store '.*' is damaged") as caught:
        store.searches()
    store.close()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "form", ["{", "[]", '{"kind": "fast", "chunk": 1}', '{"kind": "single"}', '{"kind": "single", "chunk": 0}']
)
def test_a_damaged_batching_stops_a_search_before_it_trains(tmp_path: Path, form: str) -> None:
    path = tmp_path / "s.db"
    search(path, grid=GRID[:1])
    base = sqlite3.connect(path)
    base.execute("UPDATE searches SET form = ?", (form,))
    base.commit()
    base.close()
    with pytest.raises(StoreError, match=r"of search|the search .* is damaged"):
        search(path)


# A medium that cannot be written to

READ = """
import os, sys
from pathlib import Path
import evenstep.search.store  # while all of Python can be read
from evenstep.cli.runs import list_searches, show
from evenstep.errors import EvenstepError
if os.geteuid() == 0:
    os.setuid(65534)  # root is not bound by permissions
try:
    list_searches(Path(sys.argv[1]))
    show(Path(sys.argv[1]), "ccc")
except EvenstepError as error:
    sys.exit(f"error: {error}")
"""


def read_unprivileged(path: Path) -> subprocess.CompletedProcess[str]:
    """Do as `evenstep runs list` and `evenstep runs show` do, as a user who may only read."""
    return subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def sealed() -> Any:
    """Give a folder with a store that nobody may write to, for the time of a test."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        filled(folder / "s.db")
        yield folder
        folder.chmod(0o755)


def test_a_store_on_a_read_only_medium_is_read(sealed: Path) -> None:
    before = (sealed / "s.db").read_bytes()
    (sealed / "s.db").chmod(0o444)
    sealed.chmod(0o555)
    done = read_unprivileged(sealed / "s.db")
    assert done.returncode == 0, done.stderr
    listed, *shown = done.stdout.splitlines()
    assert "3 trials" in listed
    assert len(shown) == 3
    assert os.listdir(sealed) == ["s.db"]
    assert (sealed / "s.db").read_bytes() == before


def test_rows_that_are_in_the_log_alone_are_not_left_out_in_silence(sealed: Path) -> None:
    log = sealed / "s.db-wal"
    log.write_bytes(b"\0" * 100)
    for file in (sealed / "s.db", log):
        file.chmod(0o444)
    sealed.chmod(0o555)
    done = read_unprivileged(sealed / "s.db")
    assert done.returncode == 1
    assert "its last trials are in 's.db-wal'" in done.stderr
    assert "copy both files" in done.stderr


# Resuming nothing


def test_resuming_nothing_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(es.SearchError, match="holds no search of this configuration"):
        search(tmp_path / "s.db", resume=True)
    assert list(tmp_path.iterdir()) == []
    filled(tmp_path / "s.db")
    before = (tmp_path / "s.db").read_bytes()
    with pytest.raises(es.SearchError, match="holds no search of this configuration"):
        search(tmp_path / "s.db", resume=True)
    assert (tmp_path / "s.db").read_bytes() == before
