"""Check the leaderboard on small tables made by rules: what a rule says costs nothing where the table follows it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from evenstep.errors import InputError
from evenstep.init import Network
from evenstep.planning import plan_graph
from evenstep.rules import RULES, Factor, Mup, Optimizer, RateFactors, Weighted
from evenstep_research.study.external import shapes as shapes_module
from evenstep_research.study.external.leaderboard import NONE, SOFT, board, boards
from evenstep_research.study.external.results import results_of
from evenstep_research.study.external.shapes import Shape, graph_of, hidden_rate, llama_on_meta
from evenstep_research.study.external.tables import _SIZES, Table
from evenstep_research.study.external.targets import OURS, targets
from research.tests.study.external.made_up import SMALL, bowl, table


@dataclass(frozen=True)
class ByWidth:
    """A rule that says its factor outright."""

    power: float
    name: str = "by width"
    layerwise: bool = False

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        widths = [max(weight.fan_out for edge in one.live.edges if (weight := edge.weight)) for one in (network, base)]
        return RateFactors((Factor("width", (widths[0] / widths[1]) ** self.power, "as said"),))


@dataclass(frozen=True)
class Refusing:
    """A rule that knows no language models."""

    name: str = "refusing"
    layerwise: bool = False

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        raise InputError("no language models")


def test_a_table_made_by_a_rule_is_free_for_it() -> None:
    def best(shape: Any, batch: float, steps: float) -> float:
        return -math.log(shape.width) + 0.5 * math.log(batch) - 0.32 * math.log(steps) + math.log(1 + 80 / steps)

    made = table(best)
    found = board(made, {"mup": Mup(), "by width": ByWidth(0.5), "refusing": Refusing()})
    right = found.entry("mup", "root", "travel")
    assert right is not None
    assert right.scores.by_bases.worst_regret == pytest.approx(0, abs=1e-9)
    assert right.scores.by_offset.worst_octaves == pytest.approx(0, abs=1e-9)
    assert max(right.octaves.values()) == pytest.approx(0, abs=1e-9)
    others = [entry for entry in found.entries if entry is not right]
    assert min(entry.scores.by_bases.mean_regret or 0 for entry in others) > 0.01
    assert found.left_out == {"refusing": "no language models"}
    assert found.factors["mup"] == pytest.approx(dict(zip(SMALL, (1, 1 / 2, 1 / 4), strict=True)))
    assert found.entry("refusing", NONE, NONE) is None


def test_every_rule_of_the_registry_is_scored_with_every_batch_rule_that_differs() -> None:
    (found,) = boards([table(lambda shape, batch, steps: 0.0)])
    assert set(found.factors) | set(found.left_out) == set(RULES)
    assert [entry.batch for entry in found.entries if (entry.rule, entry.length) == (OURS, NONE)] == [
        NONE,
        "fourth-root",
        "root",
        "linear",
        SOFT.name,
    ]
    assert {entry.length for entry in found.entries} == {NONE, "travel"}
    of_momentum = board(table(lambda shape, batch, steps: 0.0, optimizer="momentum"), {OURS: RULES[OURS]})
    assert {entry.batch for entry in of_momentum.entries} == {NONE, "root-linear", "fourth-root", "root", SOFT.name}


def test_what_a_table_does_not_say_is_not_scored() -> None:
    made = table(lambda shape, batch, steps: 0.0)
    silent = replace(made, cells=tuple(replace(cell, batch=None, steps=None) for cell in made.cells))
    found = board(silent, {"constant": RULES["constant"]})
    assert [(entry.rule, entry.batch, entry.length) for entry in found.entries] == [("constant", NONE, NONE)]
    assert list(found.references) == ["fitted law"]


def test_factors_are_those_of_plans() -> None:
    small, large = SMALL[0], Shape(48, 3, 64, 2)
    plans = {
        shape: plan_graph(graph_of(shape), optimizer="adam", init="conserve", base_graph=graph_of(small))
        for shape in (small, large)
    }
    means = {}
    for shape, plan in plans.items():
        logs = [math.log(p.lr_scale) for p in plan.parameters if "_proj" in p.name]
        assert len(logs) == 7 * shape.layers
        means[shape] = sum(logs) / len(logs)
    made = Table("two", "adam", tuple(replace(table(lambda *_: 0.0).cells[0], shape=shape) for shape in (small, large)))
    found = board(made, {OURS: Weighted()})
    assert found.factors[OURS][large] == pytest.approx(math.exp(means[large] - means[small]))


def test_rates_of_hidden_matrices_do_not_go_with_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [hidden_rate(shape, SMALL[0], RULES[OURS], "adam") for shape in SMALL]
    monkeypatch.setattr(shapes_module, "VOCABULARY", 1000)
    graph_of.cache_clear()
    try:
        assert [hidden_rate(shape, SMALL[0], RULES[OURS], "adam") for shape in SMALL] == pytest.approx(before)
    finally:
        graph_of.cache_clear()


def test_shapes_have_no_numbers_and_the_sizes_they_are_named_by() -> None:
    for name, shape in _SIZES.items():
        own = [p for key, p in llama_on_meta(shape).named_parameters() if "embed" not in key and "lm_head" not in key]
        assert all(p.device == torch.device("meta") for p in own)
        named = float(name[:-1]) * {"m": 1e6, "b": 1e9}[name[-1]]
        assert sum(p.numel() for p in own) == pytest.approx(named, rel=0.05)


def test_a_shape_that_cannot_be_is_named() -> None:
    with pytest.raises(InputError, match="the shape '1 x 16, feed-forward 64' has 3 heads, whose width is not even"):
        graph_of(Shape(16, 1, 64, 3))


def test_targets_say_what_is_so_and_what_is_not() -> None:
    followed = table(lambda shape, batch, steps: -math.log(shape.width) + 0.25 * math.log(batch))
    rules = {name: RULES[name] for name in ("weighted", "constant")}
    limit, rivals, base_limit, base_rivals = targets([board(followed, rules)])
    assert (limit.reached, rivals.reached, base_limit.reached, base_rivals.reached) == (True,) * 4
    assert rivals.note == "the nearest is `constant`, batch rule `fourth-root`"
    no_batch = targets([board(table(lambda shape, batch, steps: 0.0), rules)])
    assert no_batch[1].note == "the nearest is `constant`, batch rule `none`"
    missed = targets([board(table(lambda shape, batch, steps: math.log(shape.width)), rules)])
    assert [target.reached for target in missed] == [False] * 4
    assert missed[0].note.startswith("in hindsight, batch `none`, length `none`: 0.")


def test_a_rule_as_good_as_ours_is_not_below_it() -> None:
    made = table(lambda shape, batch, steps: 0.0)
    same = board(made, {"weighted": Weighted(), "twin": Weighted()})
    assert [target.reached for target in targets([same]) if target.below] == [False, False]


def test_octaves_are_asked_where_no_batch_is_known() -> None:
    cells = tuple(
        replace(cell, batch=None, curve=bowl(-math.log(cell.shape.width))) for cell in table(lambda *_: 0.0).cells
    )
    (adam,) = targets([board(Table("sweep", "adam", cells, "measured"), {OURS: RULES[OURS]})])
    assert adam.reached
    assert adam.note == "by width, 16: 0.00; 32: 0.00; 64: 0.00"
    unknown = board(Table("sweep", "shampoo", cells, "measured"), {OURS: RULES[OURS]})
    (not_yet,) = targets([unknown])
    assert not_yet.reached is None
    assert "not yet for shampoo" in not_yet.note
    values = results_of([unknown], [not_yet])
    assert values["targets"][0]["reached"] is None
    assert values["tables"][0]["rows"] == []
    assert values["tables"][0]["shapes"][0]["factors"] == {}
