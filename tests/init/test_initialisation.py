"""Check the initialisations against the paper's formula, closed forms and small sums by hand."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import evenstep as es
from evenstep.errors import InputError
from evenstep.graph import Edge, Graph, Parameter, Vertex, dag_cnn_graph, dag_mlp_graph
from evenstep.graph.activations import gain
from evenstep.graph.networks import Order
from evenstep.graph.operators import Activation, Gate, Operator, Weight
from evenstep.graph.residual import residuals
from evenstep.init import Conserve, InitialWeights, Network
from evenstep.planning import plan_graph
from tests import reference
from tests.strategies import INITS, ORDERS, dag_codes, inits, orders

WIDTH, INPUTS = 48, 20


def initialise(graph: Graph, init: str) -> InitialWeights:
    return Network.of(graph, init).weights


def initialised(code: str, order: Order, init: str) -> InitialWeights:
    return initialise(dag_mlp_graph(code, width=WIDTH, inputs=INPUTS, order=order), init)


def second_moments(found: InitialWeights) -> dict[str, float]:
    return {name: signal.second_moment for name, signal in found.signal.vertices.items()}


# The paper's formula


@given(dag_codes(), orders)
def test_degree_is_the_paper_s_formula(code: str, order: Order) -> None:
    expected = reference.paper_std(code, order=order, width=WIDTH, inputs=INPUTS)
    # The numerical gain of the ReLU stands in for the 2.
    assert dict(initialised(code, order, "degree").std) == pytest.approx(expected, rel=1e-6)


def test_degree_of_every_live_four_vertex_code() -> None:
    checked = 0
    for code in reference.dag_codes(4):
        if reference.dag_depths(code):
            for order in ORDERS:
                expected = reference.paper_std(code, order=order, width=WIDTH, inputs=INPUTS)
                assert dict(initialised(code, order, "degree").std) == pytest.approx(expected, rel=1e-6), code
            checked += 1
    assert checked > 500


@given(dag_codes(), st.sampled_from(("gelu", "tanh", "leaky_relu:0.2")))
def test_degree_undoes_another_activation_s_own_gain(code: str, activation: str) -> None:
    relu = initialise(dag_mlp_graph(code, width=WIDTH, inputs=INPUTS), "degree").std
    other = initialise(dag_mlp_graph(code, width=WIDTH, inputs=INPUTS, activation=activation), "degree").std
    for name in relu:
        factor = math.sqrt(0.5 / gain(activation)) if name.startswith("edges") else 1.0
        assert other[name] == pytest.approx(factor * relu[name], rel=1e-6)


@given(dag_codes(), orders)
def test_he_is_two_over_fan_in_and_a_mean_field_readout(code: str, order: Order) -> None:
    for name, std in initialised(code, order, "he").std.items():
        if name == "readout.weight":
            assert std == pytest.approx(1 / WIDTH)
        else:
            assert std == pytest.approx(math.sqrt(2 / (INPUTS if name == "stem.weight" else WIDTH)))


def test_fan_in_counts_the_taps_of_a_kernel() -> None:
    found = initialise(dag_cnn_graph("2", width=8, channels=3, kernel_size=5), "he").std
    assert found["stem.weight"] == pytest.approx(math.sqrt(2 / (3 * 25)))
    assert found["edges.0_1.weight"] == pytest.approx(math.sqrt(2 / (8 * 25)))
    assert found["readout.weight"] == pytest.approx(1 / 8)


# Conserve


@given(dag_codes(digits="02"))
def test_conserve_is_the_paper_s_formula_where_all_edges_are_weights_of_order_pre(code: str) -> None:
    code = code.replace("1", "2")
    found = initialised(code, "pre", "conserve")
    expected = reference.paper_std(code, order="pre", width=WIDTH, inputs=INPUTS)
    expected["readout.weight"] = math.sqrt(1 / 3 / WIDTH)  # as torch draws a linear layer
    assert dict(found.std) == pytest.approx(expected, rel=1e-5)


@given(dag_codes(digits="02"))
def test_conserve_of_order_post_accounts_for_the_means_of_rectified_sums(code: str) -> None:
    """Solve d v / 2 + d (d - 1) v / (2 pi) = 1: d rectified fields of variance v, each pair correlated by its means."""
    code = code.replace("1", "2")
    found = initialised(code, "post", "conserve")
    degrees = reference.live_in_degrees(code)

    def variance(degree: int) -> float:
        return 1.0 / (degree / 2 + degree * (degree - 1) / (2 * math.pi))

    expected = {
        f"edges.{source}_{target}.weight": math.sqrt(variance(degrees[target]) / WIDTH)
        for source, target, _ in reference.live_edges(code)
    }
    expected["stem.weight"] = math.sqrt(2.0 / INPUTS)
    expected["readout.weight"] = math.sqrt(1 / 3 / WIDTH)
    assert dict(found.std) == pytest.approx(expected, rel=1e-5)


@given(dag_codes(), orders)
def test_conserve_gives_one_wherever_no_skip_ends_and_never_less(code: str, order: Order) -> None:
    graph = dag_mlp_graph(code, width=WIDTH, inputs=INPUTS, order=order)
    moments = second_moments(Network.of(graph, Conserve(branch_power=0.0)).weights)
    ends = {target for _, target, op in reference.live_edges(code) if op == "skip"}
    starts = {source for source, _, op in reference.live_edges(code) if op == "skip"}
    in_streams = second_moments(initialised(code, order, "conserve"))
    for vertex in reference.live_in_degrees(code):
        moment = in_streams[str(vertex)]
        assert moment <= moments[str(vertex)] * (1 + 1e-6)  # branches of streams are smaller
        if vertex in ends:
            assert moments[str(vertex)] >= 1.0 - 1e-6
        else:
            assert moments[str(vertex)] == pytest.approx(1.0, rel=1e-6)
            assert vertex in starts or moment == pytest.approx(1.0, rel=1e-6)  # a branch may end where a skip starts


def test_conserve_adds_a_weight_s_part_by_number_to_what_skips_bring() -> None:
    # A skip brings 1, and the weight beside it half. Vertex 4's skip comes from vertex 2: their stream has two
    # additions, of a quarter each; vertex 3's skip comes from vertex 1.
    moments = second_moments(initialised("2_12_012_0012", "pre", "conserve"))
    assert [moments[vertex] for vertex in "01234"] == pytest.approx([1.0, 1.0, 1.25, 1.5, 1.5], rel=1e-6)


@given(dag_codes(max_vertices=5), orders)
def test_conserve_s_readout_shows_what_a_unit_vertex_would(code: str, order: Order) -> None:
    # A third of what it reads: half of one after the last ReLU of order pre, one in order post.
    output = second_moments(initialised(code, order, "conserve"))["output"]
    assert output == pytest.approx((0.5 if order == "pre" else 1.0) / 3, rel=1e-5)


@pytest.mark.parametrize("width", [64, 256, 1024])
def test_a_wider_readout_than_the_base_s_starts_smaller_as_in_mup(width: int) -> None:
    # torch's own start up to the base's width, and from there 1/fan_in.
    base = dag_mlp_graph("2", width=256)
    plan = plan_graph(dag_mlp_graph("2", width=width), base_graph=base)
    own = math.sqrt(1 / 3 / width)
    expected = own if width <= 256 else math.sqrt(1 / 3 / 256) * 256 / width
    assert plan["readout.weight"].std == pytest.approx(expected)
    wider_base = plan_graph(dag_mlp_graph("2", width=width), base_graph=dag_mlp_graph("2", width=4096))
    assert wider_base["readout.weight"].std == pytest.approx(own)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("side", [8, 32])
def test_a_readout_of_averages_starts_alike_at_any_image_size(side: int, order: Order) -> None:
    # In order post what is averaged has a mean, which no average takes away. A tenth is what tells examples apart.
    graph = dag_cnn_graph("2", width=64, image_size=side, order=order)
    assert initialise(graph, "conserve").std["readout.weight"] * 192**0.5 == pytest.approx(10**0.5, rel=1e-6)


def test_a_readout_makes_up_for_a_head_that_has_grown() -> None:
    # Vertex 2 carries 1.5 (a skip's 1 and half of a weight's), rectified and averaged like a unit one.
    graph = dag_cnn_graph("2_12", width=64, image_size=8)
    found = initialise(graph, "conserve").std["readout.weight"]
    assert found * 192**0.5 == pytest.approx((10 / 1.5) ** 0.5, rel=1e-6)


# Streams and their branches


def stream(blocks: int, *, end: Callable[[int], tuple[Operator, ...]] = lambda _: ()) -> Graph:
    """Return a residual network: x -stem-> s0, then s_k+1 = s_k + end(W relu(s_k)), and a readout."""
    edges = [Edge("x", "s0", (Weight(8, fan_out=8),), ("stem",))]
    parameters = [Parameter("stem", "weight", (8, 8), fan_in=8, fan_out=8)]
    for k in range(blocks):
        edges.append(Edge(f"s{k}", f"s{k + 1}", (Activation("relu"), Weight(8, fan_out=8), *end(k)), (f"w{k}",)))
        edges.append(Edge(f"s{k}", f"s{k + 1}"))
        parameters.append(Parameter(f"w{k}", "weight", (8, 8), fan_in=8, fan_out=8))
    edges.append(Edge(f"s{blocks}", "y", (Weight(8, fan_out=2),), ("out",)))
    parameters.append(Parameter("out", "weight", (2, 8), fan_in=8, fan_out=2))
    names = ["x", *(f"s{k}" for k in range(blocks + 1)), "y"]
    return Graph.build(map(Vertex, names), edges, inputs="x", outputs="y", parameters=parameters)


@pytest.mark.parametrize("blocks", [1, 2, 7, 40])
def test_all_branches_of_a_stream_add_what_one_would(blocks: int) -> None:
    moments = second_moments(Network.of(stream(blocks)).weights)
    expected = {f"s{k}": 1 + 0.5 * k / blocks for k in range(blocks + 1)}
    assert {name: moments[name] for name in expected} == pytest.approx(expected)
    as_before = second_moments(Network.of(stream(blocks), Conserve(branch_power=0.0)).weights)
    assert as_before[f"s{blocks}"] == pytest.approx(1 + 0.5 * blocks)


def test_a_branch_that_a_trained_factor_makes_small_is_not_made_smaller() -> None:
    """Of four blocks, each is allowed half its amplitude; a factor below that, or just above, leaves less to do."""
    factors = (1e-6, 0.2, 0.8, 1.0)
    network = Network.of(stream(4, end=lambda k: (Gate(factors[k]),)))
    assert dict(network.branch_scales) == pytest.approx({"w0": 1.0, "w1": 1.0, "w2": 0.5 / 0.8, "w3": 0.5})
    opened = Network.of(stream(4)).weights.std  # weights are drawn for open gates
    assert network.weights.std["w0"] == pytest.approx(2 * opened["w0"])


class Blocks(nn.Module):
    """Sixteen pre-norm blocks, joined to the stream by a function of stream and branch."""

    def __init__(
        self, join: Callable[[Tensor, Tensor], Tensor], *, shared: bool = False, squeezed: bool = False
    ) -> None:
        super().__init__()
        self.join, self.count = join, 16
        self.stem, self.readout = nn.Linear(8, 64), nn.Linear(64, 3)
        made = 1 if shared else self.count
        self.ups = nn.ModuleList(nn.Linear(64, 64) for _ in range(made))
        self.downs = nn.ModuleList(nn.Linear(64, 64) for _ in range(made))
        self.squeezes = nn.ModuleList(nn.Linear(64, 64) for _ in range(made)) if squeezed else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the readout of the stream."""
        stream = self.stem(x)
        for k in range(self.count):
            k %= len(self.ups)
            branch = self.downs[k](torch.relu(self.ups[k](nn.functional.layer_norm(stream, (64,)))))
            if self.squeezes is not None:
                branch = branch * torch.sigmoid(self.squeezes[k](branch))
            stream = self.join(stream, branch)
        logits: Tensor = self.readout(stream)
        return logits


