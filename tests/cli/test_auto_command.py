"""Run `evenstep auto` and `evenstep refine` as a user does, and hold them to the functions of the same names."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import evenstep as es
from tests.cli.command import Run

torch.set_num_threads(1)

NETWORK = """
import torch
from torch import nn

def make():
    hidden = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *hidden, nn.Linear(8, 3))

def loader():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 6, generator=generator)
    targets = (inputs @ torch.randn(6, 3, generator=generator)).argmax(1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=16, shuffle=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_from_a_model_and_a_loader_is_the_functions_own(run: Run, folder: Path) -> None:
    given = ("auto", "mine.py:make", "--data", "mine.py:loader", "--train-steps", "40", "--store", "runs.sqlite")
    printed = run(*given, "-o", "plan.json", "--json").json()
    names: dict[str, object] = {}
    exec(NETWORK, names)
    model = names["make"]()  # type: ignore[operator]
    written = es.Plan.from_json((folder / "plan.json").read_text())
    assert printed["history"] == list(written.history)
    assert [line.split(":")[0] for line in written.history] == ["base", "refined"]
    again = es.auto_plan(model, names["loader"](), train_steps=40, store="runs.sqlite")  # type: ignore[operator]
    assert (again.history, again.parameters) == (written.history, written.parameters)
    corrected = run("refine", "mine.py:make", "plan.json", "--data", "mine.py:loader", "--steps", "8", "--json").json()
    assert corrected["interval"][0] <= corrected["multiple"] <= corrected["interval"][1]
    assert corrected["plan"]["lr_scale"] == pytest.approx(written.lr_scale * corrected["multiple"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("auto", "mine.py:nothing", "--data", "mine.py:loader"), "'mine.py' has no function 'nothing'"),
        (("auto", "mine.py:make", "--data", "mine.py:loader", "--cost", "0"), "cost is 0.0"),
        (("auto", "mine.py:make", "--data", "mine.py:loader", "--optimizer", "magic"), "optimizer is 'magic'"),
        (("refine", "mine.py:make", "lost.json", "--data", "mine.py:loader"), "the plan 'lost.json' cannot be read"),
        (("refine", "mine.py:make", "mine.py", "--data", "mine.py:loader"), "'mine.py': this is not a plan"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run: Run, folder: Path, given: tuple[str, ...], message: str) -> None:
    done = run(*given)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_where_nobody_watches_a_line_says_what_it_is_at(run: Run, folder: Path) -> None:
    given = ("auto", "mine.py:make", "--data", "mine.py:loader", "--train-steps", "40")
    lines = run(*given).err.splitlines()
    stages = [line for line in lines if "warning" not in line]
    assert [line.split(": up to")[0] for line in stages] == ["searching the base", "refining"]
    assert all(re.search(r": up to \d+ trials of (64|128) steps$", line) for line in stages)
    assert "up to" not in run(*given, "--quiet").err


def test_an_interrupt_ends_the_command_with_one_line_and_keeps_its_runs(folder: Path) -> None:
    command = [sys.executable, "-m", "evenstep", "auto", "mine.py:make", "--data", "mine.py:loader"]
    process = subprocess.Popen(
        [*command, "--train-steps", "100000", "--store", "runs.sqlite"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    began = next(line for line in process.stderr if not line.startswith("loading mine.py:make ("))
    assert began.startswith("searching the base: up to ")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    (line,) = err.splitlines()
    assert re.match(r"stopped after \d+ of at most \d+ trials; they are in 'runs.sqlite'", line)
