"""Run `evenstep search` as a user does: a file with a function, data in files, and a store to continue from."""

import importlib
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import evenstep as es
from evenstep.search import cosine_schedule
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

def sized(width=8, depth=3):
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), *hidden, nn.Linear(width, 3))

def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=16, shuffle=True)

def squares(output, target):
    return (output - nn.functional.one_hot(target, 3)).square().mean()

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


SMALL = (
    "search",
    "network.py:make",
    "--data",
    "network.py:data",
    "--seeds",
    "2",
    "--batch-size",
    "16",
    "--epochs",
    "1",
)


def test_the_answer_as_json(run: Run) -> None:
    found = run(*SMALL, "--json").json()
    numbers = {"rate", "best", "bracket", "estimate", "interval", "status", "grid", "losses", "steps"}
    more = {"rule", "optimizer", "optimizer_options", "untrained", "shrink", "network", "batch_size", "graph"}
    assert set(found) == numbers | more
    assert found["rate"] == found["estimate"]
    assert found["interval"][0] < found["rate"] < found["interval"][1]
    assert found["steps"] == 96 // 16
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
    lines = [line for line in words.out.splitlines() if not line.startswith("note: ")]
    low, high = found["interval"]
    assert lines[0] == f"learning rate {found['rate']:.4g} for sgd, between {low:.4g} and {high:.4g} (95%)"
    said = " ".join(lines[1:])
    assert f"minimum of the parabola through the losses (estimate): {found['estimate']:.4g}" in said
    assert f"(best): {found['best']:.4g}" in said
    assert "rate and mean loss after 6 steps:" in said
    assert [line.split()[0] for line in lines[-len(found["grid"]) :]] == [f"{rate:.4g}" for rate in found["grid"]]


def test_data_from_files_and_a_function_are_the_same_data(run: Run, folder: Path) -> None:
    inputs, targets = _data()
    np.savez(folder / "data.npz", inputs=inputs.numpy(), targets=targets.numpy())
    torch.save({"inputs": inputs, "targets": targets}, folder / "named.pt")
    torch.save((inputs, targets), folder / "pair.pt")
    expected = run(*SMALL, "--json").json()
    for name in ("data.npz", "named.pt", "pair.pt"):
        assert run(*SMALL, "--data", name, "--json").json() == expected


def test_a_loader_and_a_pair_of_model_and_examples_are_taken_too(run: Run) -> None:
    expected = run(*SMALL, "--json").json()
    options = ("--seeds", "2", "--epochs", "1", "--json")
    assert run("search", "network.py:pair", "--data", "network.py:loader", *options).json() == expected


def test_schedules_losses_grids_and_sizes_are_those_of_python(run: Run, folder: Path) -> None:
    options = ("--grid", "0.02,0.08,0.32,1.28,5.12,20.48,81.92", "--optimizer", "momentum", "--momentum", "0.8")
    more = ("--schedule", "cosine", "--loss", "network.py:squares", "--steps", "25", "--shrink", "depth=1,width=12")
    found = run("search", "network.py:sized", *SMALL[2:-2], *options, *more, "--json").json()
    sys.path.insert(0, str(folder))
    network = importlib.import_module("network")
    sys.path.remove(str(folder))
    expected = es.search_lr(
        lambda: network.sized(width=12, depth=1),
        network.data(),
        grid=[0.02 * 4**place for place in range(7)],
        optimizer="momentum",
        momentum=0.8,
        schedule=cosine_schedule(25),
        loss=network.squares,
        steps=25,
        seeds=2,
        batch_size=16,
        on_failure="return",
    )
    small = [place for place, rate in enumerate(found["grid"]) if rate <= found["rate"]]  # larger ones are chaotic
    for place in small:
        assert found["losses"][place] == pytest.approx(expected.losses[place], rel=1e-5)
    assert (found["shrink"], found["steps"]) == ({"depth": 1, "width": 12}, 25)
    usual = run("search", "network.py:sized", *SMALL[2:-2], *options, *more[2:], "--json").json()
    assert usual["losses"][small[-1]] != pytest.approx(found["losses"][small[-1]], rel=1e-3)


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
    assert "holds no search of this configuration" in other.err


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
        ((*SMALL, "--shrink", "depth=1"), "shrink names 'depth', and make takes none; leave shrink out"),
        ((*SMALL, "--shrink", "depth"), "--shrink is 'depth'; give names and values"),
        (("search", "network.py:sized", "--data", "network.py:data", "--shrink", "breadth=2"), "and sized takes width"),
        ((*SMALL, "--grid", "0.1;0.2"), "--grid is '0.1;0.2'; give numbers separated by commas"),
        ((*SMALL, "--schedule", "step"), "schedule is 'step'; choose one of constant, cosine"),
        ((*SMALL, "--loss", "relu"), "loss is 'relu'; give one in torch.nn.functional, such as cross_entropy"),
        ((*SMALL, "--loss", "network.py:nothing"), "has no function 'nothing'"),
        ((*SMALL, "--momentum", "0.5"), "use 'momentum' for SGD with momentum"),
        (("search", "network.py:frozen", "--data", "network.py:data"), "no trainable parameters"),
        ((*SMALL, "--data", "missing.npz"), "there is no file 'missing.npz'"),
        ((*SMALL, "--data", "words.txt"), "give 'digits', an .npz or .pt file"),
        ((*SMALL, "--data", "wrong.npz"), "'wrong.npz' cannot be read as arrays of numbers; it needs"),
        ((*SMALL, "--data", "objects.npz"), "'objects.npz' cannot be read as arrays of numbers; it needs"),
        ((*SMALL, "--data", "wrong.pt"), "'wrong.pt' cannot be read as tensors; it needs"),
        ((*SMALL, "--data", "module.pt"), "written by torch.save({'inputs': inputs, 'targets': targets}, 'module.pt')"),
        ((*SMALL, "--data", "names.npz"), "has no 'inputs';"),
        ((*SMALL, "--data", "names.npz"), "needs arrays 'inputs' and 'targets', written by numpy.savez('names.npz', "),
        ((*SMALL, "--engine", "cluster"), "engine is 'cluster'"),
        ((*SMALL, "--optimizer", "lamb"), "optimizer is 'lamb'"),
        ((*SMALL, "--seeds", "0"), "seeds is 0"),
        ((*SMALL, "--start", "-1"), "give a finite number above 0"),
        ((*SMALL, "--resume"), "--resume needs a store"),
        ((*SMALL, "--name", "mine"), "--name 'mine' is for trials in a store"),
        ((*SMALL, "--resume", "--store", "new.db"), "holds no search of this configuration"),
        ((*SMALL, "--picture", "nowhere/a.png"), "no folder 'nowhere' for the picture"),
        ((*SMALL, "--picture", "."), "the picture is '.', a folder"),
        ((*SMALL, "--picture", "a.xyz"), "the picture is 'a.xyz', which has an unknown format"),
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
    kept = _count(folder / "s.db")
    assert kept >= 1
    waited = re.compile(r"loading \S+ \(\d+ s\)|searching \d+%: .*|")  # lines that come with time
    began, line = [line for line in err.splitlines() if not waited.fullmatch(line)]
    assert re.fullmatch(r"searching: up to \d+ trials of 3 steps", began)
    assert line.startswith(f"stopped after {kept} of at most ")
    assert line.endswith("; they are in 's.db': run the same search again with this store to continue")


def _count(path: Path) -> int:
    base = sqlite3.connect(path, timeout=30)
    try:
        return int(base.execute("SELECT COUNT(*) FROM copies").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        base.close()
