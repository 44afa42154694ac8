"""Run `evenstep check` as a user does: a file with a function of a size, and an exit code that says the verdict."""

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.cli.command import Done, Run

torch.set_num_threads(1)

NETWORK = """
import torch
from torch import nn
from evenstep_research.spaces import DagMLP

def wide(n):
    return nn.Sequential(nn.Linear(16, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 4))

def deep(depth):
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), *hidden, nn.Linear(64, 4))

def coded(code):
    return DagMLP(code, width=32, inputs=16, classes=4)

def ratio(size):
    return wide(int(size * 64))

def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 16, generator=generator)
    return inputs, (inputs @ torch.randn(16, 4, generator=generator)).argmax(1)

def narrow_data():
    return torch.randn(8, 3), torch.zeros(8, dtype=torch.long)

def several(depth, width=64):
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), *hidden, nn.Linear(width, 4))

def sized(depth=1, *, width):
    return several(depth, width)

def broken(n):
    raise RuntimeError("no such luck")

def nothing(n):
    return None
"""


WIDE = NETWORK.splitlines().index("def wide(n):") + 2


@pytest.fixture
def check(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `evenstep check` on a function of the file above."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "network.py").write_text(NETWORK)

    def call(function: str, *arguments: str) -> Done:
        monkeypatch.delitem(sys.modules, "network", raising=False)
        return run("check", f"network.py:{function}", "--data", "network.py:data", *arguments)

    return call


def test_a_plan_passes_over_width(check: Run) -> None:
    done = check("wide", "--over", "width=64,128,512", "--lr", "0.3", "--json")
    assert done.code == 0, done.out + done.err
    found = done.json()
    assert found["verdict"] == "ok"
    assert (found["over"], found["rule"], found["init"], found["optimizer"]) == ("width", "weighted", "conserve", "sgd")
    assert [one["label"] for one in found["networks"]] == [64, 128, 512]
    assert {trend["signal"] for trend in found["trends"]} == {"0", "2", "4", "4 reads"}


def test_one_rate_for_all_layers_fails_over_width(check: Run) -> None:
    done = check("wide", "--over", "width=64,128,512", "--rule", "constant", "--init", "keep", "--optimizer", "adam")
    assert done.code == 1
    first, *_, last = done.out.splitlines()
    assert first.startswith("change by the first step over width")
    assert "<-" in done.out
    assert last.startswith("failed: the worst of 4 is ")


def test_over_depth_the_last_vertex_is_judged(check: Run) -> None:
    planned = check("deep", "--over", "depth=1,3,9", "--json")
    assert planned.code == 0, planned.out + planned.err
    assert planned.json()["compare"] == "last"
    assert [one["signal"] for one in planned.json()["trends"]] == ["last hidden vertex"]
    unscaled = check("deep", "--over", "depth=1,3,9", "--rule", "mup", "--lr", "0.01")
    assert unscaled.code == 1
    assert "(not judged)" in unscaled.out  # the output


def test_values_may_be_names_and_fractions(check: Run) -> None:
    named = check("coded", "--over", "code=2_02,2_12", "--seeds", "1", "--json")
    assert [one["label"] for one in json.loads(named.out)["networks"]] == ["2_02", "2_12"]
    fractions = check("ratio", "--over", "ratio=0.5,1,1.5", "--seeds", "1", "--tolerance", "9", "--json")
    assert fractions.code == 0
    assert [one["label"] for one in fractions.json()["networks"]] == [0.5, 1.0, 1.5]


def test_the_named_parameter_is_varied(check: Run) -> None:
    few = ("--seeds", "1", "--steps", "1", "--tolerance", "99")
    deep = json.loads(check("several", "--over", "depth=1,2", *few, "--json").out)
    shallow, deeper = (set(one["signals"]) for one in deep["networks"])
    assert len(deeper) == len(shallow) + 1  # one more layer, though width is a parameter too
    wide = json.loads(check("sized", "--over", "width=8,16", *few, "--json").out)
    narrow, wider = (set(one["signals"]) for one in wide["networks"])
    assert narrow == wider


@pytest.mark.parametrize("rule", ["weighted", "constant"])
def test_the_picture(check: Run, tmp_path: Path, rule: str) -> None:
    for function, over in (("wide", "width=8,16"), ("deep", "depth=1,2"), ("coded", "code=2,2_02,2_12,2_22")):
        path = tmp_path / f"{function}.png"
        done = check(function, "--over", over, "--rule", rule, "--seeds", "1", "--steps", "1", "--picture", str(path))
        assert done.code in (0, 1), done.err
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        ("wide", ("--over", "width"), "--over is 'width'"),
        ("wide", ("--over", "width=64"), "at least two values"),
        ("wide", ("--over", "width=64,64"), "which repeats a value"),
        ("wide", ("--over", "width=0,64"), "network.py:"),
        ("wide", ("--over", "width=a,b"), f"'network.py:wide' called with 'a' raised TypeError at network.py:{WIDE}: "),
        ("several", ("--over", "foo=8,16"), "--over varies 'foo', but 'network.py:several' has no such parameter"),
        ("several", ("--over", "foo=8,16"), "choose from depth, width"),
        ("wide", ("--over", "width=8,16", "--rule", "best"), "rule is 'best'"),
        ("wide", ("--over", "width=8,16", "--optimizer", "lamb"), "optimizer is 'lamb'"),
        ("wide", ("--over", "width=8,16", "--compare", "all"), "compare is 'all'"),
        ("wide", ("--over", "width=8,16", "--lr", "-1"), "-1"),
        ("wide", ("--over", "width=8,16", "--steps", "0"), "steps is 0"),
        ("wide", ("--over", "width=8,16", "--data", "nowhere.npz"), "no file 'nowhere.npz'"),
        ("wide", ("--over", "width=8,16", "--data", "network.py:narrow_data"), ""),
        ("wide", ("--over", "width=8,16", "--picture", "nowhere/a.png"), "no folder 'nowhere'"),
        ("broken", ("--over", "width=8,16"), "no such luck"),
        ("nothing", ("--over", "width=8,16"), "NoneType"),
        ("data", ("--over", "width=8,16"), "network.py:data"),
        ("absent", ("--over", "width=8,16"), "no function 'absent'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    check: Run, function: str, arguments: tuple[str, ...], said: str
) -> None:
    done = check(function, *arguments)
    assert done.code == 2, done.out
    assert done.out == ""
    line = done.err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert said in line
