"""Check plans: every parameter once, in words, bad input, and the text they are kept in."""

import copy
import dataclasses
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import InputError, PlanError
from evenstep.graph import Edge, Graph, Parameter, Vertex, dag_cnn_graph, dag_mlp_graph, nasbench201_graph
from evenstep.graph.networks import Order
from evenstep.graph.operators import Weight
from evenstep.planning import Plan, plan_graph
from evenstep.planning.table import shortened
from evenstep.planning.text import format_plan
from evenstep.rules import RULES, Optimizer
from tests import reference
from tests.strategies import dag_codes, inits, orders

OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "momentum", "adam")
BASE = dag_mlp_graph("2")


# Parameters


@given(dag_codes(), orders, inits, st.sampled_from(sorted(RULES)))
def test_every_parameter_is_planned_exactly_once(code: str, order: Order, init: str, rule: str) -> None:
    graph = dag_mlp_graph(code, order=order)
    plan = plan_graph(graph, rule=rule, init=init)
    assert [parameter.name for parameter in plan.parameters] == [parameter.name for parameter in graph.parameters]
    for parameter, declared in zip(plan.parameters, graph.parameters, strict=True):
        assert (parameter.shape, parameter.role) == (declared.shape, declared.role)
        assert parameter.lr_scale > 0
        assert (parameter.std > 0) == (declared.role == "weight")
        assert "\n" not in parameter.reason
        assert "lr: topology" in parameter.reason
        assert "init: " in parameter.reason


def test_parameters_on_no_path_are_planned_and_said_to_be() -> None:
    graph = Graph.build(
        map(Vertex, "xyz"),
        [
            Edge("x", "y", (Weight(4),), ("w",)),
            Edge("x", "z", (Weight(4),), ("dead", "dead bias")),
        ],
        inputs="x",
        outputs="y",
        parameters=[
            Parameter("w", "weight", (2, 4), fan_in=4, fan_out=2),
            Parameter("dead", "weight", (2, 4), fan_in=4, fan_out=2, measured=0.5),
            Parameter("dead bias", "bias", (2,), fan_in=4, fan_out=2),
            Parameter("loose", "unscaled", (3,), measured=2.0),
            Parameter("frozen", "weight", (2, 4), trainable=False, measured=0.1),
        ],
    )
    plan = plan_graph(graph)
    assert [parameter.name for parameter in plan.parameters] == ["w", "dead", "dead bias", "loose"]
    assert "on no path" not in plan["w"].reason
    assert "on no path" in plan["dead"].reason
    assert "on no path" in plan["dead bias"].reason
    assert (plan["dead"].kept, plan["dead"].std) == (True, 0.5)
    assert (plan["loose"].kept, plan["loose"].std) == (True, 2.0)
    assert {plan[name].lr_scale for name in ("dead", "dead bias", "loose")} == {plan.lr_scale}


def test_a_plan_is_a_collection_of_its_parameters() -> None:
    plan = plan_graph(dag_mlp_graph("2"))
    assert tuple(plan) == plan.parameters
    assert "stem.weight" in plan
    assert "stem.wieght" not in plan


def test_a_plan_is_read_by_name() -> None:
    plan = plan_graph(dag_mlp_graph("2"))
    assert plan["stem.weight"].name == "stem.weight"
    with pytest.raises(PlanError, match=r"no parameter 'stem.wieght'; it has 6, such as 'stem.weight'"):
        plan["stem.wieght"]


@pytest.mark.parametrize("base", [0.25, None])
def test_a_printed_plan_has_a_line_for_every_parameter_and_says_what_they_share_once(base: float | None) -> None:
    plan = plan_graph(dag_cnn_graph("2_12", norm="batch", image_size=8), base=base, optimizer="sgd")
    printed = str(plan)
    above, _, below = printed.partition("\n\n")
    titles, *lines = below.splitlines()
    head = " ".join(above.split())
    for part in ("'weighted'", "'conserve'", "'sgd'", "factors only" if base is None else "0.25", "; 2 paths"):
        assert part in head
    for factor in plan.factors:
        assert head.count(f"{factor.name} {factor.value:.4g} ({factor.why})") == 1
        assert factor.why not in below
    assert titles.split()[:4] == ["parameter", "shape", "std", "lr_scale" if base is None else "lr"]
    assert max(map(len, printed.splitlines())) <= 80
    for p, line in zip(plan.parameters, lines, strict=True):
        rate = p.lr_scale if base is None else base * p.lr_scale
        start = f"{p.std:.4g}" if p.std else f"all {p.mean:g}"
        assert line.split("  ")[0].strip() == p.name
        assert line.split()[1:].pop(0) == "x".join(map(str, p.shape))
        assert f"{start}  " in line
        assert f"{rate:.4g}" in line.split()
    assert str(Plan.from_json(plan.to_json())) == printed