def grown(model: nn.Module) -> float:
    """Return the second moment of what the readout reads, over that of the first block's stream, as it is drawn."""
    plan = es.plan(model, torch.zeros(4, 8), measure=False)
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    read: list[float] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        read.append(float(inputs[0].square().mean()))

    handle = model.readout.register_forward_pre_hook(note)  # type: ignore[union-attr]
    with torch.no_grad():
        x = torch.randn(2048, 8, generator=torch.Generator().manual_seed(1))
        model(x)
        start = float(model.stem(x).square().mean())  # type: ignore[operator]
    handle.remove()
    return read[0] / start


@pytest.mark.parametrize(
    ("join", "low", "high"),
    [
        (lambda stream, branch: stream + branch, 1.3, 1.9),  # half of one
        (lambda stream, branch: (stream + branch) / math.sqrt(2), 0.35, 0.8),  # as without streams
        (lambda stream, branch: math.sqrt(0.5) * stream + math.sqrt(0.5) * branch, 0.7, 1.3),  # keeps its size
        (lambda stream, branch: stream + branch / 4, 1.6, 2.5),  # the module's own sixteenth each
        (lambda stream, branch: 0.8 * stream + 0.6 * branch, 0.7, 1.3),
    ],
)
def test_streams_keep_their_size_however_branches_are_added(
    join: Callable[[Tensor, Tensor], Tensor], low: float, high: float
) -> None:
    assert low < grown(Blocks(join)) < high


