"""Run `evenstep study external` as a user does, on small tables made up for it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from evenstep.rules import RULES
from evenstep_research.report.external import MARKS
from research.tests.study.external.made_up import write_steplaw
from tests.cli.command import Run


@pytest.fixture
def study(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the study in a folder of its own, with a table in `data`."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    write_steplaw(Path("data/steplaw_dense.csv"))
    return partial(run, "study", "external")


def test_from_a_table_to_a_record_and_a_page(study: Run) -> None:
    Path("page.md").write_text("".join(f"<!-- {name} -->\n<!-- end -->\n" for name in MARKS))
    results = study("--data", "data", "--out", "out", "--page", "page.md", "--json").json()
    record = json.loads(Path("out/record.json").read_text())
    assert record["results"] == results
    assert set(record["provenance"]) == {"versions", "device", "threads", "commit"}
    assert len(record["config"]["files"]["steplaw_dense.csv"]) == 64
    (table,) = results["tables"]
    assert {row["rule"] for row in table["rows"]} | set(table["left_out"]) == set(RULES)
    page = Path("page.md").read_text()
    for words in ("| mup | root | none |", "| reached |", "### Step Law, dense", "1 x 32, 128"):
        assert words in page
    assert page.count("\n<!-- end -->") == len(MARKS)


def test_what_is_printed(study: Run) -> None:
    printed = study("--data", "data")
    assert printed.code == 0
    assert "Step Law, dense, 4 cells" in printed.out
    assert "fitted law" in printed.out
    assert "at most 0.0042 asked" in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "nowhere"), "there is no folder 'nowhere'; give the one that holds the tables as --data"),
        (("--data", "empty"), "the folder 'empty' holds none of the tables"),
        (("--data", "broken"), "loss in line 2 of 'broken/steplaw_dense.csv' is 'low'"),
        (("--data", "data", "--out", "data/steplaw_dense.csv/inside"), "cannot be made"),
        (("--data", "data", "--page", "nowhere.md"), "the page 'nowhere.md' cannot be written"),
        (("--data", "data", "--page", "data/steplaw_dense.csv"), "the page has no line '<!-- external targets -->'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(study: Run, arguments: tuple[str, ...], message: str) -> None:
    Path("empty").mkdir()
    Path("broken").mkdir()
    head = Path("data/steplaw_dense.csv").read_text().splitlines()[0]
    Path("broken/steplaw_dense.csv").write_text(f"{head}\n16,64,2,1,0.01,8,100,low\n")
    done = study(*arguments)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith("error: ")
    assert message in done.err
    assert not done.out.strip()
