"""Check that plans can be changed by hand, that they say so, and that they show themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from evenstep.errors import InputError, PlanError
from evenstep.graph import dag_mlp_graph
from evenstep.planning import Plan, plan_graph
from evenstep.planning.text import format_plan
from tests import reference


def plan_of() -> Plan:
    return plan_graph(dag_mlp_graph("2_12", norm="layer"), base=0.1, optimizer="adam")


def rates(plan: Plan) -> dict[str, float]:
    return {p.name: p.lr_scale for p in plan.parameters}


# Scaled


def test_the_rates_of_matching_parameters_are_multiplied_and_no_others() -> None:
    plan = plan_of()
    made = plan.scale("*.weight", 3.0)
    hit = {p.name for p in plan.parameters if p.name.endswith(".weight")}
    assert 0 < len(hit) < len(plan.parameters)
    assert rates(made) == pytest.approx({n: r * (3.0 if n in hit else 1.0) for n, r in rates(plan).items()})
    assert made.lr_scale == plan.lr_scale
    assert rates(plan) == rates(plan_of())  # the old plan is as it was
    for p in made.parameters:
        words = "scaled 3 (by hand: '*.weight')"
        assert (words in p.reason) == (p.name in hit)
        assert replace(p, factors=()) == replace(plan[p.name], factors=())


@pytest.mark.parametrize("pattern", ["*", "*.*"])
def test_what_all_parameters_share_is_the_whole_networks(pattern: str) -> None:
    plan = plan_of()
    made = plan.scale(pattern, 0.5)
    assert made.lr_scale == plan.lr_scale / 2
    assert rates(made) == pytest.approx({name: rate / 2 for name, rate in rates(plan).items()})
    assert made.factors[-1].name == "scaled"
    assert [made.own_factors(p) for p in made.parameters] == [plan.own_factors(p) for p in plan.parameters]
    assert {made.decay_scale(p) for p in made.parameters} == {plan.decay_scale(p) for p in plan.parameters}
    assert str(made).count("by hand") == 1  # said once, with what all share


def test_a_factor_and_its_inverse_leave_the_rates() -> None:
    plan = plan_of()
    assert rates(plan.scale("*", 4.0).scale("*weight", 2.0).scale("*weight", 0.5).scale("*", 0.25)) == rates(plan)


CHANGED: dict[str, Callable[[Plan], Plan]] = {
    "some": lambda plan: plan.scale("*.weight", 3.0),
    "all": lambda plan: plan.scale("*", 3),
    "both": lambda plan: plan.scale("*.weight", 1 / 3).scale("*", 7.0).scale("stem*", 1e-3),
    "frozen": lambda plan: plan.freeze("stem*"),
    "frozen and scaled": lambda plan: plan.freeze("stem*").scale("*", 2.0).scale("stem*", 2.0),
    "history": lambda plan: replace(plan, history=("base rate 0.1: a search of 9 rates", "corrected by 1.2")),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_plan_survives_its_text(name: str) -> None:
    plan = CHANGED[name](plan_of())
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text
    assert plan != plan_of()
    assert hash(plan) == hash(Plan.from_json(text))


def test_a_plan_of_before_loads() -> None:
    plan = plan_of()
    values = json.loads(plan.to_json())
    for name in ("optimizer_options", "history"):
        del values[name]
    for parameter in values["parameters"]:
        del parameter["frozen"]
    assert Plan.from_dict(values) == plan


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("history", [3]),
        ("history", 3),
        ("optimizer_options", []),
        ("optimizer_options", {"class": "Muon"}),
        ("optimizer_options", {"class": ["Adam"]}),
        ("optimizer_options", {"class": "SGD"}),  # the plan is for Adam
        ("optimizer_options", {"betas": {"0": 0.9}}),
    ],
)
def test_damage_to_what_is_new_is_named(name: str, value: Any) -> None:
    values = plan_of().to_dict() | {name: value}
    with pytest.raises(PlanError, match="damaged"):
        Plan.from_dict(values)


def test_a_frozen_parameter_has_to_be_kept() -> None:
    values = json.loads(plan_of().to_json())
    values["parameters"][0] |= {"frozen": True, "lr_scale": 0.0}
    with pytest.raises(PlanError, match=r"frozen of 'stem\.weight'"):
        Plan.from_dict(values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan.scale("*.wieght", 2.0), ("'*.wieght'", "matches none", "'stem.weight'")),
        (lambda plan: plan.freeze("steem.weight"), ("'steem.weight'", "similar names are 'stem.weight'")),
        (lambda plan: plan.scale("STEM*", 2.0), ("'STEM*'", "matches none")),
        (lambda plan: plan.scale("", 2.0), ("pattern is ''",)),
        (lambda plan: plan.scale(None, 2.0), ("pattern is None", "'*.bias'")),
        (lambda plan: plan.freeze(3), ("pattern is 3",)),
        (lambda plan: plan.freeze("*"), ("'*' would leave nothing to train",)),
        (lambda plan: plan.freeze("stem*").freeze("[!s]*"), ("nothing to train",)),
        *(
            (lambda plan, factor=factor: plan.scale("*", factor), ("factor is", "finite number above 0"))
            for factor in (0, -1.0, math.nan, math.inf, "2", None, True, 10**400)
        ),
        (lambda plan: plan.scale("*", 1e300).scale("*", 1e300), ("factor is 1e+300", "'stem.weight'")),
        (lambda plan: plan.scale("*", 1e-300).scale("*", 1e-300), ("factor is 1e-300", "closer to 1")),
    ],
)
def test_what_cannot_be_changed_is_said_in_one_line(change: Callable[[Plan], Plan], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        change(plan_of())
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert "\n" not in str(caught.value)


# Frozen


def test_frozen_parameters_have_no_rate_and_stay() -> None:
    plan = plan_of()
    made = plan.freeze("stem*").freeze("stem.weight")  # once is enough
    for p in made.parameters:
        if p.name.startswith("stem"):
            assert (p.frozen, p.kept, p.lr_scale) == (True, True, 0.0)
            assert p.notes == ("frozen by hand: 'stem*'",)
            assert "lr: not trained" in p.reason
        else:
            assert p == plan[p.name]
    lines = [line for line in str(made).splitlines() if line.startswith("stem")]
    assert lines
    assert all(line.split()[2:4] == ["kept", "frozen"] for line in lines)


def test_no_warning_names_what_was_frozen_on_purpose() -> None:
    made = plan_of().freeze("stem.weight")  # most of all numbers
    assert sum(math.prod(p.shape) for p in made.parameters if p.kept) > 0.5 * sum(
        math.prod(p.shape) for p in made.parameters
    )
    assert made.warnings == ()


# Shown


class Table(HTMLParser):
    """Read a table's cells, and note every tag and attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.paragraphs: list[str] = []
        self.items: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert attrs == []
        self.tags.add(tag)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "li":
            self.items.append("")
        elif tag == "p":
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] == "li":
            self.items[-1] += data
        elif self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        else:
            self.paragraphs[-1] += data


