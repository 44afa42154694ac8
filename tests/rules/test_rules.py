"""Check the rules against their literal formulas, and the factors of width."""

import json
import math
import statistics
from dataclasses import dataclass
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import InputError
from evenstep.graph import Graph, dag_cnn_graph, dag_mlp_graph, nasbench201_graph
from evenstep.graph.networks import NormKind, Order
from evenstep.init import Conserve, Network
from evenstep.planning import Plan, chain_like, plan_graph
from evenstep.rules import RULES, Optimizer, Paths, Weighted
from evenstep.rules.layers import Layer
from evenstep.rules.width import width_factor
from evenstep.signal import walk_statistics
from evenstep_research.study.codes import branches_code
from tests import reference
from tests.strategies import INITS, ORDERS, dag_codes, inits, orders

OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "momentum", "adam")
BASE = dag_mlp_graph("2")
DECAY = Weighted().batch_norm_depth_decay


def factor(plan: Plan, name: str) -> float:
    (found,) = [factor.value for factor in plan.factors if factor.name == name]
    return found


def width_factors(plan: Plan, base_width: int) -> list[float]:
    """Return every parameter's factor of `spectral` by its layer's weight [out, in, kernel...], 1 for norms.

    SGD: out/in; Adam: the base's hidden width over in; a stem reads an eighth of the base's width at least.
    """
    shapes = {p.name.rpartition(".")[0]: p.shape for p in plan.parameters if p.role == "weight"}
    found = []
    for p in plan.parameters:
        writes, read = shapes.get(p.name.rpartition(".")[0], (1, 1))[:2]
        reads = max(read, base_width / 8) if p.name.startswith("stem") else read
        own = base_width / reads if plan.optimizer_name == "adam" else writes / reads
        found.append(1.0 if p.name.startswith("norms") else own)
    return found


def even_steps(plan: Plan) -> dict[str, float]:
    """Return the factor of `weighted` of every weight and gain at the base's width, from what was drawn.

    Adam: the standard deviation; SGD: fan_in var(W) sqrt(out/in), where a stem reads all its kernel's taps; over the
    geometric mean of hidden weights of fan_in var(W) = 1. Readouts count as torch draws linear layers, gains have 1. A
    readout of averages over all positions of an image has ten times the variance.
    """
    steps, usual = {}, []
    for p in plan.parameters:
        if p.role == "weight":
            fan_in = math.prod(p.shape[1:])
            ratio = math.sqrt(p.shape[0] / (fan_in if p.name.startswith("stem") else p.shape[1]))
            std = p.std
            if plan.init != "conserve" and p.name.startswith("readout"):
                std = math.sqrt((10 if plan.graph.convolutions else 1) / (3 * fan_in))
            steps[p.name] = std if plan.optimizer_name == "adam" else fan_in * std**2 * ratio
            if p.name.startswith("edges"):
                usual.append(fan_in**-0.5 if plan.optimizer_name == "adam" else ratio)
    unit = statistics.geometric_mean(usual)
    return {p.name: steps[p.name] / unit if p.name in steps else 1.0 for p in plan.parameters if p.role != "bias"}


def test_what_an_average_leaves_is_as_recorded() -> None:
    record = json.loads((Path(__file__).parents[2] / "results" / "averages" / "record.json").read_text())
    measured = [one["mean"] for one in record["results"]["networks"]]
    assert pytest.approx(statistics.median(measured), rel=0.25) == Conserve().pooled_variance_floor


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


def test_paths_of_numbers_too_large_for_a_float() -> None:
    blocks = 1200
    plan = plan_graph(reference.residual(blocks), rule="paths", base_graph=BASE)
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
    assert "no path has an activation" in plan.factors[0].why


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
def test_weighted_equals_the_listed_fields_on_every_live_four_vertex_code(init: str) -> None:
    checked = 0
    for code in reference.dag_codes(4):
        if reference.dag_depths(code):
            found = Weighted().score(Network.of(dag_mlp_graph(code), init))
            assert found == pytest.approx(math.sqrt(reference.weighted_score(code, init=init)), rel=1e-5), code
            checked += 1
    assert checked > 500


