"""Run `evenstep search` as a user does: a file with a function, data in files, and a store to go on from."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.command import Run

torch.set_num_threads(1)

NETWORK = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = make()
    def forward(self, x):
        for _ in range(5):
            x.repeat(20, 20) @ x.repeat(20, 20).T
        return self.layers(x)

def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 6, generator=generator)
    return inputs, (inputs @ torch.randn(6, 3, generator=generator)).argmax(1)

def frozen():
    return make().requires_grad_(False)

def pair():
    return make(), torch.zeros(2, 6)

def broken():
    raise RuntimeError("no such luck")

number = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "network", raising=False)
    (tmp_path / "network.py").write_text(NETWORK)
    return tmp_path


SMALL = ("search", "network.py:make", "--data", "network.py:data", "--seeds", "2", "--batch-size", "16")


def test_the_answer_as_json(run: Run) -> None:
    found = run(*SMALL, "--json").json()
    numbers = {"best", "bracket", "estimate", "interval", "status", "grid", "losses"}
    assert set(found) == numbers | {"rule", "optimizer", "untrained", "graph"}
    assert found["status"] == "ok"
    assert found["grid"] == sorted(found["grid"])
    assert found["best"] in found["grid"]
    assert found["bracket"][0] < found["best"] < found["bracket"][1]
    assert {len(seeds) for seeds in found["losses"]} == {2}
    # The best is not far from the lowest mean, which is lower than that of guessing one of three classes.
    means = [sum(seeds) / 2 for seeds in found["losses"] if None not in seeds]
    assert min(means) < math.log(3)


def test_the_answer_in_words(run: Run) -> None:
    found, words = run(*SMALL, "--json").json(), run(*SMALL)
    assert words.code == 0
    first, second, *rest = words.out.splitlines()
    assert first.startswith(f"best learning rate {found['best']:.4g}, between ")
    assert f"{found['estimate']:.4g}" != f"{found['best']:.4g}"
    assert second.startswith(f"estimate {found['estimate']:.4g}, ")
    assert "plans start from it" in second
    assert len(rest) == len(found["grid"]) + (found["interval"] is not None)


def test_data_from_files_and_a_function_are_the_same_data(run: Run, folder: Path) -> None:
    inputs, targets = _data()
    np.savez(folder / "data.npz", inputs=inputs.numpy(), targets=targets.numpy())
    torch.save({"inputs": inputs, "targets": targets}, folder / "named.pt")
    torch.save((inputs, targets), folder / "pair.pt")
    expected = run(*SMALL, "--json").json()
    for name in ("data.npz", "named.pt", "pair.pt"):
        assert run(*SMALL, "--data", name, "--json").json() == expected


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 6, generator=generator)
    return inputs, (inputs @ torch.randn(6, 3, generator=generator)).argmax(1)


def test_a_store_is_written_and_gone_on_from(run: Run, folder: Path) -> None:
    first = run(*SMALL, "--store", "s.db", "--json").json()
    assert run(*SMALL, "--store", "s.db", "--resume", "--json").json() == first
    base = sqlite3.connect(folder / "s.db")
    copies = base.execute("SELECT lr, seed, loss FROM copies ORDER BY lr, seed").fetchall()
    base.close()
    losses = [(lr, s, x) for lr, row in zip(first["grid"], first["losses"], strict=True) for s, x in enumerate(row)]
    assert copies == losses


def test_a_name_stands_for_the_code_of_a_model(run: Run, folder: Path) -> None:
    named = run(*SMALL, "--store", "named.db", "--name", "one", "--json").json()
    assert run(*SMALL, "--store", "named.db", "--name", "one", "--resume", "--json").json() == named
    other = run(*SMALL, "--store", "named.db", "--name", "other", "--resume", "--json")
    assert other.code == 2
    assert "knows no search of this configuration" in other.err


def test_a_picture_is_drawn(run: Run, folder: Path) -> None:
    assert run(*SMALL, "--picture", "curve.png").code == 0
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_its_folder_is_said_before_training(run: Run, folder: Path) -> None:
    assert run(*SMALL, "--store", "s.db", "--picture", "nowhere/a.png").code == 2
    assert not (folder / "s.db").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("search", "network.py:nothing"), "has no function 'nothing'"),
        (("search", "network.py:number"), "has no function 'number'"),
        (("search", "missing.py:make"), "there is no file 'missing.py'"),
        (("search", "make"), "is not 'package.module:function'"),
        (("search", "network.py:broken", "--data", "network.py:data"), "raised RuntimeError at network.py"),
        (("search", "network.py:data", "--data", "network.py:data"), "'network.py:data' returned tuple; return"),
        (
            ("search", "network.py:pair", "--data", "network.py:data"),
            "'network.py:pair' returned tuple; return a torch",
        ),
        (("search", "network.py:frozen", "--data", "network.py:data"), "no trainable parameters"),
        ((*SMALL, "--data", "missing.npz"), "there is no file 'missing.npz'"),
        ((*SMALL, "--data", "words.txt"), "give 'digits', a file .npz or .pt"),
        ((*SMALL, "--data", "wrong.npz"), "'wrong.npz' cannot be read as arrays of numbers; it needs"),
        ((*SMALL, "--data", "objects.npz"), "'objects.npz' cannot be read as arrays of numbers; it needs"),
        ((*SMALL, "--data", "wrong.pt"), "'wrong.pt' cannot be read as tensors; it needs"),
        ((*SMALL, "--data", "module.pt"), "written by torch.save({'inputs': inputs, 'targets': targets}, 'module.pt')"),
        ((*SMALL, "--data", "names.npz"), "has no 'inputs';"),
        ((*SMALL, "--data", "names.npz"), "needs arrays 'inputs' and 'targets', written by numpy.savez('names.npz', "),
        ((*SMALL, "--engine", "cluster"), "engine is 'cluster'"),
        ((*SMALL, "--optimizer", "lion"), "optimizer is 'lion'"),
        ((*SMALL, "--seeds", "0"), "seeds is 0"),
        ((*SMALL, "--start", "-1"), "give a finite number above 0"),
        ((*SMALL, "--resume"), "--resume needs the store"),
        ((*SMALL, "--name", "mine"), "--name 'mine' is for trials in a store"),
        ((*SMALL, "--resume", "--store", "new.db"), "knows no search of this configuration"),
        ((*SMALL, "--picture", "nowhere/a.png"), "no folder 'nowhere' for the picture"),
        ((*SMALL, "--picture", "."), "the picture is '.', a folder"),
        ((*SMALL, "--picture", "a.xyz"), "the picture is 'a.xyz', of a format that is not known"),
        ((*SMALL, "--store", "nowhere/s.db"), "check that its folder exists"),
        ((*SMALL, "--store", "network.py"), "another kind of file"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    run: Run, folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    for name in ("wrong.npz", "wrong.pt"):
        (folder / name).write_text("these are no arrays")
    np.savez(folder / "names.npz", x=np.zeros(3))
    np.savez(folder / "objects.npz", inputs=np.array([None, "a"], dtype=object), targets=np.zeros(2))
    torch.save(torch.nn.Linear(2, 2), folder / "module.pt")
    done = run(*arguments)
    assert done.code == 2
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert len(lines) == 1, done.err
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert "pickle" not in lines[0]
    assert "weights_only" not in lines[0]
    assert not done.out.strip()


def test_an_interrupt_ends_the_command_and_keeps_its_rows(folder: Path) -> None:
    command = [sys.executable, "-m", "evenstep", "search", "network.py:Slow", "--data", "network.py:data"]
    options = ["--seeds", "1", "--steps", "3", "--store", "s.db", "--init", "keep"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command + options, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    for _ in range(6000):
        if ((folder / "s.db").exists() and _count(folder / "s.db")) or process.poll() is not None:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err  # and not 0: it did not wait for the end of the search
    assert "Traceback" not in err
    assert _count(folder / "s.db") >= 1


def _count(path: Path) -> int:
    base = sqlite3.connect(path, timeout=30)
    try:
        return int(base.execute("SELECT COUNT(*) FROM copies").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        base.close()
