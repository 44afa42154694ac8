"""Check the store with real files, real processes and real refusals of the operating system."""

import math
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenstep.errors import StoreError
from evenstep.search.store import SCHEMA, Store, StoreRow

CERTIFICATE = {"versions": {"torch": "2"}, "commit": None}


def row(lr: float = 0.1, seed: int = 0, loss: float = 1.5, config: str = "c") -> StoreRow:
    return StoreRow(config, lr, seed, loss, (3.0, 0.1 + 0.2, loss), 0.25, CERTIFICATE)


def filled(path: Path, count: int = 5) -> list[StoreRow]:
    store = Store(path)
    store.begin("c", {"what": "test"})
    rows = [row(seed=seed) for seed in range(count)]
    store.add(rows)
    store.close()
    return rows


def plainly(path: Path) -> list[tuple[float, int]]:
    """Read a store's trials without the library, and ask SQLite whether the file is whole."""
    base = sqlite3.connect(path)
    try:
        assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found: list[tuple[float, int]] = base.execute("SELECT lr, seed FROM copies ORDER BY lr, seed").fetchall()
        return found
    finally:
        base.close()


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    store.begin("c", {})
    rows = [row(0.1, 0), row(0.1 + 1e-16, 1), row(1e-300, 7, 5e-324), row(0.30000000000000004, 2, math.inf)]
    store.add(rows)
    store.close()
    again = Store(tmp_path / "s.db")
    assert again.rows("c") == sorted(rows, key=lambda r: (r.lr, r.seed))
    assert [r.status for r in again.rows("c")] == ["ok", "ok", "ok", "diverged"]
    assert again.rows("d") == []
    again.close()


def test_a_trial_written_twice_is_one_and_the_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    store.begin("c", {})
    store.begin("c", {"another": "description"})
    store.add([row(loss=1.0)])
    store.add([row(loss=2.0), row(seed=1)])
    assert [(r.seed, r.loss) for r in store.rows("c")] == [(0, 1.0), (1, 1.5)]
    assert [(s["config"], s["description"], s["copies"]) for s in store.searches()] == [("c", {}, 2)]
    store.close()


