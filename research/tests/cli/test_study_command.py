"""Run `evenstep study transfer` as a user does: small, resumed, with wrong input, and interrupted."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from evenstep_research.study.transfer.families import families
from evenstep_research.study.transfer.measure import METHODS
from tests.cli.command import Run

torch.set_num_threads(1)


@pytest.fixture
def study(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the study in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(run, "study", "transfer")


def test_the_families_of_a_scale(study: Run) -> None:
    every = study("--scale", "full", "--list", "--json").json()
    assert [one["family"] for one in every] == [family.name for family in families()]
    listed = study("--list")
    assert len(listed.out.splitlines()) == 6
    assert listed.err == ""
    three = ["cnn", "mlp-adam", "mlp-he"]
    for given in (["--families", ",".join(three)], ["--families", *three], [f"--families={name}" for name in three]):
        assert sorted(one["family"] for one in study("--list", "--json", *given).json()) == three


SMALL = ("--families", "mlp-pre", "--seeds", "1", "--workers", "1", "--device", "cpu", "--out", "out")


def test_a_small_run_is_recorded_and_goes_on_from_its_ledger(study: Run, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# Page\n<!-- digits glance -->\n<!-- end -->\n")
    printed = study(*SMALL, "--page", "page.md")
    assert printed.code == 0, printed.err
    assert "[4/4]" in printed.err
    assert all(f"\n{name} " in printed.out for name in (*METHODS, "searched"))
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["ledger.jsonl", "mlp-pre.png", "record.json", "table.csv"]
    record = json.loads((out / "record.json").read_text())
    assert record["config"]["scale"] == "smoke"
    expected = {"batch_size": 32, "epochs": 1, "seeds": 1, "cosine": False, "base_seeds": 4}
    assert record["config"]["training"] == expected
    assert record["config"]["families"] == ["mlp-pre"]
    assert record["provenance"]["versions"]["torch"]
    (family,) = record["results"]["families"]
    assert family["n"] + len(family["without_truth"]) == 3
    assert "structured DAG-MLPs, order pre (`mlp-pre`)" in (tmp_path / "page.md").read_text()
    with (out / "table.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 3
    ledger = (out / "ledger.jsonl").read_text()
    again = study(*SMALL, "--json")
    assert again.json() == record["results"]
    assert (out / "ledger.jsonl").read_text() == ledger


def test_some_families_of_a_record_are_brought_up_to_date(study: Run, tmp_path: Path) -> None:
    assert study(*SMALL).code == 0
    path = tmp_path / "out" / "record.json"
    old = json.loads(path.read_text())
    old["provenance"]["commit"] = "long ago"
    del old["results"]["families"][0]["commit"]  # records did not have it always
    path.write_text(json.dumps(old))
    other = ("--families", "mlp-he", *SMALL[2:], "--update")
    refused = study(*other, "--epochs", "2")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "training" in refused.err
    assert json.loads(path.read_text()) == old
    assert study(*other).code == 0
    new = json.loads(path.read_text())
    assert new["config"]["families"] == ["mlp-pre", "mlp-he"]
    assert list(new["config"]["precision"]) == ["mlp-pre", "mlp-he"]
    kept, measured = new["results"]["families"]
    assert kept == {**old["results"]["families"][0], "commit": "long ago"}
    assert (measured["family"], measured["commit"]) == ("mlp-he", new["provenance"]["commit"])
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        assert [row["family"] for row in csv.DictReader(file)] == 3 * ["mlp-pre"] + 3 * ["mlp-he"]
    assert study(*SMALL, "--update").code == 0  # and the other way round: each keeps its place
    both = json.loads(path.read_text())["results"]["families"]
    assert [one["family"] for one in both] == ["mlp-pre", "mlp-he"]
    assert both[0]["commit"] != "long ago"


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ((), "--out"),
        (("--out", "nothing-there"), "not a record"),
        (("--out", "odd"), "not a record"),
        (("--out", "other"), "not a record"),
    ],
)
def test_nothing_to_bring_up_to_date_is_one_line(
    study: Run, tmp_path: Path, folder: tuple[str, ...], said: str
) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "record.json").write_text("[]")
    (tmp_path / "other").mkdir()
    other = {"config": {"scale": "smoke"}, "results": {"n": 3, "methods": {}}, "provenance": {"commit": "abc"}}
    (tmp_path / "other" / "record.json").write_text(json.dumps(other))
    refused = study("--families", "mlp-he", "--update", *folder)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert said in refused.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scale", "huge"), "scale is 'huge'; choose one of smoke, cpu, full"),
        (("--families", "mlp"), "there is no family 'mlp'; choose from chains"),
        (("--scale", "full"), "trains on CIFAR-10; give the folder"),
        (("--scale", "full", "--data", "nowhere"), "there is no folder 'nowhere'"),
        (("--scale", "full", "--data", "empty", "--workers", "1"), "data_batch_1.bin'; give the folder"),
        (("--data", "empty"), "leave --data out"),
        (("--epochs", "-1"), "--epochs is -1; give a whole number from 1 up"),
        (("--epochs", "0"), "--epochs is 0"),
        (("--seeds", "0"), "--seeds is 0"),
        (("--workers", "-2"), "--workers is -2"),
        (("--precision", "half"), "--precision is 'half'; choose one of float32, tf32, bfloat16"),
        (("--precision", "tf32", "--device", "cpu"), "which is for a GPU"),
        (("--device", "toaster"), "--device is 'toaster'"),
        (("--device", "meta"), "which this machine has not"),
        (("--out", "file/inside"), "cannot be made"),
        (("--networks", "chian*"), "no network's name matches 'chian*'; names are such as 'chain 1'"),
        (("--page", "nowhere.md"), "the page 'nowhere.md' cannot be written"),
        (("--page", "file"), "the page has no line '<!-- digits glance -->'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    study: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    done = study(*arguments)
    assert done.code == 2
    lines = [line for line in done.err.splitlines() if line.strip() and not line.startswith("[")]
    assert len(lines) == 1, done.err
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert not done.out.strip()


def test_a_ledger_that_cannot_be_read_is_one_line(study: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "ledger.jsonl").write_text("nonsense\n")
    done = study(*SMALL)
    assert done.code == 2
    assert "line 1 of the ledger" in done.err


def test_more_epochs_decay_along_a_cosine(study: Run) -> None:
    done = study("--families", "width-sgd", "--seeds", "1", "--workers", "1", "--epochs", "2", "--out", "out")
    assert done.code == 0, done.err
    training = json.loads(Path("out/record.json").read_text())["config"]["training"]
    assert (training["epochs"], training["cosine"]) == (2, True)
    assert "drift of the searched rate over width, octaves: chain 1 " in done.out


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_interrupt_from_the_keyboard_ends_it_soon_and_it_can_go_on(tmp_path: Path, workers: str) -> None:
    command = [sys.executable, "-m", "evenstep", "study", "transfer", "--scale", "cpu", "--families", "chains"]
    process = subprocess.Popen(
        [*command, "--epochs", "3", "--workers", workers, "--out", str(tmp_path), "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    ledger = tmp_path / "ledger.jsonl"
    for _ in range(9000):
        if ledger.exists() or process.poll() is not None:
            break
        time.sleep(0.01)
    before = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - before < 6.0
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "the same command goes on" in err
    assert all(json.loads(line)["curve"] for line in ledger.read_text().splitlines())
