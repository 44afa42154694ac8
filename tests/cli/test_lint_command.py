"""Run `evenstep lint` as a CI does: a file with a function, and an exit code that says the verdict."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import evenstep as es
from tests.cli.command import Run, in_a_process

torch.set_num_threads(1)

SCRIPT = """
import torch
from torch import nn
import evenstep as es

def model():
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))

x = torch.zeros(2, 8)

def good():
    net = model()
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

def decaying():
    net = model()
    return net, torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)

def with_inputs():
    net = model()
    return net, x, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

def two_rates(floor):
    net = model()
    groups = [{"params": net[:3].parameters()}, {"params": net[3:].parameters(), "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    return net, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5, eta_min=floor)

def falling():
    return two_rates(0.0)

def floored():
    net, optimizer, scheduler = two_rates(0.001)
    return net, (x,), optimizer, scheduler

def several():
    net = model()
    return net, [torch.optim.SGD(net[:3].parameters(), lr=0.1), torch.optim.Adam(net[3:].parameters())]

def planned():
    net = model()
    return net, es.plan(net, x, base=0.1, optimizer="momentum").optimizer(net)

def alone():
    return model()

def swapped():
    net, optimizer = good()
    return optimizer, net

def failing():
    raise ValueError("of its own")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "lint_script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("name", ["good", "with_inputs", "falling", "several", "planned"])
def test_no_finding_is_zero(script: Path, run: Run, name: str) -> None:
    done = run("lint", f"{script}:{name}")
    assert (done.code, done.out, done.err) == (0, f"{script}:{name}: no findings\n", "")


def test_findings_are_one_a_line_and_exit_with_one(script: Path, run: Run) -> None:
    done = run("lint", f"{script}:decaying")
    assert done.code == 1
    assert [line.removeprefix(f"{script}:decaying: ") for line in done.out.splitlines()] == [
        f"decay: {what} with weight_decay 0.1; give norms, biases and embeddings a group with weight_decay=0"
        for what in ("'0.bias' and 2 more: a bias", "'1.weight': a norm's gain")
    ]
    done = run("lint", f"{script}:floored")
    assert done.code == 1
    assert "floored: schedule: CosineAnnealingLR changes the ratios of rates" in done.out


def test_json_holds_all_parameters(script: Path, run: Run) -> None:
    done = run("lint", f"{script}:decaying", "--json")
    assert done.code == 1
    values = json.loads(done.out)
    assert values["target"] == f"{script}:decaying"
    assert values["findings"][0]["parameters"] == ["0.bias", "1.bias", "3.bias"]
    assert set(values["findings"][0]) == {"rule", "parameters", "value", "remedy"}
    assert json.loads(run("lint", f"{script}:good", "--json").out)["findings"] == []


def test_groups_are_compared_with_a_plan(script: Path, run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    Path(tmp_path / "target.py").write_text("from lint_script import model, x\n\ndef make():\n    return model(), x\n")
    made = run("plan", f"{tmp_path / 'target.py'}:make", "--base", "0.1", "--optimizer", "momentum", "-o", str(plan))
    assert made.code == 0, made.err
    assert run("lint", f"{script}:planned", "--plan", str(plan)).code == 0
    done = run("lint", f"{script}:good", "--plan", str(plan))
    assert done.code == 1
    assert "good: plan: " in done.out
    assert "all parameters have the same learning rate 0.1" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{script}:alone",), r"returned Sequential\(.*; return \(model, optimizer\)"),
        (("{script}:swapped",), r"returned \(SGD, Sequential\); return"),
        (("{script}:failing",), "raised ValueError at lint_script.py"),
        (("{script}:nothing",), "has no function 'nothing'"),
        (("{script}",), "is not 'package.module:function'"),
        (("{script}:good", "--plan", "missing.json"), "cannot be read"),
        (("{script}:good", "--plan", "{script}"), "not JSON"),
        (("{script}:several", "--plan", "{plan}"), "a plan is for one optimizer, and there are 2"),
        (("{script}:good", "--plan", "{other}"), "the plan does not fit Sequential"),
    ],
)
def test_bad_input_is_one_line_and_exits_with_two(
    script: Path, run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    nets = {"plan": (8, 16, 2), "other": (8, 4, 2)}
    paths = {name: tmp_path / f"{name}.json" for name in nets}
    for name, (inputs, width, outputs) in nets.items():
        layers = (torch.nn.Linear(inputs, width), torch.nn.LayerNorm(width), torch.nn.ReLU())
        net = torch.nn.Sequential(*layers, torch.nn.Linear(width, outputs))
        paths[name].write_text(es.plan(net, torch.zeros(2, inputs), base=0.1, optimizer="momentum").to_json())
    done = run("lint", *(argument.format(script=script, **paths) for argument in arguments))
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) == 1
    assert re.search(message, done.err), done.err


def test_it_runs_in_a_process_of_its_own(script: Path) -> None:
    assert in_a_process("lint", f"{script.name}:decaying", folder=script.parent).code == 1
