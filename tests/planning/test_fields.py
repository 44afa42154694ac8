"""Check that rules and initialisations own their numbers: every field changes a plan, and no number lies elsewhere."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

import evenstep
from evenstep.errors import InputError
from evenstep.graph import Edge, Graph, Parameter, Vertex, dag_cnn_graph, dag_mlp_graph, nasbench201_graph
from evenstep.graph.operators import Activation, Gate, Weight
from evenstep.init import INITS, Conserve, Degree, He, Initialisation, Network
from evenstep.planning import Plan, plan_graph
from evenstep.rules import (
    RULES,
    AmMup,
    CompleteP,
    DepthMup,
    Factor,
    Optimizer,
    Paths,
    RateFactors,
    Spectral,
    UMup,
    Weighted,
)

NAMES = ("name", "layerwise")  # what a rule is called, and which bases it takes


def tied_and_gated() -> Graph:
    """Return x -stem-> a -W-> b -W-> c -gate-> d -readout-> y with skips from a to c and d: W twice, a small gate."""
    layer = (Activation("relu"), Weight(8, 8))
    return Graph.build(
        map(Vertex, "xabcdy"),
        [
            Edge("x", "a", (Weight(4, 8),), ("stem",)),
            Edge("a", "b", layer, ("w",)),
            Edge("b", "c", layer, ("w",)),
            Edge("a", "c"),
            Edge("c", "d", (Gate(0.007),), ("gate",)),
            Edge("a", "d"),
            Edge("d", "y", (Activation("relu"), Weight(8, 2)), ("out",)),
        ],
        inputs="x",
        outputs="y",
        parameters=[
            Parameter("stem", "weight", (8, 4), fan_in=4, fan_out=8, measured=0.5),
            Parameter("w", "weight", (8, 8), fan_in=8, fan_out=8, measured=0.5),
            Parameter("gate", "unscaled", (8,), measured=0.007),
            Parameter("out", "weight", (2, 8), fan_in=8, fan_out=2, measured=0.5),
        ],
    )


def tied_table() -> Graph:
    """Return an embedding that is also read out."""
    return Graph.build(
        map(Vertex, "xay"),
        [Edge("x", "a", (Weight(1, 8),), ("table",)), Edge("a", "y", (Activation("relu"), Weight(8, 20)), ("table",))],
        inputs="x",
        outputs="y",
        parameters=[Parameter("table", "weight", (20, 8), fan_in=1, fan_out=8, measured=0.5)],
    )


# Networks among which every number matters somewhere: skips, streams, kernels, norms, growing fields, averages.
GRAPHS = {
    "mlp": dag_mlp_graph("2_12_112"),
    "residual": dag_mlp_graph("2_12_002_0012"),
    "wide readout": dag_cnn_graph("2_12", norm="batch", width=256, kernel_size=5, image_size=8),
    "narrow readout": dag_cnn_graph("2_12", norm="batch", width=8, image_size=2),
    "copies": nasbench201_graph("1_11_311"),
    "bounded": dag_mlp_graph("2_22", order="post", activation="tanh"),
    "large": dag_mlp_graph("2", order="post", activation="silu"),
    "tied": tied_and_gated(),
    "tied table": tied_table(),
}
BASES = {"wide readout": dag_cnn_graph("2", norm="batch", image_size=8), "copies": nasbench201_graph("0_00_300")}


def plans(rule: Any, init: Initialisation) -> Mapping[tuple[str, str], Plan]:
    optimizers: tuple[Optimizer, ...] = ("sgd", "adam")
    names = ("tied",) if init.keeps else GRAPHS
    return {
        (name, optimizer): plan_graph(
            GRAPHS[name], rule=rule, init=init, optimizer=optimizer, base_graph=BASES.get(name)
        )
        for name in names
        for optimizer in optimizers
    }


def numbers(plan: Plan) -> list[tuple[str, float, float]]:
    return [(p.name, p.std, p.lr_scale) for p in plan.parameters]


def changed(value: Any) -> Any:
    """Return another value of the kind: half as large, or the other word."""
    if isinstance(value, str):
        return "largest"
    return 100.0 if value is None else value + 1 if isinstance(value, int) else value / 2


OWNERS = (Weighted(), Paths(), Spectral(), CompleteP(), DepthMup(), UMup(), AmMup())
CASES = [
    *((rule, field.name) for rule in OWNERS for field in fields(rule) if field.name not in NAMES),
    *((init, field.name) for init in INITS.values() for field in fields(init) if field.name not in NAMES),
]


@pytest.mark.parametrize(
    ("owner", "name"), CASES, ids=lambda case: case if isinstance(case, str) else type(case).__name__
)
def test_changing_a_field_changes_a_plan(owner: Any, name: str) -> None:
    other = replace(owner, **{name: changed(getattr(owner, name))})
    if isinstance(owner, Initialisation):
        before, after = (plans(Weighted(), init) for init in (owner, other))
    else:
        init = Degree() if name in ("size_power", "adam_size_power", "moment_weight") else Conserve()  # undoes growth
        before, after = (plans(rule, init) for rule in (owner, other))
    moved = [key for key in before if numbers(before[key]) != numbers(after[key])]
    assert moved, f"{name} of {type(owner).__name__} changes nothing"


def test_a_rule_of_one_s_own_is_taken_as_it_is() -> None:
    faster = plan_graph(GRAPHS["mlp"], rule=replace(Weighted(), depth_offset=1.0))
    assert faster.lr_scale > plan_graph(GRAPHS["mlp"]).lr_scale
    assert faster.rule == "weighted(depth_offset=1.0)"  # two rules, two names


def test_an_initialisation_of_one_s_own_is_taken_as_it_is() -> None:
    plan = plan_graph(GRAPHS["mlp"], init=Conserve(readout_second_moment=1.0))
    assert plan["readout.weight"].std == pytest.approx(plan_graph(GRAPHS["mlp"])["readout.weight"].std * 3**0.5)
    assert plan.init == "conserve(readout_second_moment=1.0)"
    assert "turns second moment 1 into 1" in plan["readout.weight"].reason
    assert Plan.from_json(plan.to_json()) == plan


def test_an_initialisation_of_another_name_survives_its_text() -> None:
    plan = plan_graph(GRAPHS["mlp"], init=Conserve(name="mine"))
    assert Plan.from_json(plan.to_json()).init == "mine"


@dataclass(frozen=True)
class Answering:
    """A rule that answers with whatever it is given."""

    answer: Any
    name: str = "answering"
    layerwise: bool = True

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> Any:
        return self.answer


def test_a_rule_of_one_s_own_gives_every_parameter_its_factors() -> None:
    shared, half = Factor("all", 2.0, "for all"), Factor("bias", 0.5, "a bias")
    plan = plan_graph(GRAPHS["mlp"], rule=Answering(RateFactors((shared,), {"stem.bias": (half,)})))
    assert plan["stem.bias"].factors == (shared, half)
    assert plan["stem.bias"].lr_scale == 1.0
    assert plan["stem.weight"].lr_scale == plan.lr_scale == 2.0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"stem.bias": 2.0}, "returned dict; return a RateFactors"),
        (RateFactors((), {"stem.bais": ()}), "'stem.bais', which the network does not have"),
        (RateFactors((Factor("x", -1.0, ""),)), "factor x -1.0; give finite numbers above 0"),
        (RateFactors((), {"stem.bias": (Factor("x", math.inf, ""),)}), "factor x inf; give finite"),
    ],
)
def test_what_a_rule_answers_is_checked(answer: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan_graph(GRAPHS["mlp"], rule=Answering(answer))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Weighted(kernel_length=-5.0), "kernel_length of weighted is -5.0; give a number from 0 up"),
        (lambda: Weighted(depth_offset=math.nan), "depth_offset of weighted is nan"),
        (lambda: Degree(readout_power="1"), "readout_power of degree is '1'"),  # type: ignore[arg-type]
        (lambda: Conserve(tied="smalest"), "tied of init 'conserve' is 'smalest'; choose one of smallest, largest"),  # type: ignore[arg-type]
        (lambda: plan_graph(GRAPHS["mlp"], rule=Weighted), r"the class Weighted; .* such as Weighted\(\)"),  # type: ignore[arg-type]
        (lambda: plan_graph(GRAPHS["mlp"], init=Conserve), "init is"),  # type: ignore[arg-type]
    ],
)
def test_fields_and_values_that_cannot_be_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_constant_and_rules_of_width_are_what_their_names_say() -> None:
    for name, graph in GRAPHS.items():
        constant = plan_graph(graph, rule="constant", base_graph=BASES.get(name))
        assert {p.lr_scale for p in constant.parameters} == {1.0}
        assert {factor.name for p in constant.parameters for factor in p.factors} == {"topology"}
        for optimizer in ("sgd", "adam"):
            for rule, names in (("spectral", {"width"}), ("mup", {"width", "readout", "branch"})):
                plan = plan_graph(graph, rule=rule, optimizer=optimizer, base_graph=BASES.get(name))
                assert plan.lr_scale == 1.0
                assert {factor.name for p in plan.parameters for factor in p.factors} <= {"topology", *names}


def test_no_number_of_the_rule_lies_outside_it() -> None:
    """Numbers in the code of rules and initialisations are fields' defaults, parts of formulas, or tolerances."""
    # Powers and binomial coefficients, steps and tolerances of iterations, digits of printed numbers.
    formulas = {0, 0.5, 1, 2, 3, 4, 100, 1e-9, 1e-12, 6, 10}
    tolerances = {"_SMALLEST_VARIANCE", "_SMALLEST", "_SMALLEST_SEEN", "_LARGEST_EXPONENT"}
    home = Path(evenstep.__file__).parent
    for path in sorted(
        [*(home / "rules").glob("*.py"), *(home / "init").glob("*.py"), *(home / "signal").glob("*.py")]
    ):
        tree = ast.parse(path.read_text())
        owned = {
            id(number)
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef | ast.Module)
            for statement in node.body
            if (isinstance(node, ast.ClassDef) and isinstance(statement, ast.AnnAssign))
            or (
                isinstance(statement, ast.Assign)
                and {t.id for t in statement.targets if isinstance(t, ast.Name)} & tolerances
            )
            for number in ast.walk(statement)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and type(node.value) in (int, float) and id(node) not in owned:
                assert node.value in formulas, f"{path.name}:{node.lineno} holds {node.value!r}"


def test_every_kind_of_rule_and_initialisation_is_covered() -> None:
    assert {type(owner) for owner, _ in CASES} | {type(RULES[name]) for name in ("constant", "mup")} == {
        *map(type, RULES.values()),
        *(Conserve, Degree, He),
    }  # keep, constant and mup have no number of their own
