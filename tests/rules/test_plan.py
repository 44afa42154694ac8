"""Check plans: the rules against their literal formulas, the factors of width, and the text they are kept in."""

import copy
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import InputError, PlanError
from evenstep.graph import Edge, Graph, Parameter, Vertex, dag_cnn_graph, dag_mlp_graph, nasbench201_graph
from evenstep.graph.networks import Norm, Order
from evenstep.rules import RULES, Init, Network, Optimizer, Paths, Plan, Weighted, chain_like, plan_graph
from evenstep.rules.network import LEFT_BY_AVERAGE
from evenstep.rules.signal import FADING
from evenstep.rules.width import groups, width_factor
from evenstep.study.codes import branches_code
from tests import reference
from tests.strategies import INITS, ORDERS, dag_codes, inits, orders

OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "momentum", "adam")
BASE = dag_mlp_graph("2")


def factor(plan: Plan, name: str) -> float:
    (found,) = [factor.value for factor in plan.factors if factor.name == name]
    return found


def width_factors(plan: Plan, base_width: int) -> list[float]:
    """Return every parameter's factor of width by its layer's weight [out, in, kernel...], 1 for norms.

    SGD: out/in; Adam: the base's hidden width over in; a stem reads an eighth of the base's width at least. A readout
    of averages of normalised images is ten times as fast, under Adam by the root, up to twice the network's rate.
    """
    dimmed = any(p.name.startswith("norms") for p in plan.parameters) and bool(plan.graph.convolutions)
    faster = 1.0 if not dimmed else math.sqrt(10) if plan.optimizer == "adam" else 10.0
    shapes = {p.name.rpartition(".")[0]: p.shape for p in plan.parameters if p.role == "weight"}
    found = []
    for p in plan.parameters:
        writes, read = shapes.get(p.name.rpartition(".")[0], (1, 1))[:2]
        reads = max(read, base_width / 8) if p.name.startswith("stem") else read
        if p.name.startswith("norms"):
            found.append(1.0)
        else:
            own = base_width / reads if plan.optimizer == "adam" else writes / reads
            found.append(max(own, min(own * faster, 2.0)) if p.name.startswith("readout") and dimmed else own)
    return found


def test_what_an_average_leaves_is_as_recorded() -> None:
    record = json.loads((Path(__file__).parents[2] / "results" / "averages" / "record.json").read_text())
    measured = [one["mean"] for one in record["results"]["networks"]]
    assert pytest.approx(statistics.median(measured), rel=0.25) == LEFT_BY_AVERAGE


# The paper's rule


@given(dag_codes(), dag_codes(max_vertices=4), orders)
def test_paths_is_the_root_of_the_ratio_of_cubed_depths(code: str, base: str, order: Order) -> None:
    plan = plan_graph(dag_mlp_graph(code, order=order), rule="paths", base_graph=dag_mlp_graph(base, order=order))
    target, start = (sum(depth**3 for depth in reference.dag_depths(c)) for c in (code, base))
    assert plan.lr_scale == pytest.approx(math.sqrt(start / target), rel=1e-12)
    assert (plan.path_count, plan.sum_cubed_depth) == (len(reference.dag_depths(code)), target)
    assert {parameter.lr_scale for parameter in plan.parameters} == {plan.lr_scale}  # one rate for all


@given(dag_codes(), st.integers(0, 3))
def test_the_authors_code_adds_to_the_depth(code: str, offset: int) -> None:
    plan = plan_graph(dag_mlp_graph(code), rule=Paths(depth_offset=offset), base_graph=BASE)
    target = sum((depth + offset) ** 3 for depth in reference.dag_depths(code))
    assert plan.lr_scale == pytest.approx(math.sqrt((2 + offset) ** 3 / target), rel=1e-12)


def residual(blocks: int) -> Graph:
    """Return `blocks` residual blocks between a stem and a readout: 2^blocks paths."""
    edges: list[tuple[object, ...]] = [("x", 0, "weight", 0)]
    edges += [(i, i + 1, op, int(op == "weight")) for i in range(blocks) for op in ("weight", "skip")]
    return Graph.from_edges([*edges, (blocks, "y", "weight", 1)])


