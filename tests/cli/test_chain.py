"""Search a base and plan from the file of the search: on the command line as in Python."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import evenstep as es
from evenstep.cli.base import load_base
from evenstep.graph import dag_mlp_graph
from tests.cli.command import Run

torch.set_num_threads(1)

NETWORKS = """
import torch
from torch import nn

def small():
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))

def large():
    hidden = [nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)]
    return nn.Sequential(*hidden), torch.zeros(2, 6)

def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 6, generator=generator)
    return inputs, (inputs @ torch.randn(6, 3, generator=generator)).argmax(1)
"""
OPTIONS = ("--data", "net.py:data", "--epochs", "1", "--seeds", "2", "--batch-size", "16", "--start", "0.4")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    (tmp_path / "net.py").write_text(NETWORKS)
    return tmp_path


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))


def large() -> nn.Module:
    hidden = [nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)]
    return nn.Sequential(*hidden)


def searched(optimizer: Any) -> es.LRSearch:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 6, generator=generator)
    targets = (inputs @ torch.randn(6, 3, generator=generator)).argmax(1)
    return es.search_lr(small, (inputs, targets), optimizer=optimizer, epochs=1, seeds=2, batch_size=16, start=0.4)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_search_and_a_plan_give_the_rates_of_python(run: Run, folder: Path, optimizer: str) -> None:
    (folder / "base.json").write_text(run("search", "net.py:small", *OPTIONS, "--optimizer", optimizer, "--json").out)
    found = searched(optimizer)
    assert found.estimate not in (None, found.best)
    assert load_base("base.json") == found
    made = run("plan", "net.py:large", "--base", "base.json", "--json").json()
    expected = es.plan(large(), torch.zeros(2, 6), base=found)
    assert (made["optimizer"], made["base"]) == (optimizer, found.estimate)
    rates = {p["name"]: made["base"] * p["lr_scale"] for p in made["parameters"]}
    model = large()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = expected.param_groups(model)
    assert rates == pytest.approx({names[id(p)]: group["lr"] for group in groups for p in group["params"]}, rel=1e-9)
    assert (made["batch_size"], made["steps"]) == (16, found.steps)
    smaller = run("plan", "net.py:large", "--base", "base.json", "--batch-size", "4", "--json").json()
    assert smaller["lr_scale"] == pytest.approx(4**-0.25 * made["lr_scale"])
    # The base's graph counts: the same number without it gives other rates.
    number = run("plan", "net.py:large", "--base", str(found.estimate), "--optimizer", optimizer, "--json").json()
    assert number["parameters"] != made["parameters"]


def test_a_plan_takes_a_model_alone_with_examples_from_data(run: Run, folder: Path) -> None:
    named = ("--base", "0.1", "--optimizer", "sgd", "--json")
    expected = run("plan", "net.py:large", *named).json()
    (folder / "net.py").write_text(NETWORKS + "\ndef alone():\n    return large()[0]\n")
    sys.modules.pop("net", None)
    assert run("plan", "net.py:alone", "--data", "net.py:data", *named).json()["parameters"] == expected["parameters"]
    lacking = run("plan", "net.py:alone", *named)
    assert lacking.code == 2
    assert "without example inputs; return (model, example_inputs), or give --data" in lacking.err
    coded = run("plan", "--code", "2", "--data", "net.py:data")
    assert (coded.code, "leave it out with --code" in coded.err) == (2, True)


@pytest.fixture
def base(folder: Path) -> es.LRSearch:
    """The search of a base of 32 units, and its file."""
    losses = ((1.0, 1.1), (0.5, 0.4), (0.8, 0.7), (float("inf"), 2.0))
    graph = dag_mlp_graph("2", width=32, inputs=8, classes=2)
    found = es.LRSearch(
        (0.1, 0.2, 0.4, 0.8), losses, 0.2, (0.1, 0.4), "ok", graph, 0.23, (0.1, 0.3), "weighted", "momentum"
    )
    (folder / "base.json").write_text(json.dumps(found.to_dict()))
    return found


def test_a_search_comes_back_from_its_file(base: es.LRSearch) -> None:
    assert load_base("base.json") == base


def test_a_base_is_read_without_the_report(base: es.LRSearch) -> None:
    code = "import sys; from evenstep.cli.base import load_base; load_base('base.json'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "evenstep.search.result" in loaded
    assert not [name for name in loaded if name.startswith("evenstep.report")]


def test_codes_are_planned_from_a_search(run: Run, base: es.LRSearch) -> None:
    options = ("--width", "16", "--inputs", "8", "--classes", "2", "--base", "base.json")
    expected = es.plan(dag_mlp_graph("2_12", width=16, inputs=8, classes=2), base=base)
    made = run("plan", "--code", "2_12", *options, "--json").json()
    assert (made["optimizer"], made["base"]) == ("momentum", 0.23)
    assert [p["lr_scale"] for p in made["parameters"]] == [p.lr_scale for p in expected.parameters]
    assert json.loads(run("plan", "--code", "-", *options, given="2_12\n").out) == made


def test_the_report_still_shows_a_search(run: Run, folder: Path, base: es.LRSearch) -> None:
    assert run("report", "base.json", "-o", "page.html", "--json").json()["parts"] == ["search"]
    assert (folder / "page.html").is_file()


def test_what_does_not_go_with_a_search_is_said(run: Run, base: es.LRSearch) -> None:
    other = run("plan", "--code", "2", "--base", "base.json", "--optimizer", "adam")
    assert other.code == 2
    assert "'momentum'" in other.err
    described = run("plan", "--code", "2", "--base", "base.json", "--base-width", "64")
    assert described.code == 2
    assert described.err.startswith("error: --base-width describes a base, but the search in 'base.json' has its own")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: "", "is empty, which is not valid JSON"),
        (lambda text: text[:-9], "is not valid JSON (line 1"),
        (lambda text: "a letter", "holds no search"),
        (lambda text: "[1, 2]", "holds no search"),
        (lambda text: '{"format": "evenstep-plan/1"}', "holds no search"),
        (lambda text: "SQLite format 3\0", "is a store, which holds no graph; repeat its search"),
        (lambda text: json.dumps({**json.loads(text), "losses": [[1.0]]}), "is damaged (ValueError"),
        (lambda text: json.dumps({**json.loads(text), "graph": {}}), "is damaged (KeyError"),
        (lambda text: json.dumps({**json.loads(text), "optimizer": "lamb"}), "is damaged (ValueError"),
        (lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "graph"}), "has no graph"),
    ],
)
@pytest.mark.usefixtures("base")
def test_a_base_that_is_no_search_is_one_line(run: Run, folder: Path, change: Any, said: str) -> None:
    path = folder / "base.json"
    path.write_text(change(path.read_text()))
    done = run("plan", "--code", "2", "--base", "base.json")
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith("error: the base 'base.json' ")
    assert said in line
