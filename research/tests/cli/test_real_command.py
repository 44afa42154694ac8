"""Run `evenstep study real` as a user does: the scale smoke, resumed, with wrong input, cut short, and interrupted."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread

from evenstep_research.study.real.networks import development_set
from evenstep_research.study.real.scales import REAL_SCALES
from tests.cli.command import Run, in_a_process

COLUMNS = (
    "network,optimizer,steps,seed_count,tuned,tuned_lr,default,constant,mup,prodigy,plan,best_multiple,"
    "best_multiple_loss"
)
ONE = ("--networks", "small cnn*", "--optimizers", "adam", "--device", "cpu", "--workers", "1", "--out", "out")


@pytest.fixture
def study(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the study in a folder of its own, in one thread."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return partial(run, "study", "real")


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_the_scale_smoke_from_beginning_to_end(study: Run, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# Page\n<!-- real smoke glance -->\n<!-- end -->\n")
    options = ("--seeds", "1", "--device", "cpu", "--workers", "1", "--out", "out", "--page", "page.md")
    printed = study(*options)
    assert printed.code == 0, printed.err
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["curves.png", "ledger.jsonl", "record.json", "table.csv"]
    record = json.loads((out / "record.json").read_text())
    assert record["config"]["scale"] == "smoke"
    assert record["config"]["seeds"] == 1
    assert record["provenance"]["versions"]["torch"]
    results = record["results"]
    assert len(results["rows"]) == 6
    assert results["missing"] == []
    assert len(results["bases"]) == 3 * 2 * 3
    assert all(base["lr"] > 0 for base in results["bases"])
    assert len(results["measured_on"]) == 1
    with (out / "table.csv").open(newline="") as file:
        assert file.readline().strip() == COLUMNS
        file.seek(0)
        rows = list(csv.DictReader(file))
    measured = {
        (line["network"], line["optimizer"], line["treatment"], line["lr"]): line["loss"]
        for line in lines(out / "ledger.jsonl")
    }
    assert len(measured) == len(lines(out / "ledger.jsonl"))
    for row, kept in zip(rows, results["rows"], strict=True):
        key = row["network"], row["optimizer"]
        start = {"adam": 0.001, "momentum": 0.1}[row["optimizer"]]
        own = {lr: loss for (*name, treatment, lr), loss in measured.items() if (*name, treatment) == (*key, "own")}
        assert float(row["default"]) == own[start]
        assert float(row["tuned"]) == min(loss for loss in own.values() if loss is not None)
        assert float(row["tuned"]) == own[float(row["tuned_lr"])]
        base_lr = kept["base_lr"]
        for column, rule in (("constant", "constant"), ("mup", "mup"), ("plan", "weighted")):
            assert float(row[column]) == measured[(*key, rule, base_lr[rule])]
        multiple = measured[(*key, "weighted", base_lr["weighted"] * float(row["best_multiple"]))]
        assert float(row["best_multiple_loss"]) == multiple <= float(row["plan"])
        assert float(row["prodigy"]) == measured[row["network"], "prodigy", "prodigy", 1.0]
        assert row["network"] in printed.out
    assert imread(out / "curves.png").shape[1] > 1000
    assert "| adam | 24 | 3 of 3 |" in (tmp_path / "page.md").read_text()


def test_a_study_that_was_cut_goes_on_to_the_same_results(study: Run, tmp_path: Path) -> None:
    options = (*ONE, "--seeds", "1", "--json")
    whole = study(*options).json()
    path = tmp_path / "out" / "ledger.jsonl"
    ledger = path.read_text()
    assert study(*options, "--quiet").json() == whole
    assert path.read_text() == ledger  # nothing was run again
    kept = ledger.splitlines(keepends=True)
    path.write_text("".join(kept[: len(kept) // 2]) + kept[len(kept) // 2][:40])
    assert study(*options).json() == whole
    assert [line | {"seconds": 0} for line in lines(path)] == [json.loads(line) | {"seconds": 0} for line in kept]


def test_lines_of_another_plan_are_left_and_not_used(study: Run, tmp_path: Path) -> None:
    whole = study(*ONE, "--seeds", "1", "--json").json()
    path = tmp_path / "out" / "ledger.jsonl"
    changed = [
        line | ({"plan": "another", "loss": 0.001} if line["treatment"] == "weighted" else {}) for line in lines(path)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in changed))
    assert study(*ONE, "--seeds", "1", "--json").json() == whole
    again = lines(path)[len(changed) :]
    assert len(again) == sum(line["plan"] == "another" for line in changed)
    assert {line["treatment"] for line in again} == {"weighted"}


def test_the_rows_of_a_scale(study: Run) -> None:
    every = study("--scale", "full", "--list", "--json").json()
    assert len(every) == 2 * (11 + 4)
    assert {row["network"] for row in every} == {network.name for network in development_set()}
    some = study("--scale", "full", "--list", "--json", "--networks", "gpt2*,vit 6 ?*", "--optimizers", "adam").json()
    assert [(row["network"], row["steps"]) for row in some] == [
        ("vit 6 x 192", 300),
        ("vit 6 x 192", 1500),
        ("gpt2 6 x 256", 300),
        ("gpt2 6 x 256", 1500),
        ("gpt2 12 x 192", 300),
    ]
    listed = study("--list")
    assert len(listed.out.splitlines()) == 6
    assert listed.err == ""
    assert len(study("--scale", "full", "--list", "--steps", "1500").out.splitlines()) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scale", "huge"), "scale is 'huge'; choose one of smoke, cpu, full"),
        (("--networks", "small cn"), "no network's name matches 'small cn'; names are 'small cnn"),
        (("--optimizers", "adam,sgd"), "--optimizers names 'sgd'; choose from adam, momentum"),
        (("--steps", "300"), "--steps is 300; the scale 'smoke' trains for 24"),
        (("--steps", "many"), "--steps is 'many'; give whole numbers"),
        (("--scale", "full", "--networks", "vgg*", "--steps", "1500"), "none of the chosen networks trains for 1500"),
        (("--seeds", "0"), "--seeds is 0; give a whole number from 1 up"),
        (("--workers", "-1"), "--workers is -1"),
        (("--minutes", "0"), "--minutes is 0; give a number above 0"),
        (("--minutes", "nan"), "--minutes is nan"),
        (("--device", "toaster"), "--device is 'toaster'"),
        (("--data", "empty"), "the scale 'smoke' needs no files; leave --data out"),
        (("--scale", "full"), "'resnet18' trains on CIFAR-10 at the scale 'full'; give its folder as --data"),
        (("--scale", "full", "--data", "nowhere"), "there is no folder 'nowhere'"),
        (("--scale", "full", "--data", "empty"), "data_batch_1.bin'; give the folder of CIFAR-10"),
        (("--out", "file/inside"), "cannot be made"),
        (("--page", "nowhere.md"), "the page 'nowhere.md' cannot be written"),
        (("--page", "file"), "the page has no line '<!-- real smoke glance -->'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    study: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    done = study(*arguments)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith("error: ")
    assert message in done.err
    assert not done.out.strip()


def test_a_missing_package_is_told_before_any_training(tmp_path: Path) -> None:
    (tmp_path / "prodigyopt.py").write_text("raise ImportError('not here')\n")
    code = "import sys; sys.path.insert(0, ''); from evenstep.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "study", "real", "--out", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "'prodigyopt' cannot be loaded (not here)" in done.stderr
    assert "pip install 'evenstep-research[real]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_ledger_that_cannot_be_read_is_one_line(study: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "ledger.jsonl").write_text("nonsense\n")
    done = study(*ONE, "--quiet")
    assert done.code == 2
    assert "line 1 of the ledger" in done.err


@pytest.mark.slow
def test_a_study_stops_in_time_and_writes_what_it_has(tmp_path: Path) -> None:
    options = ("study", "real", "--networks", "small cnn*", "--seeds", "40", "--device", "cpu", "--out", "out")
    before = time.monotonic()
    done = in_a_process(*options, "--minutes", "0.15", "--workers", "1", folder=tmp_path)
    assert done.code == 0, done.err
    assert time.monotonic() - before < 30
    assert "stopped after 0.15 minutes; the same command goes on" in done.err
    out = tmp_path / "out"
    assert {"curves.png", "record.json", "table.csv"} <= {path.name for path in out.iterdir()}
    results = json.loads((out / "record.json").read_text())["results"]
    assert results["missing"]
    assert "not measured: small cnn" in done.out
    with (out / "table.csv").open(newline="") as file:
        assert any(value == "" for row in csv.DictReader(file) for value in row.values())


@pytest.mark.slow
def test_an_interrupt_from_the_keyboard_ends_it_soon_and_it_can_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "evenstep", "study", "real", "--seeds", "20", "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path), "--device", "cpu"],
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
    assert all(line["loss"] for line in lines(ledger))


def test_every_network_of_a_scale_has_its_base_and_its_data() -> None:
    for scale in REAL_SCALES.values():
        names = [network.name for network in (*scale.networks, *scale.bases.values())]
        assert len(set(names)) == len(names)
        for network in scale.networks:
            assert scale.bases[network.kind].data == network.data
            assert network.data in scale.sources
        assert set(scale.longer) <= set(names)