@given(dag_codes(), st.sampled_from(("he", "degree")), st.floats(0, 3), st.floats(0, 1))
def test_weighted_equals_the_listed_fields_for_other_constants(code: str, init: str, a: float, weight: float) -> None:
    rule = Weighted(depth_offset=a, moment_weight=weight)
    found = rule.score(Network.of(dag_mlp_graph(code), init))
    expected = math.sqrt(reference.weighted_score(code, init=init, a=a, weight=weight))
    assert found == pytest.approx(expected, rel=1e-5)


@given(dag_codes(), st.sampled_from(("he", "degree")))
def test_weighted_scales_by_the_root_of_the_ratio(code: str, init: str) -> None:
    plan = plan_graph(dag_mlp_graph(code), init=init, base_graph=BASE)
    usual = 2.0 if init == "he" else 1.0  # the base's second moment: he doubles it in the stem
    ratio = reference.weighted_score("2", init=init, usual=usual) / reference.weighted_score(
        code, init=init, usual=usual
    )
    assert plan.lr_scale == pytest.approx(math.sqrt(ratio), rel=1e-5)


def test_weighted_counts_every_path_of_he_nets_without_skips_alike() -> None:
    # There every path carries the stem's 2, and no field meets itself. Adam: pairs of paths do not count.
    depths = reference.dag_depths(reference.dense(5))
    cubes, size = sum((depth + 2) ** 3 for depth in depths) / len(depths), (1 + 0.35 * 2 * len(depths)) / 1.35
    found = Weighted().score(Network.of(dag_mlp_graph(reference.dense(5)), "he"), optimizer="adam")
    assert found == pytest.approx(cubes**0.4 * size**0.25, rel=1e-5)


def test_parallel_branches_share_the_less_the_more_there_are() -> None:
    # Each branch of n weights carries 1/k of the signal, so two walks take the same one once in k times.
    for k, n in ((1, 4), (2, 4), (4, 4), (8, 2)):
        network = Network.of(dag_mlp_graph(branches_code(k, n)), "conserve")
        (head,) = network.roles.heads
        ((back,),) = walk_statistics(network.signal, [head.vertex], kernel_lengths=[1.0], batch_norm_decay=DECAY)
        assert back.shared == pytest.approx(n / k, rel=1e-4)
        assert Weighted().score(network) ** 2 == pytest.approx((n + 3) ** 2 * (n / k + 3), rel=1e-4)


def test_copies_of_one_field_count_by_the_square_of_their_number() -> None:
    # Vertices 1 to 3 pass the stem's field on; vertex 4 gets it four times: 16 copies in mean square, depth 1.
    network = Network.of(dag_mlp_graph("1_10_100_1111"), "degree")
    at = network.signal.vertices["4"]
    assert at.copies == pytest.approx(16.0)
    assert at.second_moment == pytest.approx(16.0)
    assert Weighted().score(network) ** 2 == pytest.approx(3**3 * 16)


def test_conserve_undoes_growth_which_costs_nothing_then() -> None:
    network = Network.of(dag_mlp_graph("1_10_100_1111"), "conserve")
    assert network.signal.vertices["4"].copies == pytest.approx(16.0)
    assert Weighted().score(network) ** 2 == pytest.approx(3**3)


def test_a_norm_ends_copies_and_size() -> None:
    network = Network.of(dag_mlp_graph("1_10_100_1111", norm="batch"), "degree")
    assert network.signal.vertices["4.norm"].copies == pytest.approx(1.0)
    assert Weighted().score(network) ** 2 == pytest.approx(3**3)


@pytest.mark.parametrize("depth", [1, 2, 5, 20])
def test_chains_fall_with_the_cube_of_depth_in_both_orders(depth: int) -> None:
    for order in ORDERS:
        for init in ("conserve", "degree"):
            score = Weighted().score(Network.of(dag_mlp_graph(reference.chain(depth), order=order), init))
            assert score**2 == pytest.approx((depth + 1 + 2) ** 3, rel=1e-4)