def test_a_printed_plan_has_a_column_for_every_factor_that_not_all_share() -> None:
    plan = plan_graph(dag_mlp_graph("2_12"), base=0.1, optimizer="sgd").scale("readout.*", 3.0)
    titles, *lines = str(plan).partition("\n\n")[2].splitlines()
    own = {factor.name for p in plan.parameters for factor in plan.own_factors(p)}
    assert own >= {"size", "scaled"}
    assert own <= set(titles.split())
    for p, line in zip(plan.parameters, lines, strict=True):
        for factor in plan.own_factors(p):
            end = titles.index(factor.name) + len(factor.name)  # numbers stand below the end of their title
            assert line[:end].split()[-1] == f"{factor.value:.4g}"


def test_reasons_that_differ_in_numbers_alone_are_said_once() -> None:
    plan = plan_graph(dag_mlp_graph("2_12"), base=0.1, optimizer="sgd")
    first, second, *others = plan.parameters
    told = (replace(first, notes=("read 3 times by 'a.0.1'",)), replace(second, notes=("read 4 times by 'a.0.1'",)))
    printed = str(replace(plan, parameters=(*told, *others)))
    assert printed.count("read … times by 'a.0.1'") == 1
    assert "read 3" not in printed


def test_long_names_lose_their_middle_and_stay_different() -> None:
    plan = plan_graph(dag_mlp_graph("2_12"), base=0.1, optimizer="sgd")
    stem = "module.encoder." * 8
    named = [
        replace(p, name=f"{stem}{place}.attention.projection.weight") for place, p in enumerate(plan.parameters * 20)
    ]
    made = replace(plan, parameters=tuple(named))
    titles, *lines = str(made).partition("\n\n")[2].splitlines()
    shown = [line.split()[0] for line in lines]
    assert len(set(shown)) == len(shown) == len(named)
    assert all("…" in name and name.startswith("m") and name.endswith("weight") for name in shown)
    assert max(map(len, [titles, *lines])) <= 80
    whole = format_plan(made, width=None)
    assert all(p.name in whole for p in named)


@given(st.lists(st.text("ab.", min_size=1, max_size=60), min_size=1, max_size=8, unique=True), st.integers(3, 40))
def test_shortened_names_fit_and_short_ones_stay(names: list[str], width: int) -> None:
    for name, short in zip(names, shortened(names, width), strict=True):
        assert len(short) <= width
        assert short == name or len(name) > width
        head, _, tail = short.partition("…")
        assert name.startswith(head)
        assert name.endswith(tail)


@pytest.mark.parametrize("width", [40, 60, 80, 132])
def test_every_line_fits_the_width(width: int) -> None:
    plan = plan_graph(dag_cnn_graph("2_12", norm="batch", image_size=8), base=0.1, optimizer="sgd")
    plan = plan.scale("*.bias", 2.0).freeze("stem.*")
    made = replace(plan, path_count=7**6000, remarks=("a remark " * 30,))
    assert max(map(len, format_plan(made, width=width).splitlines())) <= width
    assert f"about 10^{6000 * math.log10(7):.0f} paths" in " ".join(str(made).split())


def test_a_printed_plan_shows_notes_and_what_is_kept() -> None:
    parameters = [Parameter("w", "weight", (4, 4)), Parameter("loose", "unscaled", (2,), measured=2.0, note="not used")]
    graph = Graph.build(
        [Vertex("x"), Vertex("y")],
        [Edge("x", "y", (Weight(4, fan_out=4),), ("w",))],
        inputs="x",
        outputs="y",
        parameters=parameters,
    )
    lines = str(plan_graph(graph)).splitlines()
    line = next(line for line in lines if line.startswith("loose"))
    assert line.split()[:3] == ["loose", "2", "kept"]
    assert f"  {line.split()[-1]}  not used" in lines
    assert lines[-1] == "Warning: 'loose' is not used: no output depends on it"