def test_one_block_used_again_and_again_adds_up_in_amplitude() -> None:
    assert 1.1 < grown(Blocks(torch.add, shared=True)) < 2.5


def test_a_branch_that_sets_its_own_factor_is_a_branch() -> None:
    graph = es.trace(Blocks(torch.add, squeezed=True), torch.zeros(2, 8))
    found = residuals(graph)
    assert len(found.sums) == len(found.ends) == 16
    assert set(found.blocked.values()) == {"a signal that sets its own factor"}  # for rules that multiply exactly
    assert {joined.additions for joined in found.ends.values()} == {16}
    assert grown(Blocks(torch.add, squeezed=True)) < 1.6
    with pytest.raises(InputError, match="sets its own factor"):
        plan_graph(graph, rule="completep", base_graph=stream(2))


def test_additions_inside_a_branch_are_a_stream_of_their_own() -> None:
    edges = [Edge("x", "s0", (Weight(8, fan_out=8),), ("stem",))]
    for k in range(3):
        edges += [
            Edge(f"s{k}", f"i{k}", (Activation("relu"), Weight(8, fan_out=8)), (f"in{k}",)),
            Edge(f"i{k}", f"j{k}", (Activation("relu"), Weight(8, fan_out=8)), (f"inner{k}",)),
            Edge(f"i{k}", f"j{k}"),
            Edge(f"j{k}", f"s{k + 1}", (Activation("relu"), Weight(8, fan_out=8)), (f"out{k}",)),
            Edge(f"s{k}", f"s{k + 1}"),
        ]
    edges.append(Edge("s3", "y", (Weight(8, fan_out=2),), ("readout",)))
    names = ["x", "s0", *(f"{kind}{k + (kind == 's')}" for k in range(3) for kind in "ijs"), "y"]
    parameters = [
        Parameter(edge.parameters[0], "weight", (8, 8), fan_in=8, fan_out=8) for edge in edges if edge.parameters
    ]
    network = Network.of(Graph.build(map(Vertex, names), edges, inputs="x", outputs="y", parameters=parameters))
    expected = {f"inner{k}": 1.0 for k in range(3)} | {f"out{k}": 3**-0.5 for k in range(3)}
    assert dict(network.branch_scales) == pytest.approx(expected)


