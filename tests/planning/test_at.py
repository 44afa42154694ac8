"""Plans at another batch and length: factors against written-out powers, composition, text, words, and refusals."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import InputError, PlanError
from evenstep.graph import Graph, dag_mlp_graph
from evenstep.planning import Plan, plan_graph
from evenstep.planning.html import plan_html
from evenstep.planning.text import format_plan
from evenstep.rules import Factor, Optimizer
from evenstep.rules.batch import BATCH_RULES, BatchPower
from evenstep.rules.length import LENGTH_RULES, Length
from evenstep.rules.training import Training, moved

GRAPH = dag_mlp_graph("2_12")


def planned(optimizer: Optimizer = "adam", *, batch_size: int | None = 64, steps: int | None = 2000) -> Plan:
    return plan_graph(GRAPH, base=0.01, optimizer=optimizer, batch_size=batch_size, steps=steps)


def over(plan: Plan, other: Plan) -> set[float]:
    """Return by what the rates of all parameters differ."""
    return {float(f"{a.lr_scale / b.lr_scale:.9g}") for a, b in zip(plan, other, strict=True)}


def own(names: tuple[str, ...], plan: Plan) -> list[tuple[str, str]]:
    return [(factor.name, factor.why) for factor in plan.factors if factor.name in names]


# k is the ratio of the batches, n that of the lengths; every rule as its source writes it.
BATCHES: dict[tuple[str, Optimizer], Any] = {
    ("fourth-root", "adam"): lambda k: k**0.25,
    ("fourth-root", "momentum"): lambda k: min(k, 1.0) ** 0.25,
    ("root", "adam"): math.sqrt,
    ("root", "sgd"): math.sqrt,
    ("root", "muon"): math.sqrt,
    ("root-linear", "adam"): math.sqrt,
    ("root-linear", "lion"): math.sqrt,
    ("root-linear", "momentum"): lambda k: k,
    ("linear", "adam"): lambda k: k,
    ("linear", "sgd"): lambda k: k,
    ("none", "adam"): lambda k: 1.0,
    ("sde", "sgd"): lambda k: k,
}


@pytest.mark.parametrize(("rule", "optimizer"), BATCHES)
@pytest.mark.parametrize("batch_size", [16, 100, 256])
def test_another_batch_multiplies_all_rates(rule: str, optimizer: Optimizer, batch_size: int) -> None:
    plan = planned(optimizer)
    at = plan.at(batch_size=batch_size, batch_rule=rule)
    assert over(at, plan) == {float(f"{BATCHES[rule, optimizer](batch_size / 64):.9g}")}
    expected = [] if over(at, plan) == {1.0} else [("batch", f"from batches of 64 to {batch_size}")]
    assert own(("batch", "length"), at) == expected
    assert (at.batch_size, at.steps, at.base) == (batch_size, 2000, plan.base)
    assert at.searched == plan.searched == plan.training == Training(64, 2000)
    assert [p.std for p in at] == [p.std for p in plan]


def lower(steps: int, to: int) -> float:
    """Return the factor of Adam's rates: one plus 80 steps over all, and beyond 1,500 steps the power of Bjorck."""
    return (1 + 80 / to) / (1 + 80 / steps) * float((max(to, 1500) / max(steps, 1500)) ** -0.32)


def test_another_length_multiplies_all_rates() -> None:
    plan = planned()
    longer = plan.at(steps=32_000)
    assert over(longer, plan) == {float(f"{lower(2000, 32_000):.9g}")}
    assert own(("batch", "length"), longer) == [("length", "from 2000 steps to 32000")]
    assert (longer.batch_size, longer.steps) == (64, 32_000)
    assert over(plan.at(steps=32_000, length_rule=Length(0.0, fall=0.5, flat_to=1)), plan) == {0.25}
    assert over(plan.at(steps=32_000, length_rule="none"), plan) == {1.0}
    assert over(plan.at(steps=32_000, length_rule="power"), plan) == {float(f"{16**-0.32:.9g}")}
    assert over(plan.at(steps=20), plan) == {float(f"{lower(2000, 20):.9g}")}
    assert over(planned("momentum").at(steps=32_000), planned("momentum")) == {1.0}


