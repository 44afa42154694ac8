"""Run `evenstep report` as a user does: files of all kinds in, one page out."""

import json
import math
import sqlite3
from pathlib import Path

import pytest

from evenstep.graph import dag_mlp_graph
from evenstep.planning import plan_graph
from evenstep.search.store import Store, StoreRow
from tests.cli.command import Run, in_a_process
from tests.report.test_page import a_check, a_record

SEARCH = {
    "best": 0.2,
    "bracket": [0.1, 0.4],
    "estimate": 0.21,
    "interval": None,
    "status": "ok",
    "grid": [0.1, 0.2, 0.4, 0.8],
    "losses": [[1.0], [0.5], [0.7], [None]],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of every kind."""
    monkeypatch.chdir(tmp_path)
    plan = plan_graph(dag_mlp_graph("2_12"), base=0.1, optimizer="sgd")
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "search.json").write_text(json.dumps(SEARCH))
    (tmp_path / "check.json").write_text(json.dumps({"over": "width", **a_check().to_dict()}))
    (tmp_path / "record.json").write_text(json.dumps(a_record()))
    store = Store(tmp_path / "runs.sqlite")
    for config in ("aaaa", "bbbb"):
        store.begin(config, {"recipe": {"optimizer": "sgd", "batch_size": 32}})
        losses = enumerate((1.0, 0.5, math.inf))
        store.add([StoreRow(config, 0.1 * 2**place, 0, loss, (loss,), 0.1, {}) for place, loss in losses])
    store.close()
    return tmp_path


FILES = ("plan.json", "search.json", "check.json", "record.json", "runs.sqlite")


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_makes_a_page(run: Run, folder: Path, name: str) -> None:
    done = run("report", name, "-o", "page.html")
    assert (done.code, done.out) == (0, "report: page.html\n"), done.err
    assert (folder / "page.html").read_text().startswith("<!doctype html>")


def test_several_files_make_one_page(run: Run, folder: Path) -> None:
    done = run("report", *FILES, "--title", "All & sundry", "--json").json()
    assert done == {"report": "report.html", "parts": ["plan", "search", "check", "study", "search", "search"]}
    text = (folder / "report.html").read_text()
    assert "All &amp; sundry" in text
    assert text.count('<section class="part') == 6


def test_one_run_of_a_store(run: Run, folder: Path) -> None:
    assert run("report", "runs.sqlite", "--run", "bb", "--json").json()["parts"] == ["search"]
    assert "run bbbb" in (folder / "report.html").read_text()


def test_what_plan_prints_can_be_piped_in(run: Run, folder: Path) -> None:
    printed = run("plan", "--code", "2_12", "--json")
    done = run("report", "-", given=printed.out)
    assert done.code == 0, done.err
    assert "readout.weight" in (folder / "report.html").read_text()


def test_in_a_process_of_its_own(folder: Path) -> None:
    done = in_a_process("report", "plan.json", "-o", "own.html", "--quiet", folder=folder)
    assert (done.code, done.err) == (0, "")
    assert "svg" in (folder / "own.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.json",), "there is no file 'missing.json'"),
        (("letter.txt",), "'letter.txt' is of another kind; give a file that holds a plan"),
        (("list.json",), "'list.json' is of another kind"),
        (("other.json",), "a store (`evenstep search --store`)"),
        (("binary.dat",), "'binary.dat' is of another kind"),
        (("other.sqlite",), "another program's database"),
        (("damaged.json",), "'damaged.json'"),
        (("lost.json",), "'lost.json' is damaged"),
        (("folder",), "'folder' cannot be read"),
        (("-", "-"), "standard input is named twice"),
        (("-",), "standard input is empty, which is not valid JSON"),
        (("cut.json",), "'cut.json' is not valid JSON (line 1, column "),
        (("empty.json",), "'empty.json' is empty, which is not valid JSON"),
        (("plan.json", "-o", "nowhere/page.html"), "no folder 'nowhere'"),
        (("plan.json", "-o", "folder"), "cannot be written to 'folder'"),
        (("runs.sqlite", "--run", "zz"), "begins with 'zz'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run: Run, folder: Path, arguments: tuple[str, ...], said: str) -> None:
    (folder / "folder").mkdir()
    (folder / "letter.txt").write_text("Dear reader")
    (folder / "cut.json").write_text((folder / "plan.json").read_text()[:300])
    (folder / "empty.json").write_text("\n")
    (folder / "list.json").write_text("[1, 2]")
    (folder / "other.json").write_text('{"format": "another"}')
    (folder / "binary.dat").write_bytes(bytes(range(256)))
    (folder / "damaged.json").write_text((folder / "plan.json").read_text().replace('"rule": "weighted", ', "", 1))
    (folder / "lost.json").write_text(json.dumps({**SEARCH, "losses": [[1.0]]}))
    other = sqlite3.connect(folder / "other.sqlite")
    other.execute("CREATE TABLE cats (name TEXT)")
    other.commit()
    other.close()
    before = (folder / "other.sqlite").read_bytes()
    done = run("report", *arguments)
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert not list(folder.glob("*.html"))
    assert (folder / "other.sqlite").read_bytes() == before  # nothing was made of another's file


def test_a_folder_without_leave_to_write_is_named(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("evenstep.report.page.writing.Path.replace", refuse)
    done = run("report", "plan.json")
    assert done.code == 2
    assert "cannot be written to 'report.html': Permission denied" in done.err
    assert not list(folder.glob(".report*"))
