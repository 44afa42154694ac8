"""Run the paper's figures from the command line: listed, small, resumed, and with wrong input."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from evenstep_research.study.figures.catalogue import FIGURES
from tests.cli.command import Run

torch.set_num_threads(1)


@pytest.fixture
def study(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run studies in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(run, "study")


SMALL = ("mlp-depth", "--seeds", "1", "--workers", "1", "--device", "cpu", "--out", "results/mlp-depth")


def test_a_small_run_is_recorded_resumed_and_not_listed_as_the_papers(study: Run, tmp_path: Path) -> None:
    printed = study(*SMALL)
    assert printed.code == 0, printed.err
    assert "MLP chains on digits: n = " in printed.out
    assert "paper, on CIFAR-10: r = 0.962; these runs are on digits" in printed.out
    out = tmp_path / "results" / "mlp-depth"
    assert sorted(path.name for path in out.iterdir()) == ["figure.png", "ledger.jsonl", "record.json", "table.csv"]
    record = json.loads((out / "record.json").read_text())
    assert record["config"]["command"] == "evenstep study mlp-depth --scale smoke --seeds 1"
    assert record["config"]["data"] == "digits"
    before = (out / "ledger.jsonl").read_text()
    again = study(*SMALL, "--json", "--quiet")
    assert again.err == ""
    assert again.json() == record["results"]
    assert (out / "ledger.jsonl").read_text() == before
    assert [one["r"] for one in study("list", "--json").json()] == [None] * len(FIGURES)
    record["config"]["scale"] = "paper"
    (out / "record.json").write_text(json.dumps(record))
    assert [one["r"] for one in study("list", "--json").json()] == [None] * len(FIGURES)  # of other data still
    record["config"]["data"] = "cifar10"  # what a run on CIFAR-10 would say
    (out / "record.json").write_text(json.dumps(record))
    listed = study("list", "--json").json()
    recorded = record["results"]["methods"]["weighted"]["pearson"]["value"]
    assert listed[0]["r"]["weighted"] == pytest.approx(recorded)
    assert listed[0]["paper_r"] == 0.962
    assert "ours" in study("list").out.splitlines()[0]
    (tmp_path / "page.md").write_text("<!-- reproduction table -->\n<!-- end -->\n")
    assert study("list", "--page", "page.md").code == 0
    assert "| `mlp-depth` | MLP chains on CIFAR-10 | 4 | 0.962 |" in (tmp_path / "page.md").read_text()


def test_the_list_names_every_figure(study: Run) -> None:
    lines = study("list").out.splitlines()
    assert [line.split()[0] for line in lines] == [figure.name for figure in FIGURES]
    assert all("not run here" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cnn", "--scale", "huge"], "scale is 'huge'; choose one of smoke, cpu, paper"),
        (["cnn", "--scale", "paper"], "trains on CIFAR-10; give the folder of CIFAR-10 as --data"),
        (["imagenet-depth", "--scale", "paper"], "give the folder with ImageNet's train and val as --data"),
        (["cnn", "--data", "."], "trains on digits, which need no files; leave --data out"),
        (["cnn", "--scale", "paper", "--data", "no"], "there is no folder 'no'"),
        (["cnn", "--scale", "paper", "--data", "."], "cifar"),
        (["cnn", "--seeds", "0"], "--seeds is 0"),
        (["cnn", "--rates", "two"], "--rates is 'two'; give layers or one"),
        (["cnn", "--precision", "int8"], "--precision is 'int8'"),
        (["cnn", "--device", "tpu"], "--device is 'tpu'"),
        (["list", "--page", "none.md"], "the page 'none.md' cannot be written"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(study: Run, arguments: list[str], message: str) -> None:
    found = study(*arguments)
    assert found.code == 2
    lines = [line for line in found.err.strip().splitlines() if not line.startswith("[0/")]
    assert len(lines) == 1
    assert message.lower() in lines[0].lower()


def test_a_broken_record_is_named(study: Run, tmp_path: Path) -> None:
    (tmp_path / "results" / "cnn").mkdir(parents=True)
    (tmp_path / "results" / "cnn" / "record.json").write_text("{")
    found = study("list")
    assert found.code == 2
    assert "record.json' cannot be read" in found.err