def test_both_axes_at_once_are_one_after_the_other() -> None:
    plan = planned()
    both = plan.at(batch_size=256, steps=32_000)
    assert both == plan.at(steps=32_000).at(batch_size=256)
    assert over(both, plan) == {float(f"{4**0.25 * lower(2000, 32_000):.9g}")}
    assert own(("batch", "length"), both) == [
        ("length", "from 2000 steps to 32000"),
        ("batch", "from batches of 64 to 256"),
    ]
    assert plan.at(batch_size=256).at(steps=32_000) == both


@given(
    st.sampled_from(sorted(BATCH_RULES.keys() - {"sde"})),
    st.sampled_from(sorted(LENGTH_RULES)),
    st.lists(st.tuples(st.integers(1, 4096), st.integers(1, 10**6)), min_size=2, max_size=4),
)
def test_the_last_of_several_moves_by_one_rule_counts(
    batch_rule: str, length_rule: str, places: list[tuple[int, int]]
) -> None:
    plan = moved_again = planned()
    for batch_size, steps in places:
        moved_again = moved_again.at(batch_size=batch_size, steps=steps, batch_rule=batch_rule, length_rule=length_rule)
    assert moved_again == plan.at(batch_size=batch_size, steps=steps, batch_rule=batch_rule, length_rule=length_rule)
    assert moved_again.at(batch_size=64, steps=2000, batch_rule=batch_rule, length_rule=length_rule) == plan


def test_the_sde_rule_composes_as_well() -> None:
    plan = planned()
    assert plan.at(batch_size=128, batch_rule="sde").at(batch_size=32, batch_rule="sde") == plan.at(
        batch_size=32, batch_rule="sde"
    )
    assert plan.at(batch_size=128, batch_rule="sde").at(batch_size=64, batch_rule="sde") == plan


def test_moves_by_different_rules_go_on_from_where_the_plan_is() -> None:
    plan = planned()
    at = plan.at(batch_size=256, batch_rule="linear").at(batch_size=1024, batch_rule="root")
    assert over(at, plan) == {8.0}
    assert own(("batch",), at) == [
        ("batch", "from batches of 64 to 256"),
        ("batch", "from batches of 256 to 1024"),
    ]
    mixed = plan.at(batch_size=128, batch_rule="sde").at(batch_size=512, batch_rule="root")
    assert over(mixed, plan) == {float(f"{math.sqrt(8):.9g}")}
    assert [factor.value for factor in mixed.beta_factors] == [2.0]  # of the move by sde alone


def test_a_move_keeps_what_was_changed_by_hand_in_between() -> None:
    plan = planned()
    first = plan.at(batch_size=256).scale("*", 3.0).scale("*.bias", 5.0).freeze("stem.bias")
    again = first.at(batch_size=1024)  # 16 times the batch: twice the rate
    assert again["stem.weight"].lr_scale == pytest.approx(6 * plan["stem.weight"].lr_scale)
    assert again["readout.bias"].lr_scale == pytest.approx(30 * plan["readout.bias"].lr_scale)
    assert again["stem.bias"].lr_scale == 0.0


def test_where_the_plan_is_already_nothing_happens() -> None:
    plan = planned()
    assert plan.at(batch_size=64) == plan.at(steps=2000) == plan.at(batch_size=64, steps=2000) == plan
    assert plan.at(batch_size=64, batch_rule="sde") == plan


def test_factors_alone_are_moved_too() -> None:
    plan = plan_graph(GRAPH, optimizer="adam", batch_size=32)
    assert over(plan.at(batch_size=512), plan) == {2.0}


def test_a_value_of_one_s_own_is_a_rule() -> None:
    plan = planned()
    assert over(plan.at(batch_size=4096, batch_rule=BatchPower(1 / 3, 0.0, name="own")), plan) == {4.0}


def test_sde_moves_betas_and_epsilon() -> None:
    at = planned().at(batch_size=256, batch_rule="sde")
    why = "from batches of 64 to 256"
    assert over(at, planned()) == {2.0}
    assert [(f.name, f.value, f.why) for f in at.beta_factors] == [("batch", 4.0, why)]
    assert [(f.name, f.value, f.why) for f in at.eps_factors] == [("batch", 0.5, why)]
    assert {p.eps_scale for p in at} == {0.5}
    assert at.scales("eps")
    assert at.scales("betas")
    assert not planned().at(batch_size=256).scales("betas")
    scaled = plan_graph(GRAPH, base=0.01, optimizer="adam", rule="completep", batch_size=64)
    both = scaled.at(batch_size=256, batch_rule="sde")
    for before, after in zip(scaled, both, strict=True):
        assert after.eps_scale == pytest.approx(before.eps_scale / 2)
        assert after.decay_scale == before.decay_scale