def test_a_stream_s_additions_are_counted_along_it() -> None:
    """Two towers side by side, of two and three blocks: neither counts the other's."""
    two, three = stream(2), stream(3)

    def renamed(graph: Graph, by: str) -> tuple[list[Edge], list[Parameter]]:
        edges = [
            replace(e, source=by + e.source, target=by + e.target, parameters=tuple(by + n for n in e.parameters))
            for e in graph.edges
        ]
        return edges, [replace(p, name=by + p.name) for p in graph.parameters]

    (edges, parameters), (more, more_parameters) = renamed(two, "a."), renamed(three, "b.")
    last = [Edge("a.y", "y"), Edge("b.y", "y")]
    names = [f"a.{v.name}" for v in two.vertices] + [f"b.{v.name}" for v in three.vertices] + ["y"]
    both = Graph.build(
        map(Vertex, names),
        [*edges, *more, *last],
        inputs=("a.x", "b.x"),
        outputs="y",
        parameters=[*parameters, *more_parameters],
    )
    found = residuals(both)
    assert sorted(found.sums) == ["a.s1", "a.s2", "b.s1", "b.s2", "b.s3"]
    additions = {both.edges[edge_index].target: joined.additions for edge_index, joined in found.ends.items()}
    assert additions == {"a.s1": 2, "a.s2": 2, "b.s1": 3, "b.s2": 3, "b.s3": 3}
    assert all(joined.carried == 1.0 for joined in found.ends.values())