def test_paths_of_numbers_too_large_for_a_float() -> None:
    blocks = 1200
    plan = plan_graph(residual(blocks), rule="paths", base_graph=BASE)
    assert plan.path_count == 2**blocks
    # Sum of (k + 1)^3 over subsets of size k, by the moments of a binomial.
    m, count = blocks, 2**blocks
    cubes = (m * m * (m + 3) + 3 * 2 * m * (m + 1) + 3 * 4 * m + 8) * count // 8
    assert plan.sum_cubed_depth == cubes
    with localcontext() as context:
        context.prec = 60
        expected = float((Decimal(8) / Decimal(cubes)).sqrt())
    assert plan.lr_scale == pytest.approx(expected, rel=1e-9)


def test_paths_is_silent_where_no_path_has_an_activation() -> None:
    plan = plan_graph(Graph.from_edges([("x", "y", "weight", 0)]), rule="paths", base_graph=BASE)
    assert plan.lr_scale == 1.0
    assert "silent" in plan.factors[0].why


# Kernels


@pytest.mark.parametrize(("kernel", "base"), [(5, 3), (3, 5), (1, 3), (7, 7)])
def test_the_paper_s_rate_falls_with_the_kernel(kernel: int, base: int) -> None:
    plan = plan_graph(
        dag_cnn_graph("2_22", kernel_size=kernel, image_size=8),
        rule="paths",
        base_graph=dag_cnn_graph("2_22", kernel_size=base, image_size=8),
    )
    assert factor(plan, "kernel") == pytest.approx(base / kernel)
    assert plan.lr_scale == pytest.approx(factor(plan, "topology") * base / kernel)


@pytest.mark.parametrize(("depth", "kernel"), [(0, 3), (1, 5), (4, 1), (8, 7)])
def test_a_convolution_counts_as_many_layers_as_its_kernel_is_long(depth: int, kernel: int) -> None:
    # depth + 1 convolutions, the stem among them, and a readout.
    plan = plan_graph(
        dag_cnn_graph(reference.chain(depth) if depth else "1", kernel_size=kernel, image_size=8),
        base_graph=dag_cnn_graph("2", kernel_size=3, image_size=8),
    )
    assert factor(plan, "topology") == pytest.approx(((2 + 2) / (depth + 1 + 2)) ** 1.5, rel=1e-4)
    assert plan.lr_scale == pytest.approx(((2 * 3 + 2) / ((depth + 1) * kernel + 2)) ** 1.5, rel=1e-4)
    assert plan.lr_scale == pytest.approx(factor(plan, "topology") * factor(plan, "kernel"))


def test_without_convolutions_there_is_no_kernel_factor() -> None:
    assert [factor.name for factor in plan_graph(dag_mlp_graph("2_22")).factors] == ["topology"]


def test_a_cell_s_kernel_is_the_geometric_mean_of_its_convolutions() -> None:
    # Stem 3, one 3x3 and one 1x1.
    plan = plan_graph(nasbench201_graph("3_02_001"), rule="paths", base_graph=dag_cnn_graph("2", kernel_size=3))
    assert factor(plan, "kernel") == pytest.approx(3 / 9 ** (1 / 3))


# The weighted rule


@pytest.mark.parametrize("init", ["he", "degree"])
def test_weighted_equals_the_listed_fields_on_every_live_four_vertex_code(init: Init) -> None:
    checked = 0
    for code in reference.dag_codes(4):
        if reference.dag_depths(code):
            found = Weighted().score(Network(dag_mlp_graph(code), init))
            assert found == pytest.approx(math.sqrt(reference.weighted_score(code, init=init)), rel=1e-5), code
            checked += 1
    assert checked > 500


@given(dag_codes(), st.sampled_from(("he", "degree")), st.floats(0, 3), st.floats(0, 1))
def test_weighted_equals_the_listed_fields_for_other_constants(code: str, init: Init, a: float, weight: float) -> None:
    rule = Weighted(depth_offset=a, moment_weight=weight)
    found = rule.score(Network(dag_mlp_graph(code), init))
    expected = math.sqrt(reference.weighted_score(code, init=init, a=a, weight=weight))
    assert found == pytest.approx(expected, rel=1e-5)