def test_what_sde_cannot_do_is_refused() -> None:
    plan = planned()
    assert plan.at(batch_size=639, batch_rule="sde").batch_size == 639  # 1 - beta1 is 0.998
    with pytest.raises(InputError, match=r"1 - beta by 10, so for a beta of 0\.9 .*not below 1; .* batches below 640"):
        plan.at(batch_size=640, batch_rule="sde")
    slow = replace(plan, optimizer_options={"class": "AdamW", "betas": (0.99, 0.999)})
    assert slow.at(batch_size=640, batch_rule="sde").batch_size == 640
    for optimizer in ("momentum", "muon", "lion"):
        with pytest.raises(InputError, match="'sde' is derived for Adam"):
            planned(optimizer).at(batch_size=128, batch_rule="sde")


# What is refused


@dataclass(frozen=True)
class Answering:
    """A rule that answers with whatever it is given."""

    answer: Any
    name: str = "answering"

    def factor(self, *_: Any, **__: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("known", "asked", "words"),
    [
        ({"batch_size": None}, {"batch_size": 256}, r"batch size .* batch_size=256; .* evenstep\.plan\(.*batch_size="),
        ({"steps": None}, {"steps": 300}, r"number of steps .* steps=300; .* evenstep\.plan\(.*steps="),
        ({"steps": None}, {"batch_size": 8, "steps": 300}, "does not know the number of steps"),
        ({}, {}, "neither batch_size nor steps is given"),
        ({}, {"batch_size": 0}, "batch_size is 0; give a whole number from 1 up"),
        ({}, {"batch_size": 2.5}, r"batch_size is 2\.5"),
        ({}, {"batch_size": True}, "batch_size is True"),
        ({}, {"steps": -3}, "steps is -3"),
        ({}, {"steps": 10**400}, "steps is 1000"),
        ({}, {"batch_size": "many"}, "batch_size is 'many'"),
        ({}, {"batch_size": 8, "batch_rule": "cubic"}, "batch rule is 'cubic'; choose one of fourth-root, .*sde"),
        ({}, {"batch_size": 8, "batch_rule": BatchPower}, "batch rule is <class .*or give a value"),
        ({}, {"steps": 8, "length_rule": Length}, "length rule is <class .*or give a value"),
        (
            {},
            {"batch_size": 8, "batch_rule": Answering(3.0)},
            r"from 2000 steps on batches of 64 to .* by 3\.0; return a F",
        ),
        ({}, {"batch_size": 8, "batch_rule": Answering(Factor("batch", math.nan, ""))}, "return a Factor above 0"),
        ({}, {"steps": 8, "length_rule": "cubic"}, "length rule is 'cubic'; choose one of travel, power, none"),
        ({}, {"batch_size": 2**900, "batch_rule": BatchPower(2.0, name="steep")}, "overflows; move them less"),
        (
            {},
            {"batch_size": 1, "batch_rule": BatchPower(200.0, name="steep")},
            r"by Factor\(name='batch', value=0\.0.*; return a Factor above 0",
        ),
    ],
)
def test_bad_input_is_one_line(known: dict[str, None], asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        planned(**known).at(**asked)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_rates_out_of_all_numbers_are_refused() -> None:
    with pytest.raises(InputError, match=r"makes the rate of 'stem\.weight' zero or infinite; move it less far"):
        planned().scale("*", 1e300).at(batch_size=64 * 10**10, batch_rule="linear")


class Search:
    """What a plan needs of a search, and the training it was searched with."""

    best, batch_size, steps, optimizer = 0.1, 32, 300, "adam"
    graph: Graph = dag_mlp_graph("2")


def test_a_search_brings_its_batch_and_its_steps() -> None:
    plan = plan_graph(GRAPH, base=Search())
    assert plan.searched == plan.training == Training(32, 300)
    assert plan_graph(GRAPH, base=Search(), batch_size=32) == plan
    with pytest.raises(
        InputError, match=r"batch_size is 64, but the base was searched with 32; .*plan\.at\(batch_size"
    ):
        plan_graph(GRAPH, base=Search(), batch_size=64)
    with pytest.raises(InputError, match="steps is 1000, but the base was searched with 300"):
        plan_graph(GRAPH, base=Search(), steps=1000)
    with pytest.raises(InputError, match="batch_size is 0"):
        plan_graph(GRAPH, base=0.1, optimizer="adam", batch_size=0)
    assert planned(batch_size=None, steps=None).training == Training()


# Text and words


@pytest.mark.parametrize("rule", ["root", "sde"])
def test_a_moved_plan_survives_its_text(rule: str) -> None:
    plan = planned().at(batch_size=128, steps=8000, batch_rule=rule)
    values = json.loads(plan.to_json())
    assert (values["batch_size"], values["steps"]) == (128, 8000)
    assert values["searched"] == {"batch_size": 64, "steps": 2000}
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.at(batch_size=64, steps=2000, batch_rule=rule) == planned()


def test_a_file_without_the_fields_is_read() -> None:
    values = planned().to_dict()
    for name in ("batch_size", "steps", "searched"):
        del values[name]
    read = Plan.from_dict(values)
    assert read == planned(batch_size=None, steps=None)
    with pytest.raises(InputError, match="does not know the batch size"):
        read.at(batch_size=128)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", "64"),
        ("steps", 1.5),
        ("searched", {"batch_size": -1}),
        ("searched", {"epochs": 3}),
        ("searched", 5),
        ("beta_factors", [{"name": "batch", "value": -4.0, "why": ""}]),
        ("eps_factors", [{"name": "batch", "value": 0.25, "why": ""}]),  # not what the parameters have
        ("eps_factors", "word"),
    ],
)
def test_damaged_fields_are_refused(name: str, value: object) -> None:
    values = planned().at(batch_size=128, batch_rule="sde").to_dict() | {name: value}
    with pytest.raises(PlanError, match="damaged"):
        Plan.from_dict(values)