def test_behind_a_norm_paths_count_by_their_share() -> None:
    # z_2 = z_0 + W relu(norm(z_0)): with he the weight brings 1 beside the stem's 2, so shares 2/3 and 1/3.
    graph = dag_mlp_graph("2_11", norm="batch")  # 0 -weight-> 1; 2 sums both by skips
    network = Network.of(graph, "he")
    vertices = network.signal.vertices
    assert (vertices["2"].second_moment, vertices["2.norm"].second_moment) == pytest.approx((3.0, 1.0), rel=1e-5)
    ((before, after),) = walk_statistics(network.signal, ["2", "2.norm"], kernel_lengths=[1.0], batch_norm_decay=DECAY)
    assert (before.m1, before.m2, before.m3) == pytest.approx((1 / 3, 1 / 3, 1 / 3), rel=1e-5)
    assert (after.m1, after.m2, after.m3) == pytest.approx([DECAY**k / 3 for k in (1, 2, 3)], rel=1e-5)


@pytest.mark.parametrize("depth", [1, 4, 20])
def test_length_fades_behind_batch_norms_and_behind_no_others(depth: int) -> None:
    code, length = reference.chain(depth), 0.0
    for _ in range(depth):  # norm, activation and weight, over and over; then the last norm, activation and readout
        length = DECAY * length + 1
    faded = Weighted().score(Network.of(dag_mlp_graph(code, norm="batch"), "degree"))
    assert faded**2 == pytest.approx((DECAY * length + 1 + 2) ** 3, rel=1e-4)
    kept = Weighted().score(Network.of(dag_mlp_graph(code, norm="layer"), "degree"))
    assert kept**2 == pytest.approx((depth + 1 + 2) ** 3, rel=1e-4)


def test_behind_a_norm_parallel_branches_share_all() -> None:
    for k, n in ((1, 4), (2, 4), (8, 2)):
        network = Network.of(dag_mlp_graph(branches_code(k, n), norm="layer"), "conserve")
        (head,) = network.roles.heads
        ((back,),) = walk_statistics(network.signal, [head.vertex], kernel_lengths=[1.0], batch_norm_decay=DECAY)
        assert back.shared == pytest.approx(n, rel=1e-4)
        assert Weighted().score(network) ** 2 == pytest.approx((n + 3) ** 3, rel=1e-4)


@given(dag_codes(), st.sampled_from(("he", "degree")))
def test_adam_feels_depth_less_and_size_half_as_much(code: str, init: str) -> None:
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