@given(dag_codes(), st.sampled_from(("he", "degree")))
def test_weighted_scales_by_the_root_of_the_ratio(code: str, init: Init) -> None:
    plan = plan_graph(dag_mlp_graph(code), init=init, base_graph=BASE)
    usual = 2.0 if init == "he" else 1.0  # the base's second moment: he doubles it in the stem
    ratio = reference.weighted_score("2", init=init, usual=usual) / reference.weighted_score(
        code, init=init, usual=usual
    )
    assert plan.lr_scale == pytest.approx(math.sqrt(ratio), rel=1e-5)


def test_weighted_counts_every_path_of_he_nets_without_skips_alike() -> None:
    # There every path carries the stem's 2, and no field meets itself. Adam: pairs of paths do not count.
    depths = reference.dag_depths(reference.dense(5))
    cubes, size = sum((depth + 2) ** 3 for depth in depths) / len(depths), 1 + 0.35 * 2 * len(depths)
    found = Weighted().score(Network(dag_mlp_graph(reference.dense(5)), "he"), optimizer="adam")
    assert found == pytest.approx(cubes**0.4 * size**0.25, rel=1e-5)


def test_parallel_branches_share_the_less_the_more_there_are() -> None:
    # Each branch of n weights carries 1/k of the signal, so two walks take the same one once in k times.
    for k, n in ((1, 4), (2, 4), (4, 4), (8, 2)):
        network = Network(dag_mlp_graph(branches_code(k, n)), "conserve")
        (head,) = network.roles.heads
        shared = network.initialisation.signal.shared[head.vertex]
        assert shared == pytest.approx(n / k, rel=1e-4)
        assert Weighted().score(network) ** 2 == pytest.approx((n + 3) ** 2 * (n / k + 3) * 1.35, rel=1e-4)


def test_copies_of_one_field_count_by_the_square_of_their_number() -> None:
    # Vertices 1 to 3 pass the stem's field on; vertex 4 gets it four times: 16 copies in mean square, depth 1.
    network = Network(dag_mlp_graph("1_10_100_1111"), "degree")
    at = network.initialisation.signal.vertices["4"]
    assert at.copies == pytest.approx(16.0)
    assert at.second_moment == pytest.approx(16.0)
    assert Weighted().score(network) ** 2 == pytest.approx(3**3 * (16 + 16 * 0.35))


def test_a_norm_ends_copies_and_size() -> None:
    network = Network(dag_mlp_graph("1_10_100_1111", norm="batch"), "degree")
    assert network.initialisation.signal.vertices["4.norm"].copies == pytest.approx(1.0)
    assert Weighted().score(network) ** 2 == pytest.approx(3**3 * 1.35)


@pytest.mark.parametrize("depth", [1, 2, 5, 20])
def test_chains_fall_with_the_cube_of_depth_in_both_orders(depth: int) -> None:
    for order in ORDERS:
        for init in ("conserve", "degree"):
            score = Weighted().score(Network(dag_mlp_graph(reference.chain(depth), order=order), init))
            assert score**2 == pytest.approx(1.35 * (depth + 1 + 2) ** 3, rel=1e-4)


def test_behind_a_norm_paths_count_by_their_share() -> None:
    # z_2 = z_0 + W relu(norm(z_0)): with he the weight brings 1 beside the stem's 2, so shares 2/3 and 1/3.
    graph = dag_mlp_graph("2_11", norm="batch")  # 0 -weight-> 1; 2 sums both by skips
    network = Network(graph, "he")
    shares = network.initialisation.signal.vertices["2"]
    assert shares.second_moment == pytest.approx(3.0, rel=1e-5)
    assert shares.depths == pytest.approx((1 / 3, 1 / 3, 1 / 3), rel=1e-5)
    after = network.initialisation.signal.vertices["2.norm"]
    assert after.second_moment == pytest.approx(1.0)
    assert after.depths == pytest.approx([FADING**k / 3 for k in (1, 2, 3)], rel=1e-5)