def test_a_branch_beside_a_weight_shares_the_sum_with_it() -> None:
    """With a weight on the shortcut nothing has to grow, but the additions after it count."""
    graph = stream(3)
    shortcut = next(edge for edge in graph.edges if edge.target == "s2" and edge.weight is None)
    two_layers = [edge for edge in graph.edges if edge.source == "s1"]
    edges = [edge for edge in graph.edges if edge not in two_layers]
    edges += [
        replace(shortcut, operators=(Weight(8, fan_out=8),), parameters=("short",)),
        Edge("s1", "m", (Activation("relu"), Weight(8, fan_out=8)), ("w1",)),
        Edge("m", "s2", (Activation("relu"), Weight(8, fan_out=8)), ("w1b",)),
    ]
    parameters = [*graph.parameters, *(Parameter(n, "weight", (8, 8), fan_in=8, fan_out=8) for n in ("short", "w1b"))]
    names = ["x", "s0", "s1", "m", "s2", "s3", "y"]
    network = Network.of(Graph.build(map(Vertex, names), edges, inputs="x", outputs="y", parameters=parameters))
    assert residuals(network.graph).sums == ("s1", "s2", "s3")
    assert dict(network.branch_scales) == pytest.approx({"w0": 3**-0.5, "w2": 3**-0.5})
    assert second_moments(network.weights)["s2"] == pytest.approx(1.0)


# Tied, frozen, kept


def tied(**changes: object) -> Graph:
    """Return x -stem-> a -W-> b -W-> c -readout-> y with a skip from a to c: W meets in-degrees 1 and 2."""
    shared = Parameter("w", "weight", (8, 8), fan_in=8, fan_out=8)
    operators = (Activation("relu"), Weight(8, 8))
    return Graph.build(
        map(Vertex, "xabcy"),
        [
            Edge("x", "a", (Weight(4, fan_out=8),), ("stem",)),
            Edge("a", "b", operators, ("w",)),
            Edge("b", "c", operators, ("w",)),
            Edge("a", "c"),
            Edge("c", "y", (Activation("relu"), Weight(8, 2)), ("out",)),
        ],
        inputs="x",
        outputs="y",
        parameters=[
            Parameter("stem", "weight", (8, 4), fan_in=4, fan_out=8),
            replace(shared, **changes),  # type: ignore[arg-type]
            Parameter("out", "weight", (2, 8), fan_in=8, fan_out=2),
        ],
    )


def test_a_tied_weight_gets_the_smallest_size_its_uses_ask_for() -> None:
    found = initialise(tied(), "degree")
    assert found.std["w"] == pytest.approx(math.sqrt(2 / (2 * 8)), rel=1e-6)
    assert "tied" in found.why["w"]
    assert "2 uses" in found.why["w"]
    # b: half of what a carries; c: a's one and half of b's.
    moments = second_moments(found)
    assert moments["b"] == pytest.approx(0.5, rel=1e-6)
    assert moments["c"] == pytest.approx(1.25, rel=1e-6)