KINDS: tuple[tuple[Order, NormKind], ...] = (("pre", "none"), ("post", "none"), ("pre", "batch"))
BASES = {f"mlp {order} {norm}": dag_mlp_graph("2", order=order, norm=norm) for order, norm in KINDS} | {
    f"cnn {order} {norm}": dag_cnn_graph("2", order=order, norm=norm) for order, norm in KINDS
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("base", BASES.values(), ids=list(BASES))
def test_the_base_trains_at_its_own_rate(base: Graph, rule: str, init: str, optimizer: Optimizer) -> None:
    """Its topology factor is one; what is left is its layers' own, and nothing for rules of one rate."""
    for plan in (
        plan_graph(base, rule=rule, init=init, optimizer=optimizer),  # against the chain behind a bare number
        plan_graph(base, rule=rule, init=init, optimizer=optimizer, base_graph=base),
    ):
        assert plan.lr_scale == pytest.approx(1.0, rel=1e-9)
        if rule == "weighted":
            expected = even_steps(plan)
            assert {name: plan[name].lr_scale for name in expected} == pytest.approx(expected, rel=1e-9)
            continue
        factors = width_factors(plan, 64 if base.convolutions else 256)
        factors = factors if rule == "spectral" else [1.0] * len(plan.parameters)
        assert [p.lr_scale for p in plan.parameters] == pytest.approx(factors, rel=1e-9)


@given(dag_codes(), orders, inits)
def test_any_network_that_is_its_own_base_keeps_its_topology(code: str, order: Order, init: str) -> None:
    graph = dag_mlp_graph(code, order=order)
    for rule in RULES:
        assert plan_graph(graph, rule=rule, init=init, base_graph=graph).lr_scale == pytest.approx(1.0)


@given(dag_codes())
def test_constant_changes_nothing_at_any_width(code: str) -> None:
    plan = plan_graph(dag_mlp_graph(code, width=1024), rule="constant", base_graph=BASE)
    assert {parameter.lr_scale for parameter in plan.parameters} == {1.0}


@pytest.mark.parametrize("rule", ["mup", "spectral"])
@given(code=dag_codes())
def test_rules_of_width_are_blind_to_topology(rule: str, code: str) -> None:
    plan = plan_graph(dag_mlp_graph(code, width=512), rule=rule, base_graph=BASE)
    chain = plan_graph(dag_mlp_graph("2", width=512), rule=rule, base_graph=BASE)
    assert plan.lr_scale == 1.0
    for parameter in plan.parameters:
        layer = parameter.name.split(".")[0]
        same = f"{'edges.0_1' if layer == 'edges' else layer}.{parameter.name.rpartition('.')[2]}"
        assert parameter.lr_scale == pytest.approx(chain[same].lr_scale, rel=1e-12)


def test_a_chain_of_the_same_kind_stands_behind_a_number() -> None:
    assert chain_like(dag_mlp_graph("2_22", width=64)) == dag_mlp_graph("2", width=256)
    assert chain_like(dag_cnn_graph("2_22", kernel_size=5)) == dag_cnn_graph("2", width=64, kernel_size=3)
    assert chain_like(nasbench201_graph("3_24_140")) == dag_cnn_graph("2", width=64, norm="batch")
    gelu = dag_mlp_graph("2_12", activation="gelu")
    assert chain_like(gelu) == dag_mlp_graph("2", activation="gelu")


# Width

WIDTHS = [64, 128, 256, 512, 1024, 2048]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_spectral_is_fan_out_over_fan_in_or_one_over_fan_in(optimizer: Optimizer, width: int) -> None:
    """SGD: n/d, 1, classes/n for input, hidden, readout; Adam: the base's 256 units over d, n, n."""
    plan = plan_graph(
        dag_mlp_graph("2_22", width=width, inputs=784, classes=100),
        rule="spectral",
        optimizer=optimizer,
        base_graph=BASE,
    )
    expected = {"stem": width / 784, "edges": 1.0, "readout": 100 / width}
    if optimizer == "adam":
        expected = {"stem": 256 / 784, "edges": 256 / width, "readout": 256 / width}
    for parameter in plan.parameters:  # biases at their layer's rate
        layer = parameter.name.split(".")[0]
        assert parameter.lr_scale == pytest.approx(plan.lr_scale * expected[layer], rel=1e-12), parameter.name


@pytest.mark.parametrize("width", [256, 512, 1024, 2048])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weighted_compares_a_layer_with_the_same_one_of_the_base_as_mup_does(optimizer: Optimizer, width: int) -> None:
    """From one width to another rates change by muP's factors, whatever layers of one network are to each other."""
    wide, base = (
        plan_graph(dag_mlp_graph("2_22", width=n), optimizer=optimizer, base_graph=dag_mlp_graph("2_22", width=256))
        for n in (width, 256)
    )
    powers = {"stem": 1, "edges": 0, "readout": -1} if optimizer != "adam" else {"stem": 0, "edges": -1, "readout": -1}
    for one, other in zip(wide.parameters, base.parameters, strict=True):
        power: float = powers[one.name.split(".")[0]] if one.role == "weight" else 0
        assert one.lr_scale == pytest.approx(other.lr_scale * (width / 256) ** power, rel=1e-9), one.name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_factor_of_width_is_listed_where_it_changes_a_rate(optimizer: Optimizer) -> None:
    layers = {"stem.weight", "edges.0_1.weight", "readout.weight"}
    for width, expected in ((256, set()), (512, layers if optimizer == "adam" else layers - {"edges.0_1.weight"})):
        plan = plan_graph(dag_mlp_graph("2", width=width), optimizer=optimizer, base_graph=BASE)
        assert {p.name for p in plan.parameters if "width" in [factor.name for factor in p.factors]} == expected


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("init", "one", "of_two"), [("he", 2.0, 2.0), ("degree", 1.0, 0.5), ("conserve", 1.0, 0.5)])
def test_a_bias_goes_with_the_size_of_what_it_is_added_to(
    init: str, one: float, of_two: float, optimizer: Optimizer
) -> None:
    """With `he` every weight makes second moment 2, else 1 over the weights that meet; outputs count as a third."""
    graph = dag_mlp_graph("2_22")
    plan = plan_graph(graph, init=init, optimizer=optimizer, base_graph=graph)
    sizes = {"stem": one, "edges.0_1": one, "edges.0_2": of_two, "edges.1_2": of_two, "readout": 1 / 3}
    power = 0.5 if optimizer == "adam" else 1.0
    found = {p.name: p.lr_scale for p in plan.parameters if p.role == "bias"}
    assert found == pytest.approx({f"{layer}.bias": size**power for layer, size in sizes.items()}, rel=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_layers_own_factors_leave_the_kernel_to_its_own_factor(kernel: int, optimizer: Optimizer) -> None:
    base = dag_cnn_graph("2", width=64, kernel_size=kernel)
    plan = plan_graph(base, optimizer=optimizer, base_graph=base)
    expected = even_steps(plan)
    assert {name: plan[name].lr_scale for name in expected} == pytest.approx(expected, rel=1e-9)
    size = math.prod(plan["edges.0_1.weight"].shape[1:]) * plan["edges.0_1.weight"].std ** 2  # 2 but for padding
    assert plan["edges.0_1.weight"].lr_scale == pytest.approx(size**0.5 if optimizer == "adam" else size)


def test_a_depthwise_convolution_gets_no_more_than_a_full_one() -> None:
    depthwise, full = Layer("hidden", 1.0, 1.0, 64), Layer("hidden", 64.0, 64.0, 1)
    factors = [width_factor(layer, 64, "adam", floor=1 / 8).value for layer in (depthwise, full)]
    assert factors[0] == factors[1]
    assert width_factor(depthwise, 64, "sgd", floor=1 / 8).value == 1.0


@dataclass(frozen=True)
class Searched:
    """What a plan looks at in a search."""

    best: float
    graph: Graph
    rule: str | None
    estimate: float | None = None
    optimizer: str = "sgd"

    @property
    def rate(self) -> float:
        return self.best if self.estimate is None else self.estimate


@pytest.mark.parametrize("searched", RULES)
@pytest.mark.parametrize("rule", RULES)
def test_a_base_searched_in_another_way_is_refused(searched: str, rule: str) -> None:
    base, layered = Searched(0.5, BASE, searched), ("weighted", "spectral")
    if (searched in layered) == (rule in layered):
        assert plan_graph(BASE, rule=rule, base=base).base == 0.5
    else:
        with pytest.raises(InputError, match=rf"rule '{rule}' needs .*; search the base with plan=.*rule='{rule}'"):
            plan_graph(BASE, rule=rule, base=base)
    assert plan_graph(BASE, rule=rule, base=Searched(0.5, BASE, None, estimate=0.4)).base == 0.4


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_norms_train_at_the_network_s_own_rate(norm: NormKind) -> None:
    plan = plan_graph(dag_mlp_graph("2_22", width=1024, norm=norm), base_graph=dag_mlp_graph("2", norm=norm))
    gains = [parameter for parameter in plan.parameters if parameter.name.startswith("norms")]
    assert len(gains) == 6
    for parameter in gains:
        assert parameter.lr_scale == pytest.approx(plan.lr_scale, rel=1e-12)
        assert (parameter.mean, parameter.std) == ((1.0, 0.0) if parameter.role == "gain" else (0.0, 0.0))