def test_searches_count_their_own_trials(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    for config in ("a", "b", "empty"):
        store.begin(config, {"name": config})
    store.add([row(config="a"), row(config="b"), row(config="b", seed=1, loss=math.inf)])
    found = {s["config"]: (s["copies"], s["diverged"], s["description"]["name"]) for s in store.searches()}
    assert found == {"a": (1, 0, "a"), "b": (2, 1, "b"), "empty": (0, 0, "empty")}
    store.close()


def test_the_first_batching_of_a_search_stays_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    for config in ("a", "b"):
        store.begin(config, {})
        assert store.batching(config) is None
    store.settle_batching("a", {"kind": "stacked", "chunk": 3, "seconds": 0.1})
    store.settle_batching("a", {"kind": "single", "chunk": 1, "seconds": 0.2})
    store.close()
    again = Store(tmp_path / "s.db")
    assert again.batching("a") == {"kind": "stacked", "chunk": 3, "seconds": 0.1}
    assert again.batching("b") is None
    assert again.batching("unknown") is None
    again.close()


def test_searches_come_in_the_order_they_began(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    for config in ("b", "c", "a"):
        store.begin(config, {})
    store.begin("b", {})  # known: it keeps its place
    found = store.searches()
    assert [search["config"] for search in found] == ["b", "c", "a"]
    assert [search["started"] for search in found] == sorted(search["started"] for search in found)
    store.close()


def test_files_of_schema_1_have_these_tables(tmp_path: Path) -> None:
    """Other versions read them: a change of the tables needs another number, and a way for files of this one."""
    path = tmp_path / "s.db"
    filled(path)
    base = sqlite3.connect(path)
    assert base.execute("PRAGMA user_version").fetchone() == (1,)
    columns = {
        table: " ".join(f"{name} {kind}" for _, name, kind, *_ in base.execute(f"PRAGMA table_info({table})"))
        for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    }
    base.close()
    assert columns == {
        "searches": "config TEXT description TEXT started REAL form TEXT",
        "copies": "config TEXT lr REAL seed INTEGER loss REAL curve TEXT status TEXT seconds REAL provenance TEXT",
    }


# Company

WRITER = """
import sys
from pathlib import Path
from evenstep.search.store import StoreRow, Store
path, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
store = Store(path)
store.begin("c", {})
for seed in range(first, first + count):
    store.add([StoreRow("c", 0.1, seed, float(seed), (1.0,), 0.1, {})])
store.close()
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """Four writers, started on a new file at the same moment, their rows half shared with the next."""
    path = tmp_path / "s.db"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(100 * part), "200"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part in range(4)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        _, error = writer.communicate(timeout=120)
        assert writer.returncode == 0, error
    assert plainly(path) == [(0.1, seed) for seed in range(500)]
    store = Store(path)
    assert [r.loss for r in store.rows("c")] == [float(seed) for seed in range(500)]
    store.close()


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN"], ids=["writes", "reads"])
def test_a_new_store_waits_for_another_that_is_at_the_file(tmp_path: Path, begin: str) -> None:
    """The journal's mode cannot change meanwhile; while another writes, SQLite refuses at once instead of waiting."""
    path = tmp_path / "s.db"
    Store(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode = DELETE")  # as a file is that is being made
    other.execute(begin)
    other.execute("SELECT * FROM searches").fetchall()
    failed: list[StoreError] = []

    def open_store() -> None:
        try:
            Store(path).close()
        except StoreError as error:
            failed.append(error)

    opener = threading.Thread(target=open_store)
    opener.start()
    opener.join(timeout=0.5)
    assert not failed
    assert opener.is_alive()
    other.execute("COMMIT")
    opener.join(timeout=30)
    assert not opener.is_alive()
    assert not failed
    other.close()
    again = sqlite3.connect(path)
    assert again.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    again.close()


# Refusals


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/s\.db' cannot be used.*check that its folder exists"):
        Store(tmp_path / "nowhere" / "s.db")


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path)


def test_another_kind_of_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 500)
    with pytest.raises(StoreError, match="another kind of file; give another name"):
        Store(path)
    assert path.read_text() == "Dear reader, " * 500


def test_a_newer_schema_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    rows = filled(path)
    base = sqlite3.connect(path)
    base.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    base.close()
    with pytest.raises(StoreError, match=rf"schema {SCHEMA + 1}, but this version knows {SCHEMA}; update evenstep"):
        Store(path)
    assert len(plainly(path)) == len(rows)
    base = sqlite3.connect(path)
    assert base.execute("PRAGMA user_version").fetchone() == (SCHEMA + 1,)
    base.close()


def test_a_damaged_file_is_an_error_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    filled(path, 400)
    content = bytearray(path.read_bytes())
    content[4096 * 2 : 4096 * 6] = b"\xff" * 4096 * 4
    path.write_bytes(bytes(content))

    def read() -> None:
        store = Store(path)
        try:
            store.rows("c")
        finally:
            store.close()

    with pytest.raises(StoreError, match="cannot be used"):
        read()


ADD_MANY = """
import os, resource, sys
from pathlib import Path
from evenstep.errors import StoreError
from evenstep.search.store import StoreRow, Store
path, limit, user = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if os.geteuid() == 0 and user:
    os.setuid(user)  # root is not bound by permissions
try:
    store = Store(path)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for seed in range(100, 1000):
        store.add([StoreRow("c", 0.1, seed, 1.0, (1.0,) * 200, 0.1, {})])
        print(seed, flush=True)
except StoreError as error:
    print(error)
    sys.exit(3)
"""


def run(path: Path, limit: int, *, user: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ADD_MANY, str(path), str(limit), str(user)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_disk_that_takes_no_more_keeps_what_was_written(tmp_path: Path) -> None:
    """The operating system refuses to let the file grow: every row that was reported is there, and none in part."""
    path = tmp_path / "s.db"
    filled(path, 5)
    done = run(path, 200_000)
    assert done.returncode == 3, done.stderr
    *written, error = done.stdout.splitlines()
    assert "cannot be used" in error
    assert "free some space" in error
    assert 5 < len(written) < 900
    assert plainly(path) == [(0.1, seed) for seed in [*range(5), *map(int, written)]]
    assert run(path, 0).returncode == 0  # with room again, it goes on
    assert len(plainly(path)) == 905


def test_a_full_store_says_so_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    rows = filled(path)
    store = Store(path)
    pages = store._base.execute("PRAGMA page_count").fetchone()[0]
    store._base.execute(f"PRAGMA max_page_count = {pages + 2}")  # SQLite's own limit: the error of a full disk

    def fill() -> None:
        for seed in range(100, 1000):
            store.add([StoreRow("c", 0.1, seed, 1.0, (1.0,) * 200, 0.1, {})])

    # Rows are written all or none: many at once do not fit, so not one of them is there.
    with pytest.raises(StoreError, match="full"):
        store.add([StoreRow("c", 0.2, seed, 1.0, (1.0,) * 200, 0.1, {}) for seed in range(100)])
    assert store.rows("c") == rows
    with pytest.raises(StoreError, match="full; free some space and resume; what was written is safe"):
        fill()
    kept = store.rows("c")
    assert kept[: len(rows)] == rows
    assert len(kept) > len(rows)
    store.close()
    assert len(plainly(path)) == len(kept)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Give a folder that any user may enter; pytest's own are its user's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
        Path(name).chmod(0o755)


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o555, 0o444), (0o777, 0o444), (0o555, 0o666)])
def test_a_store_that_cannot_be_written_is_refused_and_kept(
    open_folder: Path, folder_mode: int, file_mode: int
) -> None:
    path = open_folder / "s.db"
    rows = filled(path)
    before = path.read_bytes()
    path.chmod(file_mode)
    open_folder.chmod(folder_mode)
    done = run(path, 0, user=65534)
    open_folder.chmod(0o755)
    assert done.returncode == 3, done.stderr
    (error,) = done.stdout.splitlines()
    assert "cannot be used" in error
    assert "writ" in error.split("; ")[-1]  # the remedy
    assert path.read_bytes() == before
    assert len(plainly(path)) == len(rows)