@pytest.mark.parametrize("depth", [1, 4, 20])
def test_length_fades_behind_batch_norms_and_behind_no_others(depth: int) -> None:
    code, length = reference.chain(depth), 0.0
    for _ in range(depth):  # norm, activation and weight, over and over; then the last norm, activation and readout
        length = FADING * length + 1
    faded = Weighted().score(Network(dag_mlp_graph(code, norm="batch"), "degree"))
    assert faded**2 == pytest.approx(1.35 * (FADING * length + 1 + 2) ** 3, rel=1e-4)
    kept = Weighted().score(Network(dag_mlp_graph(code, norm="layer"), "degree"))
    assert kept**2 == pytest.approx(1.35 * (depth + 1 + 2) ** 3, rel=1e-4)


def test_behind_a_norm_parallel_branches_share_all() -> None:
    for k, n in ((1, 4), (2, 4), (8, 2)):
        network = Network(dag_mlp_graph(branches_code(k, n), norm="layer"), "conserve")
        (head,) = network.roles.heads
        assert network.initialisation.signal.shared[head.vertex] == pytest.approx(n, rel=1e-4)
        assert Weighted().score(network) ** 2 == pytest.approx((n + 3) ** 3 * 1.35, rel=1e-4)


@given(dag_codes(), st.sampled_from(("he", "degree")))
def test_adam_feels_depth_less_and_size_half_as_much(code: str, init: Init) -> None:
    usual = 2.0 if init == "he" else 1.0

    def ratio(*, size: bool, adam: bool) -> float:
        one, other = (reference.weighted_score(c, init=init, usual=usual, size=size, adam=adam) for c in ("2", code))
        return one / other

    sgd, momentum, adam = (
        factor(plan_graph(dag_mlp_graph(code), init=init, optimizer=optimizer, base_graph=BASE), "topology")
        for optimizer in OPTIMIZERS
    )
    of_depth = ratio(size=False, adam=True)
    of_size = ratio(size=True, adam=True) / of_depth
    assert sgd == momentum == pytest.approx(math.sqrt(ratio(size=True, adam=False)), rel=1e-5)
    assert adam == pytest.approx(of_depth**0.4 * of_size**0.25, rel=1e-5)


# The base and the baselines