# Nothing to plan


def test_a_network_with_nothing_to_train_is_refused() -> None:
    ends = {"inputs": "x", "outputs": "y"}
    weight = Edge("x", "y", (Weight(),), ("w",))
    frozen = Graph.build(
        [Vertex("x"), Vertex("y")], [weight], parameters=[Parameter("w", "weight", trainable=False)], **ends
    )
    with pytest.raises(InputError, match=r"'w' and all other parameters are frozen; call requires_grad_\(\)"):
        plan_graph(frozen)
    with pytest.raises(InputError, match="the network has no parameters"):
        plan_graph(Graph.from_edges([("x", "y", "skip")]))
    assert plan_graph(Graph.from_edges([("x", "y", "weight")])).parameters == ()  # a topology alone has factors


def test_what_is_no_graph_is_refused() -> None:
    bad: Any = "2_12"
    with pytest.raises(InputError, match=r"graph is str; give a Graph, which evenstep.trace"):
        plan_graph(bad)
    with pytest.raises(InputError, match=r"base_graph is str; give a Graph"):
        plan_graph(dag_mlp_graph("2"), base_graph=bad)


# Bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": "wieghted"}, ("rule is 'wieghted'", "weighted, paths, constant, mup")),
        ({"init": "degre"}, ("init is 'degre'", "conserve, degree, he, keep")),
        ({"optimizer": "lamb"}, ("optimizer is 'lamb'", "sgd, momentum, adam, adamw")),
        ({"base": "0.1"}, ("base is '0.1'", "learning rate")),
        ({"base": True}, ("base is True",)),
        ({"base": 0.0}, ("base learning rate is 0.0", "above 0")),
        ({"base": -0.1}, ("-0.1", "above 0")),
        ({"base": math.nan}, ("nan", "finite")),
        ({"base": math.inf}, ("inf", "finite")),
        ({"base": 10**400, "optimizer": "sgd"}, ("base learning rate is 1000", "finite")),
        (
            {"base": 0.1},
            ("only a learning rate, 0.1", "optimizer is not given", "'sgd', 'momentum', 'adam', 'muon' or 'lion'"),
        ),
        ({"init": "keep"}, ("'keep'", "'stem.weight'")),
    ],
)
def test_bad_options_are_named_with_the_value(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        plan_graph(dag_mlp_graph("2"), **options)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_a_search_brings_its_rate_and_its_graph() -> None:
    class Search:
        best = 0.3
        graph = dag_mlp_graph("2_02", width=64)
        optimizer = "sgd"

    target = dag_mlp_graph("2_22", width=128)
    plan = plan_graph(target, base=Search())
    same = plan_graph(target, base=0.3, optimizer="sgd", base_graph=Search.graph)
    assert plan == same
    assert plan.base == 0.3


# The text


EXAMPLES: dict[str, Callable[[], Plan]] = {
    "mlp": lambda: plan_graph(dag_mlp_graph("2_12_112"), base=0.1, optimizer="sgd"),
    "cnn": lambda: plan_graph(dag_cnn_graph("2_12", norm="layer"), rule="paths", init="degree"),
    "cell": lambda: plan_graph(nasbench201_graph("3_24_140"), optimizer="adam"),
    "dense": lambda: plan_graph(dag_mlp_graph(reference.dense(40)), rule="mup", init="he"),
    "huge": lambda: plan_graph(reference.residual(1000), rule="paths"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_plan_survives_its_text(name: str) -> None:
    plan = EXAMPLES[name]()
    text = plan.to_json()
    again = Plan.from_json(text)
    assert again == plan
    assert again.to_json() == text
    assert again.lr_scale == plan.lr_scale


def test_a_count_of_three_hundred_digits_survives_exactly() -> None:
    plan = EXAMPLES["huge"]()
    assert plan.path_count == 2**1000
    assert Plan.from_json(plan.to_json()).path_count == 2**1000
    assert json.loads(plan.to_json())["path_count"] == 2**1000


@pytest.mark.slow
def test_path_counts_beyond_python_s_limit_of_digits_survive_their_text() -> None:
    graph = Graph.from_edges([(i, i + 1, "weight") for i in range(4400) for _ in range(10)])
    plan = plan_graph(graph, rule="paths", init="degree")
    assert plan.path_count == 10**4400
    assert plan.lr_scale > 0
    assert plan_graph(BASE, rule="paths", base_graph=graph).lr_scale > 1e300  # no overflow the other way
    limit = sys.get_int_max_str_digits()
    assert Plan.from_json(plan.to_json()) == plan
    assert sys.get_int_max_str_digits() == limit


@pytest.mark.parametrize("rule", [None, 5, ["weighted"], "Weighted"])
def test_a_rule_that_is_none_is_refused(rule: Any) -> None:
    with pytest.raises(InputError, match="choose one of weighted, paths"):
        plan_graph(dag_mlp_graph("2"), rule=rule)


def test_numbers_of_numpy_are_rates() -> None:
    assert plan_graph(dag_mlp_graph("2"), base=np.float32(0.5), optimizer="sgd").base == 0.5  # type: ignore[arg-type]


@given(dag_codes(max_vertices=5), orders, inits, st.sampled_from(sorted(RULES)), st.sampled_from(OPTIMIZERS))
def test_any_plan_survives_its_text(code: str, order: Order, init: str, rule: str, optimizer: Optimizer) -> None:
    plan = plan_graph(dag_mlp_graph(code, order=order), rule=rule, init=init, optimizer=optimizer)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("null", "NoneType"),
        ("[]", "list"),
        ("3", "int"),
        ("{}", "None"),
        ('{"format": "evenstep-plan/9"}', "evenstep-plan/9"),
        ('{"format": ["evenstep-plan/2"]}', "evenstep-plan/2"),
        ('{"format": "evenstep-plan/1"}', "older version"),
        ('{"format": "evenstep-plan/2"}', "damaged"),
        ('{"path_count": ' + "9" * 5000 + "}", "format is None"),
        (None, "not JSON"),
    ],
)
def test_foreign_text_is_no_plan(text: Any, word: str) -> None:
    with pytest.raises(PlanError, match="plan") as caught:
        Plan.from_json(text)
    assert word in str(caught.value)
    assert "plan.to_json()" in str(caught.value)


@given(st.text())
def test_arbitrary_text_is_no_plan(text: str) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(text)


def test_a_plan_cut_short_anywhere_is_no_plan() -> None:
    text = EXAMPLES["mlp"]().to_json()
    for end in range(0, len(text), 97):
        with pytest.raises(PlanError):
            Plan.from_json(text[:end])


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that sets the value at a path of keys; the last entry is the value."""

    def change(values: dict[str, Any]) -> None:
        at: Any = values
        for key in path[:-2]:
            at = at[key]
        at[path[-2]] = path[-1]

    return change


def _drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        at: Any = values
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


KEYS = (
    "rule init optimizer base factors path_count sum_cubed_depth vertices parameters graph".split()
)  # all but the format and lr_scale, which follows from the factors
DAMAGE: dict[str, Callable[[dict[str, Any]], None]] = {
    **{f"no {key}": _drop(key) for key in KEYS},
    **{f"{key} is a number": _set(key, 3.5) for key in KEYS if key != "base"},
    **{
        f"{key} is a word": _set(key, "word") for key in KEYS if key not in ("rule", "init")
    },  # which may be of one's own
    "base is negative": _set("base", -1.0),
    "base is NaN": _set("base", math.nan),
    "base is true": _set("base", True),
    "count is negative": _set("path_count", -1),
    "a parameter without a name": _drop("parameters", 0, "name"),
    "a parameter with a number for a name": _set("parameters", 0, "name", 5),
    "a parameter twice": lambda values: values["parameters"].append(values["parameters"][0]),
    "a parameter missing": lambda values: values["parameters"].pop(),
    "a parameter the graph does not know": _set("parameters", 0, "name", "other"),
    "an unknown field": _set("parameters", 0, "colour", "red"),
    "a word for a std": _set("parameters", 0, "std", "0.1"),
    "a NaN for a std": _set("parameters", 0, "std", math.nan),
    "a negative std": _set("parameters", 0, "std", -0.1),
    "an infinite rate": _set("parameters", 0, "lr_scale", math.inf),
    "a negative rate": _set("parameters", 0, "lr_scale", -1.0),
    "a missing rate": _set("parameters", 0, "lr_scale", None),
    "a word for a mean": _set("parameters", 0, "mean", "zero"),
    "a number for a shape": _set("parameters", 0, "shape", 3),
    "a word in a shape": _set("parameters", 0, "shape", ["3", "4"]),
    "another shape than the graph's": _set("parameters", 0, "shape", [1, 1]),
    "a number for a reason": _set("parameters", 0, "reason", 5),
    "a number for why a factor is": _set("parameters", 0, "factors", -1, "why", 5),
    "a list for a factor's name": _set("parameters", 0, "factors", -1, "name", ["x"]),
    "a number for a vertex's name": _set("vertices", 0, "name", 5),
    "a number for why it starts so": _set("parameters", 0, "init_reason", 5),
    "a word for kept": _set("parameters", 0, "kept", "yes"),
    "a word for a factor": _set("factors", 0, "value", "2"),
    "a NaN for a factor": _set("factors", 0, "value", math.nan),
    "a factor without a value": _drop("factors", 0, "value"),
    "a word for a second moment": _set("vertices", 0, "second_moment", "1"),
    "a word for an in-degree": _set("vertices", 0, "in_degree", "1"),
    "an edge to nowhere": _set("graph", "edges", 0, "target", "nowhere"),
    "an unknown operator": _set("graph", "edges", 0, "operators", 0, "op", "convolve"),
    "an operator's unknown field": _set("graph", "edges", 0, "operators", 0, "colour", "red"),
    "a cycle": lambda values: values["graph"]["edges"].append({"source": "1", "target": "0", "operators": []}),
    "a word for an operator's depth": _set("graph", "edges", 0, "operators", 0, "depth", "one"),
    "no number for a weight's gain": _set("graph", "edges", 0, "operators", 0, "gain", None),
    "an edge without operators": _drop("graph", "edges", 0, "operators"),
    "an edge of an older version": _set("graph", "edges", 0, {"source": "input", "target": "0", "op": "weight"}),
    "a kernel of negative side": _set("graph", "edges", 0, "operators", 0, "kernel_size", -3.0),
    "a fan of zero": _set("graph", "edges", 0, "operators", 0, "fan_in", 0),
    "operators that are a word": _set("graph", "edges", 0, "operators", ""),
    "an activation that is none": _set("graph", "edges", 1, "operators", 0, "name", "relo"),
    "a role that is none": _set("graph", "parameters", 0, "role", "raw"),
    "a word for a measured size": _set("graph", "parameters", 0, "measured", "1"),
    "another factor than the parameters'": _set("factors", 0, "value", 7.0),
    "a word for the network's rate": _set("lr_scale", "junk"),
    "a number among notes": _set("parameters", 0, "notes", [1]),
    "a rate that is not its factors'": _set("parameters", 0, "lr_scale", 7.0),
    "a word for a parameter's factor": _set("parameters", 0, "factors", 0, "value", "2"),
    "a parameter without factors": _drop("parameters", 0, "factors"),
    "a fraction for a fan": _set("graph", "parameters", 0, "fan_in", 2.5),
    "a std beyond all floats": _set("parameters", 0, "std", 10**400),
    "no inputs": _set("graph", "inputs", []),
    "vertices that are words": _set("graph", "vertices", ["a", "b"]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_plan_is_refused(name: str) -> None:
    values = copy.deepcopy(EXAMPLES["mlp"]().to_dict())
    assert Plan.from_json(json.dumps(values))
    DAMAGE[name](values)
    with pytest.raises(PlanError, match="damaged"):
        Plan.from_json(json.dumps(values))


def test_a_plan_with_a_number_that_json_has_not_is_not_written() -> None:
    plan = EXAMPLES["mlp"]()
    with pytest.raises(PlanError, match="not finite, which JSON cannot write"):
        dataclasses.replace(plan, base=math.nan).to_json()
