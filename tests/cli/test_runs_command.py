"""Run `evenstep runs` on stores, and read what it exports with other programs' readers."""

import csv
import io
import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from evenstep.search.store import SCHEMA, Store, StoreRow
from tests.cli.command import Run

CERTIFICATE = {"versions": {"torch": "2.4"}, "commit": None}
ROWS = [
    StoreRow("aaaa1111", 0.1, 0, 1.25, (2.0, 1.5), 0.5, CERTIFICATE),
    StoreRow("aaaa1111", 0.1 + 0.2, 1, 0.1 + 0.7, (2.0, 0.75), 0.25, CERTIFICATE),
    StoreRow("aaaa2222", 8.0, 0, math.inf, (2.0, math.inf), 0.125, CERTIFICATE),
]


@pytest.fixture
def store(tmp_path: Path) -> str:
    opened = Store(tmp_path / "s.db")
    for config in ("aaaa1111", "aaaa2222", "bbbb"):
        opened.begin(config, {"recipe": {"optimizer": "sgd", "batch_size": 32}})
    opened.add(ROWS)
    opened.close()
    return str(tmp_path / "s.db")


def test_list_names_every_search(run: Run, store: str) -> None:
    done = run("runs", "list", store)
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == ["aaaa1111", "aaaa2222", "bbbb"]
    assert "2 trials, 0 diverged" in lines[0]
    assert "1 trials, 1 diverged" in lines[1]
    assert "0 trials, 0 diverged" in lines[2]
    assert all("sgd, batch 32" in line for line in lines)
    found = [json.loads(line) for line in run("runs", "list", store, "--json").out.splitlines()]
    assert [(one["config"], one["copies"]) for one in found] == [("aaaa1111", 2), ("aaaa2222", 1), ("bbbb", 0)]


def test_show_gives_the_copies_of_one_search(run: Run, store: str) -> None:
    found = [json.loads(line) for line in run("runs", "show", store, "aaaa1", "--json").out.splitlines()]
    assert [(one["lr"], one["seed"], one["loss"]) for one in found] == [(r.lr, r.seed, r.loss) for r in ROWS[:2]]
    (line,) = run("runs", "show", store, "aaaa2").out.splitlines()
    assert line.split() == ["lr", "8", "seed", "0", "diverged"]
    (only,) = run("runs", "show", store, "aaaa2", "--json").out.splitlines()
    assert json.loads(only)["curve"] == [2.0, None]  # JSON has no infinity


def test_show_takes_the_latest_search_if_none_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    opened = Store(path)
    opened.begin("aaaa1111", {})
    opened.add(ROWS[:2])
    opened.close()
    only = run("runs", "show", str(path), "--json")
    assert [json.loads(line)["lr"] for line in only.out.splitlines()] == [row.lr for row in ROWS[:2]]
    assert only.err == ""
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("UPDATE searches SET started = started - 60")
    opened = Store(path)
    opened.begin("aaaa2222", {})
    opened.add(ROWS[2:])
    opened.close()
    latest = run("runs", "show", str(path))
    assert latest.out == run("runs", "show", str(path), "aaaa2").out
    assert latest.err == f"the latest of 2 searches, aaaa2222; for another: evenstep runs show {path} CONFIG\n"


def test_show_needs_a_search(run: Run, tmp_path: Path) -> None:
    Store(tmp_path / "s.db").close()
    done = run("runs", "show", str(tmp_path / "s.db"))
    assert done.code == 2
    assert "holds no search" in done.err


def check_csv(text: str, rows: list[StoreRow]) -> None:
    found = list(csv.DictReader(io.StringIO(text)))
    assert [(one["config"], float(one["lr"]), int(one["seed"])) for one in found] == [
        (row.config, row.lr, row.seed) for row in rows
    ]
    assert [float(one["loss"]) if one["loss"] else math.inf for one in found] == [row.loss for row in rows]
    assert [json.loads(one["provenance"]) for one in found] == [CERTIFICATE] * len(rows)
    assert [one["status"] for one in found] == [row.status for row in rows]
    curves = [[math.inf if x is None else x for x in json.loads(one["curve"])] for one in found]
    assert curves == [list(row.curve) for row in rows]


def test_csv_is_read_back_to_the_last_digit(run: Run, store: str, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    assert run("runs", "export", store, str(target)).code == 0
    check_csv(target.read_text(), ROWS)
    check_csv(run("runs", "export", store, "-").out, ROWS)
    check_csv(run("runs", "export", store, "-", "--config", "aaaa2").out, ROWS[2:])
    check_csv(run("runs", "export", store, "-", "--config", "bbbb").out, [])


@pytest.mark.parametrize("config", ["", "aaaa2", "bbbb"])
def test_parquet_is_read_back_to_the_last_digit(run: Run, store: str, tmp_path: Path, config: str) -> None:
    """All rows; diverged ones alone, whose losses are all missing; none at all: the columns stay what they are."""
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "out.parquet"
    done = run("runs", "export", store, str(target), *(["--config", config] if config else []))
    assert done.code == 0, done.err
    table = parquet.read_table(target)
    rows = [row for row in ROWS if row.config.startswith(config)]
    assert table.column_names == ["config", "lr", "seed", "loss", "status", "seconds", "curve", "provenance"]
    types = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert (types["lr"], types["seed"], types["loss"], types["config"]) == ("double", "int64", "double", "string")
    found = table.to_pylist()
    assert [(one["config"], one["lr"], one["seed"]) for one in found] == [(r.config, r.lr, r.seed) for r in rows]
    assert [one["loss"] for one in found] == [row.loss if math.isfinite(row.loss) else None for row in rows]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "missing.db"), "there is no store 'missing.db'"),
        (("show", "STORE", "aaaa"), "2 searches begin with 'aaaa'"),
        (("show", "STORE", "zzzz"), "0 searches begin with 'zzzz'"),
        (("export", "STORE", "out.xlsx"), "ends in .csv or .parquet"),
        (("export", "STORE", "-", "--config", "zzzz"), "0 searches begin with 'zzzz'"),
        (("export", "STORE", "nowhere/out.csv"), "nowhere/out.csv"),
        (("export", "STORE", "nowhere/out.parquet"), "nowhere/out.parquet"),
        (("list", "LETTER"), "another kind of file"),
        (("list", "NEWER"), "update evenstep"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    run: Run, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter").write_text("Dear reader, " * 500)
    newer = Store(tmp_path / "newer")
    newer._base.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    newer.close()
    names = {"STORE": store, "LETTER": "letter", "NEWER": "newer"}
    done = run("runs", *(names.get(argument, argument) for argument in arguments))
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not done.out