def unwrapped(plan: Plan) -> list[str]:
    return format_plan(plan, width=None).splitlines()


def test_plans_say_which_training_they_are_for() -> None:
    plan = planned()
    lines = unwrapped(plan)
    assert lines[1] == "For 2000 steps on batches of 64, the same as its base's search"
    at = plan.at(batch_size=256, batch_rule="sde")
    lines = unwrapped(at)
    assert lines[1] == "For 2000 steps on batches of 256, base searched with 2000 steps on batches of 64"
    (shared,) = (line for line in lines if line.startswith("All rates: "))
    why = "(from batches of 64 to 256)"
    assert f"batch 2 {why}" in shared
    assert shared.endswith(f"; all eps: batch 0.5 {why}; all 1 - beta: batch 4 {why}")
    assert sum(why in line for line in lines) == 1  # once for all parameters
    assert lines[1] in plan_html(at)
    assert unwrapped(planned(batch_size=None, steps=None))[1].startswith("All rates: ")
    assert unwrapped(planned(steps=None))[1] == "For batches of 64, the same as its base's search"


def test_the_rules_of_a_move_are_one_function_s() -> None:
    plan = planned("momentum").at(batch_size=128, steps=8000, batch_rule="linear")
    factors = moved("momentum", Training(64, 2000), Training(128, 8000), batch="linear")
    assert plan.factors[-len(factors) :] == factors
    assert moved("adam", Training(64), Training(steps=8)) == ()


OWNERS = (BatchPower(), Length())


@pytest.mark.parametrize(
    ("owner", "name"),
    [(owner, field.name) for owner in OWNERS for field in fields(owner) if field.name != "name"],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_changing_a_field_of_a_rule_changes_a_plan(owner: Any, name: str) -> None:
    value = getattr(owner, name)
    other = replace(owner, **{name: not value if isinstance(value, bool) else value * 2})
    axis = "batch_rule" if isinstance(owner, BatchPower) else "length_rule"

    def rates(rule: Any) -> list[float]:
        optimizers: tuple[Optimizer, ...] = ("sgd", "adam")
        places = [(8, 1), (8, 20), (8, 2000), (8, 10_000), (512, 300)]
        return [
            planned(optimizer, steps=300).at(batch_size=batch, steps=steps, **{axis: rule}).lr_scale
            for optimizer in optimizers
            for batch, steps in places
        ]

    assert rates(owner) != rates(other)
    with pytest.raises(InputError, match=rf"{name} of {owner.name} is -1; give (a number from 0 up|True)"):
        replace(owner, **{name: -1})