KINDS: tuple[tuple[Order, Norm], ...] = (("pre", "none"), ("post", "none"), ("pre", "batch"))
BASES = {f"mlp {order} {norm}": dag_mlp_graph("2", order=order, norm=norm) for order, norm in KINDS} | {
    f"cnn {order} {norm}": dag_cnn_graph("2", order=order, norm=norm) for order, norm in KINDS
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("base", BASES.values(), ids=list(BASES))
def test_the_base_trains_at_its_own_rate(base: Graph, rule: str, init: Init, optimizer: Optimizer) -> None:
    """Its topology factor is one; what is left are its layers' widths, and nothing for rules of one rate."""
    for plan in (
        plan_graph(base, rule=rule, init=init, optimizer=optimizer),  # against the chain behind a bare number
        plan_graph(base, rule=rule, init=init, optimizer=optimizer, base_graph=base),
    ):
        expected = [1.0] * len(plan.parameters)
        if rule in ("weighted", "mup"):
            expected = width_factors(plan, 64 if base.convolutions else 256)
        assert plan.lr_scale == pytest.approx(1.0, rel=1e-9)
        assert [p.lr_scale for p in plan.parameters] == pytest.approx(expected, rel=1e-9)


@given(dag_codes(), orders, inits)
def test_any_network_that_is_its_own_base_keeps_its_topology(code: str, order: Order, init: Init) -> None:
    graph = dag_mlp_graph(code, order=order)
    for rule in RULES:
        assert plan_graph(graph, rule=rule, init=init, base_graph=graph).lr_scale == pytest.approx(1.0)


@given(dag_codes())
def test_constant_changes_nothing_at_any_width(code: str) -> None:
    plan = plan_graph(dag_mlp_graph(code, width=1024), rule="constant", base_graph=BASE)
    assert {parameter.lr_scale for parameter in plan.parameters} == {1.0}


@given(dag_codes())
def test_mup_is_blind_to_topology(code: str) -> None:
    plan = plan_graph(dag_mlp_graph(code, width=512), rule="mup", base_graph=BASE)
    chain = plan_graph(dag_mlp_graph("2", width=512), rule="mup", base_graph=BASE)
    assert plan.lr_scale == 1.0
    for parameter in plan.parameters:
        layer = parameter.name.split(".")[0]
        same = f"{'edges.0_1' if layer == 'edges' else layer}.{parameter.name.rpartition('.')[2]}"
        assert parameter.lr_scale == chain[same].lr_scale


def test_a_chain_of_the_same_kind_stands_behind_a_number() -> None:
    assert chain_like(dag_mlp_graph("2_22", width=64)) == dag_mlp_graph("2", width=256)
    assert chain_like(dag_cnn_graph("2_22", kernel_size=5)) == dag_cnn_graph("2", width=64, kernel_size=3)
    assert chain_like(nasbench201_graph("3_24_140")) == dag_cnn_graph("2", width=64, norm="batch")
    gelu = dag_mlp_graph("2_12", activation="gelu")
    assert chain_like(gelu) == dag_mlp_graph("2", activation="gelu")


# Width

WIDTHS = [64, 128, 256, 512, 1024, 2048]


@pytest.mark.parametrize("rule", ["weighted", "mup"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_width_factors_are_fan_out_over_fan_in_or_one_over_fan_in(optimizer: Optimizer, width: int, rule: str) -> None:
    """SGD: n/d, 1, classes/n for input, hidden, readout; Adam: the base's 256 units over d, n, n."""
    plan = plan_graph(
        dag_mlp_graph("2_22", width=width, inputs=784, classes=100), rule=rule, optimizer=optimizer, base_graph=BASE
    )
    expected = {"stem": width / 784, "edges": 1.0, "readout": 100 / width}
    if optimizer == "adam":
        expected = {"stem": 256 / 784, "edges": 256 / width, "readout": 256 / width}
    for parameter in plan.parameters:  # biases at their layer's rate
        layer = parameter.name.split(".")[0]
        assert parameter.lr_scale == pytest.approx(plan.lr_scale * expected[layer], rel=1e-12), parameter.name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_width_factors_of_convolutions_leave_the_kernel_to_its_own_factor(kernel: int, optimizer: Optimizer) -> None:
    plan = plan_graph(
        dag_cnn_graph("2", width=128, kernel_size=kernel), optimizer=optimizer, base_graph=dag_cnn_graph("2", width=64)
    )
    # The stem reads three colours, which count as an eighth of the base's 64 channels.
    expected = {"stem": 128 / 8, "edges": 1.0, "readout": 10 / 128}
    if optimizer == "adam":
        expected = {"stem": 64 / 8, "edges": 0.5, "readout": 0.5}
    for parameter in plan.parameters:
        layer = parameter.name.split(".")[0]
        assert parameter.lr_scale == pytest.approx(plan.lr_scale * expected[layer], rel=1e-12), parameter.name


def test_a_depthwise_convolution_gets_no_more_than_a_full_one() -> None:
    weight = Parameter("w", "weight", (64, 1, 3, 3), fan_in=9, fan_out=9, kernel_size=3.0, kernel_axes=2)
    assert groups(weight) == 64
    assert width_factor(1, 1, "hidden", 64, "adam", groups=64).value == width_factor(64, 64, "hidden", 64, "adam").value
    assert width_factor(1, 1, "hidden", 64, "sgd", groups=64).value == 1.0


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_the_base_s_width_is_nothing_to_sgd(optimizer: Optimizer) -> None:
    target = dag_mlp_graph("2_12", width=128)
    narrow, wide = (
        plan_graph(target, optimizer=optimizer, base_graph=dag_mlp_graph("2", width=width)) for width in (32, 1024)
    )
    assert [p.lr_scale for p in narrow.parameters] == pytest.approx([p.lr_scale for p in wide.parameters], rel=1e-9)


@dataclass(frozen=True)
class Searched:
    """What a plan looks at in a search."""

    best: float
    graph: Graph
    rule: str | None
    estimate: float | None = None


@pytest.mark.parametrize("searched", RULES)
@pytest.mark.parametrize("rule", RULES)
def test_a_base_searched_in_another_way_is_refused(searched: str, rule: str) -> None:
    base, layered = Searched(0.5, BASE, searched), ("weighted", "mup")
    if (searched in layered) == (rule in layered):
        assert plan_graph(BASE, rule=rule, base=base).base == 0.5
    else:
        with pytest.raises(InputError, match=rf"rule '{rule}' plans .*; search the base with plan=.*rule='{rule}'"):
            plan_graph(BASE, rule=rule, base=base)
    assert plan_graph(BASE, rule=rule, base=Searched(0.5, BASE, None, estimate=0.4)).base == 0.4


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_norms_train_at_the_network_s_own_rate(norm: Norm) -> None:
    plan = plan_graph(dag_mlp_graph("2_22", width=1024, norm=norm), base_graph=dag_mlp_graph("2", norm=norm))
    gains = [parameter for parameter in plan.parameters if parameter.name.startswith("norms")]
    assert len(gains) == 6
    for parameter in gains:
        assert parameter.lr_scale == pytest.approx(plan.lr_scale, rel=1e-12)
        assert (parameter.mean, parameter.std) == ((1.0, 0.0) if parameter.role == "gain" else (0.0, 0.0))


# Parameters


@given(dag_codes(), orders, inits, st.sampled_from(sorted(RULES)))
def test_every_parameter_is_planned_exactly_once(code: str, order: Order, init: Init, rule: str) -> None:
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
            Edge("x", "y", "weight", ("w",), fan_in=4),
            Edge("x", "z", "weight", ("dead", "dead bias"), fan_in=4),
        ],
        inputs="x",
        outputs="y",
        parameters=[
            Parameter("w", "weight", (2, 4), fan_in=4, fan_out=2),
            Parameter("dead", "weight", (2, 4), fan_in=4, fan_out=2, measured=0.5),
            Parameter("dead bias", "bias", (2,), fan_in=4, fan_out=2),
            Parameter("loose", "raw", (3,), measured=2.0),
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


def test_a_plan_is_read_by_name() -> None:
    plan = plan_graph(dag_mlp_graph("2"))
    assert plan["stem.weight"].name == "stem.weight"
    with pytest.raises(PlanError, match=r"no parameter 'stem.wieght'; it has 6, such as 'stem.weight'"):
        plan["stem.wieght"]


@pytest.mark.parametrize("base", [0.25, None])
def test_a_printed_plan_has_a_line_for_every_parameter_and_says_what_they_share_once(base: float | None) -> None:
    plan = plan_graph(dag_cnn_graph("2_12", norm="batch", image_size=8), base=base)
    head, shared, titles, *lines = str(plan).splitlines()
    for part in ("'weighted'", "'conserve'", "'sgd'", "factors only" if base is None else "0.25"):
        assert part in head
    for factor in plan.factors:
        assert f"{factor.name} {factor.value:.4g} ({factor.why})" in shared
    assert titles.split()[:4] == ["parameter", "shape", "std", "lr_scale" if base is None else "lr"]
    assert max(map(len, (head, shared, *lines))) <= 100
    for p, line in zip(plan.parameters, lines, strict=True):
        rate = p.lr_scale if base is None else base * p.lr_scale
        assert line.split()[:4] == [p.name, "x".join(map(str, p.shape)), f"{p.std:.4g}", f"{rate:.4g}"]
        assert ("width" in line) == ("width" in p.reason)
        assert ("starts at 1" in line) == (p.role == "gain")
        assert "topology" not in line
        assert "kernel" not in line
    assert str(Plan.from_json(plan.to_json())) == str(plan)


def test_a_printed_plan_shows_notes_and_what_is_kept() -> None:
    parameters = [Parameter("w", "weight", (4, 4)), Parameter("loose", "raw", (2,), measured=2.0, note="not used")]
    graph = Graph.build(
        [Vertex("x"), Vertex("y")],
        [Edge("x", "y", "weight", parameters=("w",), fan_in=4, fan_out=4)],
        inputs="x",
        outputs="y",
        parameters=parameters,
    )
    assert str(plan_graph(graph)).splitlines()[-1].split()[:3] == ["loose", "2", "kept"]
    assert str(plan_graph(graph)).endswith("  not used")


# Nothing to plan


def test_a_network_with_nothing_to_train_is_refused() -> None:
    ends = {"inputs": "x", "outputs": "y"}
    weight = Edge("x", "y", "weight", parameters=("w",))
    frozen = Graph.build(
        [Vertex("x"), Vertex("y")], [weight], parameters=[Parameter("w", "weight", trainable=False)], **ends
    )
    with pytest.raises(InputError, match=r"'w' and all else the network holds is fixed; call requires_grad_\(\)"):
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
        ({"optimizer": "adamw"}, ("optimizer is 'adamw'", "sgd, momentum, adam")),
        ({"base": "0.1"}, ("base is '0.1'", "learning rate")),
        ({"base": True}, ("base is True",)),
        ({"base": 0.0}, ("base learning rate is 0.0", "above 0")),
        ({"base": -0.1}, ("-0.1", "above 0")),
        ({"base": math.nan}, ("nan", "finite")),
        ({"base": math.inf}, ("inf", "finite")),
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

    target = dag_mlp_graph("2_22", width=128)
    plan = plan_graph(target, base=Search())
    same = plan_graph(target, base=0.3, base_graph=Search.graph)
    assert plan == same
    assert plan.base == 0.3


# The text


EXAMPLES: dict[str, Callable[[], Plan]] = {
    "mlp": lambda: plan_graph(dag_mlp_graph("2_12_112"), base=0.1),
    "cnn": lambda: plan_graph(dag_cnn_graph("2_12", norm="layer"), rule="paths", init="degree"),
    "cell": lambda: plan_graph(nasbench201_graph("3_24_140"), optimizer="adam"),
    "dense": lambda: plan_graph(dag_mlp_graph(reference.dense(40)), rule="mup", init="he"),
    "huge": lambda: plan_graph(residual(1000), rule="paths"),
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
    assert plan_graph(dag_mlp_graph("2"), base=np.float32(0.5)).base == 0.5  # type: ignore[arg-type]


@given(dag_codes(max_vertices=5), orders, inits, st.sampled_from(sorted(RULES)), st.sampled_from(OPTIMIZERS))
def test_any_plan_survives_its_text(code: str, order: Order, init: Init, rule: str, optimizer: Optimizer) -> None:
    plan = plan_graph(dag_mlp_graph(code, order=order), rule=rule, init=init, optimizer=optimizer)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no JSON"),
        ("hello", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("null", "NoneType"),
        ("[]", "list"),
        ("3", "int"),
        ("{}", "None"),
        ('{"format": "evenstep-plan/9"}', "evenstep-plan/9"),
        ('{"format": ["evenstep-plan/1"]}', "evenstep-plan/1"),
        ('{"format": "evenstep-plan/1"}', "damaged"),
        ('{"path_count": ' + "9" * 5000 + "}", "format is None"),
        (None, "no JSON"),
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
    **{f"{key} is a word": _set(key, "word") for key in KEYS if key != "rule"},  # a rule may be of one's own
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
    "a word for kept": _set("parameters", 0, "kept", "yes"),
    "a word for a factor": _set("factors", 0, "value", "2"),
    "a NaN for a factor": _set("factors", 0, "value", math.nan),
    "a factor without a value": _drop("factors", 0, "value"),
    "a word for a second moment": _set("vertices", 0, "second_moment", "1"),
    "a word for an in-degree": _set("vertices", 0, "in_degree", "1"),
    "an edge to nowhere": _set("graph", "edges", 0, "target", "nowhere"),
    "an unknown operator": _set("graph", "edges", 0, "op", "convolve"),
    "a cycle": lambda values: values["graph"]["edges"].append({"source": "1", "target": "0", "op": "identity"}),
    "a word for an edge's depth": _set("graph", "edges", 0, "depth", "one"),
    "no number for an edge's gain": _set("graph", "edges", 0, "gain", None),
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