def test_a_tied_weight_whose_uses_agree_keeps_what_they_ask_for() -> None:
    found = initialise(tied(), "he")
    assert found.std["w"] == pytest.approx(0.5)
    moments = second_moments(found)
    assert (moments["a"], moments["b"]) == pytest.approx((2.0, 2.0))
    assert moments["c"] == pytest.approx(4.0)


@pytest.mark.parametrize("init", INITS)
def test_a_frozen_weight_keeps_its_size_whatever_the_initialisation(init: str) -> None:
    graph = tied(trainable=False, measured=0.25)
    found = initialise(graph, init)
    assert found.std["w"] == pytest.approx(0.25)
    stem = second_moments(found)["a"]
    assert second_moments(found)["b"] == pytest.approx(8 * 0.25**2 * stem / 2, rel=1e-6)
    assert "w" not in {parameter.name for parameter in plan_graph(graph, init=init).parameters}


def test_keep_reads_the_sizes_the_module_has() -> None:
    graph = dag_mlp_graph("2_12", width=WIDTH, inputs=INPUTS)
    sizes = {"stem.weight": 0.3, "edges.0_1.weight": 0.1, "edges.1_2.weight": 0.2, "readout.weight": 0.05}
    parameters = [replace(p, measured=sizes.get(p.name)) for p in graph.parameters]
    kept = Graph(graph.vertices, graph.edges, graph.inputs, graph.outputs, tuple(parameters))
    found = initialise(kept, "keep")
    assert dict(found.std) == pytest.approx(sizes)
    moments = second_moments(found)
    zero = INPUTS * 0.3**2
    one = WIDTH * 0.1**2 * zero / 2
    two = zero + WIDTH * 0.2**2 * one / 2
    assert [moments[v] for v in "012"] == pytest.approx([zero, one, two], rel=1e-6)
    assert moments["output"] == pytest.approx(WIDTH * 0.05**2 * two / 2, rel=1e-6)
    plan = plan_graph(kept, init="keep")
    assert all(parameter.kept for parameter in plan.parameters)


def test_keep_needs_measured_sizes() -> None:
    with pytest.raises(InputError, match=r"'keep', but the size of 'stem.weight' is not known"):
        initialise(dag_mlp_graph("2"), "keep")


@pytest.mark.parametrize("init", ["Degree", "xavier", ""])
def test_an_unknown_initialisation_is_named(init: str) -> None:
    with pytest.raises(InputError, match=f"init is '{init}'; choose one of conserve, degree, he, keep"):
        initialise(dag_mlp_graph("2"), init)


@given(dag_codes(max_vertices=5), orders, inits)
def test_every_weight_on_a_path_gets_a_positive_size_and_a_reason(code: str, order: Order, init: str) -> None:
    found = initialised(code, order, init)
    weights = reference.paper_std(code, order=order, width=WIDTH, inputs=INPUTS)
    assert set(found.std) == set(found.why) == set(weights)
    assert all(std > 0 for std in found.std.values())
    assert all(found.why.values())


# Activations that cannot carry the second moment


@given(dag_codes(), st.sampled_from(("tanh", "sigmoid", "softplus", "hardtanh", "exp")))
def test_conserve_feeds_bounded_activations_unit_gaussians_at_most(code: str, activation: str) -> None:
    graph = dag_mlp_graph(code, width=WIDTH, inputs=INPUTS, order="post", activation=activation)
    found = initialise(graph, "conserve")
    for position, size in found.signal.weight_sizes.items():
        edge = graph.edges[position]
        if edge.activates_last:
            # What the activation reads: neither so much that it saturates nor so little that it is a constant.
            assert 1e-3 < size * found.signal.vertices[edge.source].second_moment <= 8.001
    if activation in ("tanh", "sigmoid", "hardtanh", "exp"):
        assert "cannot conserve" in found.why["stem.weight"]
        assert found.std["stem.weight"] == pytest.approx(INPUTS**-0.5)
