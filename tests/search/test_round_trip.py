"""Searches and checks write themselves as plain values and read themselves back; damaged values are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evenstep as es
from evenstep.errors import InputError
from evenstep.graph import dag_mlp_graph
from evenstep.search import Check, LRSearch, check
from evenstep.search.checking import CheckedNetwork, Trend
from evenstep.search.first_step import Changes
from evenstep.search.result import chosen

torch.set_num_threads(1)

GRAPH = dag_mlp_graph("2_12", width=8, inputs=4, classes=2)
GRID = (0.1, 0.2, 0.4, 0.8)
LOSSES = ((1.0, 1.1, 1.2), (0.5, 0.4, 0.6), (0.8, 0.7, 0.6), (math.inf, 2.0, math.inf))


def in_json(values: dict[str, Any]) -> Any:
    """Return plain values as JSON gives them back; JSON itself has no NaN and no infinity."""
    return json.loads(json.dumps(values, allow_nan=False))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 4, generator=generator)
    return inputs, (inputs @ torch.randn(4, 2, generator=generator)).argmax(1)


def network(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


@cache
def a_check(*, lr: float = 0.1, named: bool = False, steps: int = 3) -> Check:
    def made(width: int) -> tuple[Callable[[], nn.Module], es.Plan]:
        return lambda: network(width), es.plan(network(width), data()[0][:2], base=lr, optimizer="sgd")

    networks = {(f"width {width}" if named else width): made(width) for width in (8, 16)}
    return check(networks, data(), seeds=2, batch_size=16, steps=steps)


# Round trips


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_search_comes_back_equal(optimizer: Any) -> None:
    search = es.search_lr(network, data(), optimizer=optimizer, epochs=1, seeds=3, batch_size=16, start=0.05)
    again = LRSearch.from_dict(in_json(search.to_dict()))
    assert again == search
    assert LRSearch.from_dict(search.to_dict()) == search
    target = dag_mlp_graph("2_12_112", width=16, inputs=4, classes=2)
    assert es.plan(target, base=again) == es.plan(target, base=search)


@pytest.mark.parametrize(
    "search",
    [
        chosen(GRID, LOSSES, GRAPH),
        chosen(GRID, tuple(seeds[:1] for seeds in LOSSES), GRAPH),  # no interval of one seed
        chosen(GRID[:2], LOSSES[:2], GRAPH),  # best at the edge
        chosen((0.3,), ((0.5, 0.25),), GRAPH),
        replace(chosen(GRID, LOSSES, GRAPH), estimate=None, interval=None, rule="weighted", optimizer="adam"),
    ],
)
def test_every_kind_of_search_comes_back_equal(search: LRSearch) -> None:
    assert LRSearch.from_dict(in_json(search.to_dict())) == search


def test_a_search_where_all_diverged_comes_back_without_a_best() -> None:
    search = es.search_lr(network, data(), grid=[1e30, 1e32], epochs=1, seeds=2, batch_size=16, on_failure="return")
    assert (search.status, math.isnan(search.best)) == ("all_diverged", True)
    values = in_json(search.to_dict())
    assert (values["best"], values["bracket"], values["losses"]) == (None, [None, 1e30], [[None, None]] * 2)
    again = LRSearch.from_dict(values)
    assert again.to_dict() == search.to_dict()
    assert again.losses == search.losses == ((math.inf, math.inf),) * 2
    assert math.isnan(again.best)
    assert math.isnan(again.bracket[0])


def test_older_values_leave_out_what_follows_from_the_rest() -> None:
    search = chosen(GRID, LOSSES, GRAPH)
    values = {name: search.to_dict()[name] for name in ("best", "grid", "losses", "graph")}
    again = LRSearch.from_dict(values)
    assert (again.bracket, again.status) == (search.bracket, search.status)
    assert (again.estimate, again.interval, again.rule, again.optimizer) == (None, None, None, None)


@pytest.mark.parametrize("named", [False, True])
def test_a_check_comes_back_equal(named: bool) -> None:
    made = a_check(named=named)
    again = Check.from_dict(in_json(made.to_dict()))
    assert again == made
    assert Check.from_dict(made.to_dict()) == made
    assert (again.verdict, str(again), again.worst) == (made.verdict, str(made), made.worst)


def test_a_check_that_diverged_comes_back_equal() -> None:
    made = a_check(lr=1e30)
    assert (made.verdict, made.diverged) == ("failed", (8, 16))
    values = in_json(made.to_dict())
    assert None in values["networks"][0]["signals"]["0"]["changes"]
    again = Check.from_dict(values)
    assert again == made
    assert str(again) == str(made)


def test_the_parts_of_a_check_come_back_equal() -> None:
    made = a_check()
    for part in (made.networks[0], made.trends[0], next(iter(made.networks[0].signals.values()))):
        assert type(part).from_dict(in_json(part.to_dict())) == part
    lost = Changes(1.0, math.inf, (0.5, math.inf))
    assert lost.to_dict() == {"start": 1.0, "predicted": None, "changes": [0.5, None]}
    assert Changes.from_dict(lost.to_dict()) == lost
    uneven = Trend("layer", True, (0.1, math.inf), (0.2, math.inf), math.inf)
    assert Trend.from_dict(in_json(uneven.to_dict())) == uneven


# Damage

SEARCH_DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "grid is no list": ({"grid": "0.1"}, "grid is '0.1', not a list"),
    "grid is a number": ({"grid": 0.1}, "grid is 0.1, not a list"),
    "grid is empty": ({"grid": [], "losses": []}, "grid is []"),
    "grid holds text": ({"grid": ["0.1", 0.2, 0.4, 0.8]}, "grid is '0.1', not a number"),
    "grid holds a truth": ({"grid": [True, 2, 4, 8]}, "grid is True, not a number"),
    "grid is unsorted": ({"grid": [0.2, 0.1, 0.4, 0.8]}, "in ascending order"),
    "grid holds a rate twice": ({"grid": [0.1, 0.2, 0.2, 0.8]}, "in ascending order"),
    "negative rate": ({"grid": [-0.1, 0.2, 0.4, 0.8]}, "grid is -0.1, not a finite number above 0"),
    "infinite rate": ({"grid": [0.1, 0.2, 0.4, math.inf]}, "grid is inf, not a finite number above 0"),
    "huge rate": ({"grid": [0.1, 0.2, 0.4, 10**400]}, "OverflowError"),
    "fewer losses": ({"losses": [[1.0]]}, "losses are for 1 learning rates, but the grid has 4"),
    "uneven losses": ({"losses": [[1.0, 2.0], [1.0], [1.0], [1.0]]}, "losses are for 1 and 2 seeds"),
    "no seeds": ({"losses": [[], [], [], []]}, "losses are for 0 seeds"),
    "loss is text": ({"losses": [["1.0"], [1.0], [1.0], [1.0]]}, "a loss is '1.0', not a number"),
    "losses are flat": ({"losses": [1.0, 0.5, 0.7, None]}, "losses is 1.0, not a list"),
    "losses are none": ({"losses": None}, "losses is None, not a list"),
    "best is text": ({"best": "0.2"}, "best is '0.2', not a number"),
    "best is negative": ({"best": -0.2}, "best is -0.2, not a finite number above 0"),
    "best is elsewhere": ({"best": 0.3}, "best is 0.3, with the status 'ok'"),
    "best is lost": ({"best": None}, "best is None, with the status 'ok'"),
    "best despite all diverged": ({"status": "all_diverged"}, "with the status 'all_diverged'"),
    "bracket of one": ({"bracket": [0.1]}, "bracket is [0.1], not two learning rates"),
    "bracket is a number": ({"bracket": 0.1}, "bracket is 0.1, not a list"),
    "bracket is negative": ({"bracket": [-0.1, 0.4]}, "bracket is -0.1"),
    "interval of three": ({"interval": [0.1, 0.2, 0.3]}, "interval is [0.1, 0.2, 0.3], not two"),
    "interval without an end": ({"interval": [0.1, None]}, "interval is None, not a number"),
    "estimate is negative": ({"estimate": -1}, "estimate is -1, not a finite number above 0"),
    "unknown status": (
        {"status": "fine"},
        "status is 'fine', not one of ok, best_at_edge, learnt_nothing, all_diverged",
    ),
    "status is a list": ({"status": ["ok"]}, "status is ['ok'], not one of"),
    "unknown optimizer": ({"optimizer": "lamb"}, "optimizer is 'lamb', not one of sgd, momentum, adam"),
    "optimizer is a list": ({"optimizer": ["sgd"]}, "optimizer is ['sgd'], not one of"),
    "rule is a number": ({"rule": 3}, "rule is 3, not a string"),
    "empty graph": ({"graph": {}}, "KeyError: 'vertices'"),
    "graph is text": ({"graph": "2_12"}, "TypeError"),
    "graph with a lost vertex": ({"graph": {**GRAPH.to_dict(), "outputs": ["gone"]}}, "GraphError: output 'gone'"),
}


@pytest.mark.parametrize("name", SEARCH_DAMAGE)
def test_a_damaged_search_is_refused(name: str) -> None:
    changes, cause = SEARCH_DAMAGE[name]
    values = {**chosen(GRID, LOSSES, GRAPH).to_dict(), **changes}
    with pytest.raises(InputError) as caught:
        LRSearch.from_dict(values)
    message = str(caught.value)
    assert message.startswith("the search is damaged (")
    assert cause in message
    assert message.endswith("or search.to_dict()")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["best", "grid", "losses", "graph"])
def test_a_search_without_a_field_that_it_needs_is_refused(name: str) -> None:
    values = chosen(GRID, LOSSES, GRAPH).to_dict()
    del values[name]
    with pytest.raises(InputError, match=f"the search is damaged .*{name}"):
        LRSearch.from_dict(values)


CHECK_DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "compare": (lambda v: v.update(compare="both"), "compare is 'both', not one of layers, last"),
    "tolerance": (lambda v: v.update(tolerance=-0.25), "tolerance is -0.25"),
    "steps": (lambda v: v.update(steps=2.5), "steps is 2.5, not a whole number"),
    "other steps": (lambda v: v.update(steps=2), "has 3 changes in 2 steps"),
    "optimizer": (lambda v: v.update(optimizer="lamb"), "optimizer is 'lamb', not one of"),
    "no trends": (lambda v: v.update(trends=[]), "there are no trends"),
    "no networks": (lambda v: v.update(networks=[]), "labels are []"),
    "one network": (lambda v: v["networks"].pop(), "labels are [8]"),
    "networks are text": (lambda v: v.update(networks="8, 16"), "networks is '8, 16', not a list"),
    "network is a number": (lambda v: v["networks"].append(32), "a network is 32, not an object"),
    "label": (lambda v: v["networks"][0].update(label=-8), "a label is -8"),
    "label of another kind": (lambda v: v["networks"][0].update(label="small"), "labels are ['small', 16]"),
    "label twice": (lambda v: v["networks"][0].update(label=16), "labels are [16, 16]"),
    "lr": (lambda v: v["networks"][0].update(lr=-0.1), "lr is -0.1, not a finite number above 0"),
    "signals": (lambda v: v["networks"][0].update(signals=[]), "signals is [], not an object"),
    "start": (lambda v: v["networks"][0]["signals"]["0"].update(start="1"), "start is '1', not a number"),
    "change": (lambda v: v["networks"][0]["signals"]["0"].update(predicted=-1), "predicted is -1, not a number from 0"),
    "trend's values": (lambda v: v["trends"][0]["values"].pop(), "has 1 and 2 values of 2 networks"),
    "trend's later values": (lambda v: v["trends"][0]["later"].pop(), "has 2 and 1 values of 2 networks"),
    "negative value": (lambda v: v["trends"][0].update(values=[-1, 1]), "is -1, not a number from 0 up"),
    "slope": (lambda v: v["trends"][0].update(slope="+1"), "is '+1', not a number"),
    "no slope": (lambda v: v["trends"][0].pop("slope"), "KeyError: 'slope'"),
    "relative": (lambda v: v["trends"][0].update(relative=1), "is 1, not true or false"),
    "signal": (lambda v: v["trends"][0].update(signal=0), "signal is 0, not a string"),
    "no shown": (lambda v: v.pop("shown"), "KeyError: 'shown'"),
}


@pytest.mark.parametrize("name", CHECK_DAMAGE)
def test_a_damaged_check_is_refused(name: str) -> None:
    damage, cause = CHECK_DAMAGE[name]
    values = in_json(a_check().to_dict())
    damage(values)
    with pytest.raises(InputError) as caught:
        Check.from_dict(values)
    message = str(caught.value)
    assert message.startswith("the check is damaged (")
    assert message.count("is damaged") == 1
    assert cause in message
    assert message.endswith("or check.to_dict()")


@pytest.mark.parametrize("values", [None, 3, "text", [], [1, 2], {1: 2}])
@pytest.mark.parametrize("kind", [LRSearch, Check, CheckedNetwork, Trend, Changes])
def test_what_is_no_object_is_refused(kind: Any, values: Any) -> None:
    with pytest.raises(InputError, match=r"damaged .* make"):
        kind.from_dict(values)


@pytest.mark.parametrize("name", ["start", "predicted", "changes"])
def test_changes_read_alone_say_what_is_missing(name: str) -> None:
    values = Changes(1.0, 0.1, (0.1,)).to_dict()
    del values[name]
    with pytest.raises(InputError, match=f"the signal is damaged .*'{name}'"):
        Changes.from_dict(values)