HARMLESS = {"div", "p", "strong", "table", "thead", "tbody", "tr", "td", "th", "ul", "li"}


def test_a_notebook_shows_what_print_does() -> None:
    plan = replace(plan_of().freeze("stem*").scale("*.weight", 2.0), history=("found by hand", "doubled"))
    table = Table(plan._repr_html_())
    assert table.tags <= HARMLESS
    whole, _, below = format_plan(plan, width=None).partition("\n\n")
    assert whole.splitlines()[1:3] == ["found by hand", "doubled"]
    assert table.paragraphs[:4] == whole.splitlines()[:4]
    legend = [" ".join(line.split()) for line in whole.splitlines()[4:] if line.startswith("  ")]
    assert [text.replace(":", "", 1) for text in table.items] == legend
    assert [" ".join(" ".join(row).split()) for row in table.rows] == [
        " ".join(line.split()) for line in below.splitlines()
    ]


def test_nothing_in_a_plan_is_read_as_html() -> None:
    evil = "<script>alert('1')</script>&amp;"
    plan = plan_of()
    first, *others = plan.parameters
    made = replace(
        plan,
        parameters=(replace(first, name=evil, notes=(evil,)), *others),
        rule=evil,
        history=(evil,),
        remarks=(evil,),
    )
    table = Table(made._repr_html_())
    assert table.tags <= HARMLESS
    assert table.rows[1][0] == evil
    assert any(evil in text for text in table.items)
    assert table.paragraphs[1] == evil
    assert f"Warning: {evil}" in table.paragraphs


def test_a_long_plan_is_cut_and_says_so() -> None:
    plan = plan_graph(dag_mlp_graph(reference.dense(40)))
    assert len(plan.parameters) > 300
    table = Table(plan._repr_html_())
    assert len(table.rows) == 201
    assert any(text.startswith(f"... {len(plan.parameters) - 200} more") for text in table.paragraphs)
