"""Check traced graphs against graphs built from codes, hand-counted numbers, and real runs."""

import itertools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import evenstep as es
from evenstep.graph import activations, dag_cnn_graph, dag_mlp_graph, nasbench201_graph, path_moments
from evenstep.graph.networks import NormKind, Order
from evenstep.graph.operators import ConcatBlock, Scale
from evenstep.planning import chain_like
from evenstep_research.spaces import DagCNN, DagMLP, NasBench201
from tests.reference import (
    cell_code_of,
    cell_depths,
    dag_codes,
    dag_depths,
    live_edges,
    live_in_degrees,
    power_sums,
)
from tests.zoo import ZOO

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")  # test_checked.py says which


SAMPLE = random.Random(7)
FOUR_VERTICES = SAMPLE.sample([code for code in dag_codes(4) if dag_depths(code)], 45)
DAG_CODES = [code for code in dag_codes(3) if dag_depths(code)] + FOUR_VERTICES
CELL_CODES = [c for c in map(cell_code_of, SAMPLE.sample(range(5**6), 20)) if cell_depths(c)]


class Made(nn.Module):
    """A module of the given layers and parameters whose forward is the given function."""

    def __init__(self, run: Callable[[Any, Tensor], Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


# Graphs of codes


def flattened(code: str) -> bool:
    """Say whether a trace joins sums that the code keeps apart.

    A vertex that only hands its sum on to another sum is no place of its own in a program: z_1 of '2_11', with
    z_2 = z_0 + z_1, is one of the summands of z_2. Under `degree` and `conserve` its weights then count among those of
    the later vertex and start smaller. Wherever no vertex of a code has one live outgoing edge, a skip into a sum
    of several, both graphs are the same.
    """
    edges, degrees = live_edges(code), live_in_degrees(code)
    leaving: dict[int, list[tuple[int, str]]] = {}
    for source, target, op in edges:
        leaving.setdefault(source, []).append((target, op))

    def ends_in_sum(vertex: int) -> bool:
        if len(leaving.get(vertex, [])) != 1 or leaving[vertex][0][1] != "skip":
            return False
        target = leaving[vertex][0][0]
        return degrees[target] > 1 or ends_in_sum(target)

    return any(ends_in_sum(vertex) for vertex in degrees if vertex)


def reads(plan: es.Plan) -> dict[str, float]:
    """Return the second moment that every weight reads; a rectifier halves that of a symmetric signal."""
    at = {vertex.name: vertex.second_moment for vertex in plan.vertices}
    found = {}
    for edge in plan.graph.live().edges:
        if edge.weight is not None:
            found[edge.parameters[0]] = at[edge.source] * (0.5 if edge.before else 1.0)
    return found


def assert_same_plan(traced: es.Graph, built: es.Graph, init: str, *, rate: float = 1.0) -> None:
    """Compare everything that matters: sizes, rates (times `rate`), and what each weight reads."""
    one = es.plan(traced, init=init, base_graph=built)
    other = es.plan(built, init=init, base_graph=built)
    assert {p.name for p in one.parameters} == {p.name for p in other.parameters}
    assert one.lr_scale == pytest.approx(rate * other.lr_scale, rel=1e-9)
    for p in one.parameters:
        twin = other[p.name]
        assert (p.role, p.shape, p.mean) == (twin.role, twin.shape, twin.mean)
        assert p.std == pytest.approx(twin.std, rel=1e-9), p.name
        assert p.lr_scale == pytest.approx(rate * twin.lr_scale, rel=1e-9), p.name
    ours, theirs = reads(one), reads(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value == pytest.approx(theirs[name], rel=1e-9), name


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_dag_mlps_of_order_pre_trace_to_the_graphs_of_their_codes(norm: NormKind) -> None:
    agreed = 0
    for code in DAG_CODES if norm == "none" else FOUR_VERTICES[::3]:
        traced = es.trace(DagMLP(code, width=16, inputs=12, classes=3, norm=norm), torch.zeros(2, 12))
        built = dag_mlp_graph(code, width=16, inputs=12, classes=3, norm=norm)
        moments = path_moments(traced)
        assert (moments.count, moments.m1, moments.m2, moments.m3) == power_sums(dag_depths(code)), code
        assert_same_plan(traced, built, "he")
        if not flattened(code):
            agreed += 1
            assert_same_plan(traced, built, "conserve")
            assert_same_plan(traced, built, "degree")
    assert agreed >= 8


def test_a_sum_that_is_only_handed_on_counts_with_the_next() -> None:
    code = "2_11"
    assert flattened(code)
    traced = es.trace(DagMLP(code, width=16, inputs=12), torch.zeros(2, 12))
    ours = es.plan(traced, init="degree")["edges.0_1.weight"].std
    theirs = es.plan(dag_mlp_graph(code, width=16, inputs=12), init="degree")["edges.0_1.weight"].std
    assert ours == pytest.approx(math.sqrt(2 / (2 * 16)))  # two summands at z_2 = z_0 + W relu(z_0)
    assert theirs == pytest.approx(math.sqrt(2 / 16))  # one at z_1


def sums_activations(code: str) -> bool:
    """Say whether some sum of a code has a rectified summand, which tells a trace that the network is of order post."""
    degrees = live_in_degrees(code)
    return any(op == "weight" and degrees[target] > 1 for _, target, op in live_edges(code))


@pytest.mark.parametrize("space", ["mlp", "cnn"])
def test_order_post_traces_to_the_graphs_of_its_codes(space: str) -> None:
    """A network that nowhere sums activations is a chain, and reads as order pre: the same function.

    With `he`, which does not look at sums, its weights are the same; q_out is taken in front of the last rectifier,
    where it is twice as large, unless only a pool and no weight reads that.
    """
    agreed = 0
    for code in DAG_CODES[::2] if space == "mlp" else FOUR_VERTICES[::4]:
        if space == "mlp":
            traced = es.trace(DagMLP(code, width=16, inputs=12, order="post"), torch.zeros(2, 12))
            built = dag_mlp_graph(code, width=16, inputs=12, order="post")
        else:
            traced = es.trace(DagCNN(code, width=4, order="post"), torch.zeros(2, 3, 6, 6))
            built = dag_cnn_graph(code, width=4, order="post", image_size=6)
        moments = path_moments(traced)
        assert (moments.count, moments.m1, moments.m2, moments.m3) == power_sums(dag_depths(code)), code
        if not sums_activations(code):
            weightless = all(op != "weight" for _, _, op in live_edges(code))
            only_copies = any(degree > 1 for degree in live_in_degrees(code).values())
            if not only_copies:
                before = space == "mlp" or not weightless
                assert_same_plan(traced, built, "he", rate=math.sqrt(1.35 / 1.7) if before else 1.0)
            continue
        assert_same_plan(traced, built, "he")
        if not flattened(code):
            agreed += 1
            assert_same_plan(traced, built, "degree")
            assert_same_plan(traced, built, "conserve")
    assert agreed >= 3


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_dag_cnns_trace_to_the_graphs_of_their_codes(norm: NormKind) -> None:
    for code in FOUR_VERTICES[:: 3 if norm == "none" else 9]:
        traced = es.trace(DagCNN(code, width=4, classes=3, norm=norm), torch.zeros(2, 3, 6, 6))
        built = dag_cnn_graph(code, width=4, classes=3, norm=norm, image_size=6)
        moments = path_moments(traced)
        assert (moments.count, moments.m1, moments.m2, moments.m3) == power_sums(dag_depths(code)), code
        if norm == "none" and all(op != "weight" for _, _, op in live_edges(code)):
            continue  # stem, rectifier, pool: no weight reads the rectifier, so it is traced behind the stem
        assert_same_plan(traced, built, "he")
        if not flattened(code):
            assert_same_plan(traced, built, "conserve")


def test_nasbench201_cells_trace_to_the_graphs_of_their_codes() -> None:
    for code in CELL_CODES:
        traced = es.trace(NasBench201(code, channels=4, cells=1, stages=1), torch.zeros(2, 3, 6, 6))
        built = nasbench201_graph(code, channels=4, image_size=6)
        moments = path_moments(traced)
        assert (moments.count, moments.m1, moments.m2, moments.m3) == power_sums(cell_depths(code)), code
        for init in ("he", "conserve", "degree"):
            assert_same_plan(traced, built, init)


def test_parameters_of_dead_edges_are_planned_too() -> None:
    model = NasBench201("3_30_100", channels=4, cells=1, stages=1, keep_dead=True)
    planned = es.plan(model, torch.zeros(2, 3, 6, 6))
    dead = [p for p in planned.parameters if "edges.0_1" in p.name or "edges.0_2" in p.name]
    assert len(dead) == 6  # two convolutions and their norms
    for p in dead:
        assert "not used" in p.reason


# Second moments against real runs

WIDTH = 128


def linear(into: int = WIDTH, out: int = WIDTH) -> nn.Linear:
    return nn.Linear(into, out)


def conv(into: int = 16, out: int = 16, side: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(into, out, side, **options)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, 0.3))


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, dim=-1)
    return first, second


def rms_normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


FLAT, IMAGE = (WIDTH,), (16, 8, 8)
MECHANISMS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "sum": (Made(lambda m, x: m.a(x) + m.b(x), a=linear(), b=linear()), FLAT),
    "difference": (Made(lambda m, x: m.a(x) - m.b(x), a=linear(), b=linear()), FLAT),
    "difference with alpha": (
        Made(lambda m, x: torch.sub(m.a(x), m.b(x), alpha=3), a=linear(), b=linear()),
        FLAT,
    ),
    "a signal added to itself": (Made(lambda m, x: (y := m.a(x)) + y, a=linear()), FLAT),
    "a signal that half cancels": (Made(lambda m, x: (y := m.a(x)) - 0.5 * y, a=linear()), FLAT),
    "scalars": (Made(lambda m, x: -3 * m.a(x) / 2, a=linear()), FLAT),
    "a scalar tensor": (Made(lambda m, x: m.a(x) * torch.tensor(3.0), a=linear()), FLAT),
    "a residual": (Made(lambda m, x: (y := m.a(x)) + m.b(F.relu(y)), a=linear(), b=linear()), FLAT),
    "concat": (
        Made(
            lambda m, x: m.c(torch.cat([m.a(x), 3 * m.b(x)], 1)),
            a=linear(out=32),
            b=linear(out=96),
            c=linear(),
        ),
        FLAT,
    ),
    "stack": (Made(lambda m, x: torch.stack([m.a(x), 2 * m.b(x)]), a=linear(), b=linear()), FLAT),
    "sum of halves": (Made(lambda m, x: (p := halves(m.a(x)))[0] + p[1], a=linear()), FLAT),
    "product of halves": (Made(lambda m, x: (p := halves(m.a(x)))[0] * p[1], a=linear()), FLAT),
    "product of slices": (Made(lambda m, x: (y := m.a(x))[:, :64] * y[:, 64:], a=linear()), FLAT),
    "product of split": (Made(lambda m, x: (p := m.a(x).split([64, 64], 1))[0] * p[1], a=linear()), FLAT),
    "gate of halves": (Made(lambda m, x: (p := halves(m.a(x)))[0] * F.silu(p[1]), a=linear()), FLAT),
    "gate": (Made(lambda m, x: m.a(x) * torch.sigmoid(m.b(x)), a=linear(), b=linear()), FLAT),
    "glu": (Made(lambda m, x: F.glu(m.a(x)), a=linear()), FLAT),
    "square as product": (Made(lambda m, x: (y := m.a(x)) * y, a=linear()), FLAT),
    "square as power": (Made(lambda m, x: m.a(x) ** 2, a=linear()), FLAT),
    "where": (Made(lambda m, x: torch.where(x > 0, m.a(x), 2 * m.b(x)), a=linear(), b=linear()), FLAT),
    "largest of two": (Made(lambda m, x: torch.maximum(m.a(x), m.b(x)), a=linear(), b=linear()), FLAT),
    "largest of all": (Made(lambda m, x: m.a(x).amax(1), a=linear()), FLAT),
    "parameter as factor": (Made(lambda m, x: m.a(x) * m.p, a=linear(), p=parameter(WIDTH)), FLAT),
    "parameter as matrix": (Made(lambda m, x: x @ m.p, p=parameter(WIDTH, 64)), FLAT),
    "addmm": (Made(lambda m, x: torch.addmm(m.q, x, m.p), p=parameter(WIDTH, 64), q=parameter(64)), FLAT),
    "einsum": (Made(lambda m, x: torch.einsum("bi,oi->bo", x, m.p), p=parameter(64, WIDTH)), FLAT),
    "layer norm": (
        Made(lambda m, x: m.b(F.relu(m.n(5 * m.a(x)))), a=linear(), n=nn.LayerNorm(WIDTH), b=linear()),
        FLAT,
    ),
    "rms norm": (Made(lambda m, x: m.n(5 * m.a(x)), a=linear(), n=nn.RMSNorm(WIDTH)), FLAT),
    "rms norm by hand": (Made(lambda m, x: rms_normed(5 * m.a(x)), a=linear()), FLAT),
    "softmax": (Made(lambda m, x: torch.softmax(m.a(x), -1), a=linear()), FLAT),
    "global mean": (Made(lambda m, x: m.a(x).mean((2, 3)), a=conv(padding=1)), IMAGE),
    "global mean of relu": (Made(lambda m, x: F.relu(m.a(x)).mean((2, 3)), a=conv(padding=1)), IMAGE),
    "global sum of relu": (Made(lambda m, x: F.relu(m.a(x)).sum((2, 3)), a=conv(padding=1)), IMAGE),
    "max pool": (Made(lambda m, x: F.max_pool2d(m.a(x), 2), a=conv(padding=1)), IMAGE),
    "strided residual": (
        Made(
            lambda m, x: F.relu(m.a(x) + m.s(x)).mean((2, 3)),
            a=conv(16, 32, stride=2, padding=1),
            s=conv(16, 32, 1, stride=2),
        ),
        IMAGE,
    ),
    "grouped": (
        Made(
            lambda m, x: m.b(F.relu(m.a(x))),
            a=conv(groups=4, padding=1),
            b=conv(16, 32, 5, groups=8, padding=2),
        ),
        IMAGE,
    ),
    "dilated": (
        Made(lambda m, x: m.b(F.relu(m.a(x))), a=conv(dilation=2), b=conv(padding=1)),
        (16, 14, 14),
    ),
    "transposed": (
        Made(
            lambda m, x: m.b(F.relu(m.a(x))),
            a=nn.ConvTranspose2d(16, 8, 2, stride=2),
            b=nn.ConvTranspose2d(8, 16, 3, stride=2, padding=1, output_padding=1, groups=2),
        ),
        IMAGE,
    ),
    "pixel shuffle": (Made(lambda m, x: F.pixel_shuffle(m.a(x), 2), a=conv(padding=1)), IMAGE),
}


def measured(model: nn.Module, plan: es.Plan, shape: tuple[int, ...], *, seeds: int = 8, batch: int = 96) -> float:
    """Return the second moment of the output on Gaussian inputs, over draws of weights and inputs."""
    total = 0.0
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        es.initialize_(model, plan, generator=generator)
        with torch.no_grad():
            total += float(model(torch.randn(batch, *shape, generator=generator)).double().square().mean())
    return total / seeds


def smooth(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return noise that varies little from pixel to pixel."""
    coarse = torch.randn(*shape[:2], shape[2] // 8, shape[3] // 8, generator=generator)
    return F.interpolate(coarse, size=shape[2:], mode="bicubic")


def test_pools_of_neighbours_keep_what_is_smooth() -> None:
    """Images vary little from pixel to pixel, and sums of pools and skips grow as sums of copies do."""
    convolution, shape = conv(3, 16, padding=1), (3, 32, 32)
    model = Made(lambda m, x: (y := m.a(x)) + F.avg_pool2d(y, 3, 1, 1, count_include_pad=False), a=convolution)
    planned = es.plan(model, torch.zeros(2, *shape))
    predicted = {v.name: v.second_moment for v in planned.vertices}
    (output,) = planned.graph.outputs
    generator = torch.Generator().manual_seed(0)
    es.initialize_(model, planned, generator=generator)
    images = smooth((64, *shape), generator)
    with torch.no_grad():
        grown = float(model(images).square().mean() / convolution(images).square().mean())
    assert predicted[output] / predicted["a"] == pytest.approx(4.0)
    assert grown == pytest.approx(4.0, rel=0.15)


@pytest.mark.parametrize("name", MECHANISMS)
def test_predicted_second_moments_are_those_of_a_run(name: str) -> None:
    model, shape = MECHANISMS[name]
    planned = es.plan(model, torch.zeros(2, *shape), init="he")
    (output,) = planned.graph.outputs
    predicted = {v.name: v.second_moment for v in planned.vertices}[output]
    assert measured(model, planned, shape) == pytest.approx(predicted, rel=0.1)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("init", ["conserve", "degree", "he"])
@pytest.mark.parametrize("code", ["2_12_112", "2_22_222", "1_21_211", "2_02_012"])
def test_predicted_second_moments_of_traced_dags_are_those_of_a_run(code: str, init: str, order: Order) -> None:
    model = DagMLP(code, width=256, inputs=64, order=order)
    planned = es.plan(model, torch.zeros(2, 64), init=init)
    totals: dict[str, float] = {}
    seeds = 32

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor]) -> None:
            totals[name] = totals.get(name, 0.0) + float(inputs[0].double().square().mean()) / seeds

        return hook

    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(note(f"{path}.weight"))
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        es.initialize_(model, planned, generator=generator)
        with torch.no_grad():
            model(torch.randn(16, 64, generator=generator))
    predicted = reads(planned)
    assert predicted.keys() == totals.keys()
    for name, value in predicted.items():
        assert totals[name] == pytest.approx(value, rel=0.1), name


# Zoo models without norms that the theory covers, with the largest relative error allowed anywhere. Pools of
# rectified, and so neighbouring, entries are taken as Gaussian: those are rough.
COVERED = {
    "plain_mlp": 0.15,
    "dict_output": 0.15,
    "bilinear": 0.2,
    "gated_mlp": 0.15,
    "dag_cnn": 0.2,
    "conv1d": 0.5,
    "unet": 0.4,
}


@pytest.mark.parametrize("name", COVERED)
def test_predicted_second_moments_of_zoo_models_are_those_of_a_run(name: str) -> None:
    entry = next(entry for entry in ZOO if entry.name == name)
    model, args = entry.make()
    planned = es.plan(model, args)
    predicted = {v.name: v.second_moment for v in planned.vertices}
    totals: dict[str, float] = {}
    seeds, batch = 160, 8

    def note(path: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            totals[path] = totals.get(path, 0.0) + float(output.double().square().mean()) / seeds

        return hook

    for path, module in model.named_modules():
        if path in predicted:
            module.register_forward_hook(note(path))
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        es.initialize_(model, planned, generator=generator)
        with torch.no_grad():
            model(*(torch.randn(batch, *x.shape[1:], generator=generator) for x in args))
    assert totals
    for path, total in totals.items():
        assert total == pytest.approx(predicted[path], rel=COVERED[name]), path


def test_a_residual_block_with_strided_downsampling_reads_as_two_summands() -> None:
    model, args = next(entry for entry in ZOO if entry.name == "basic_resnet").make()
    graph = es.trace(model, args)
    edges = {edge.parameters[0]: edge for edge in graph.edges if edge.weight is not None}
    norms = {edge.source: edge for edge in graph.edges if edge.normalises}
    joined = norms[edges["4.conv2.weight"].target].target
    assert norms[edges["4.downsample.0.weight"].target].target == joined
    assert graph.in_degree(joined) == 2
    # Both read the block's input through the rectifier before it; the branch has one more of its own.
    assert edges["4.downsample.0.weight"].source == edges["4.conv1.weight"].source
    assert [edges[f"4.{name}.weight"].depth for name in ("downsample.0", "conv1", "conv2")] == [1, 1, 1]
    stride = {edge.target: edge.weight for edge in graph.edges if edge.weight is not None}
    assert stride["4.conv1"].fan_in == 8 * 9
    assert stride["4.downsample.0"].fan_in == 8


# Fans, by counting connections

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 5, bias=False), (6,)),
    "conv1d": (nn.Conv1d(4, 6, 3, bias=False), (4, 12)),
    "conv2d": (nn.Conv2d(4, 6, 3, padding=1, bias=False), (4, 12, 12)),
    "rectangular": (nn.Conv2d(4, 6, (1, 5), padding=(0, 2), bias=False), (4, 12, 12)),
    "conv3d": (nn.Conv3d(2, 3, 3, padding=1, bias=False), (2, 8, 8, 8)),
    "grouped": (nn.Conv2d(8, 12, 3, padding=1, groups=4, bias=False), (8, 12, 12)),
    "depthwise": (nn.Conv2d(8, 16, 3, padding=1, groups=8, bias=False), (8, 12, 12)),
    "dilated": (nn.Conv2d(4, 6, 3, padding=2, dilation=2, bias=False), (4, 12, 12)),
    "same": (nn.Conv2d(4, 6, 5, padding="same", dilation=2, bias=False), (4, 12, 12)),
    "valid": (nn.Conv2d(4, 6, 3, padding="valid", bias=False), (4, 12, 12)),
    "strided": (nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), (4, 12, 12)),
    "patches": (nn.Conv2d(3, 8, 4, stride=4, bias=False), (3, 16, 16)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, padding=1, bias=False), (4, 12, 12)),
    "transposed, strided": (nn.ConvTranspose2d(4, 6, 2, stride=2, bias=False), (4, 12, 12)),
    "transposed, overlapping": (nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, bias=False), (4, 12, 12)),
    "transposed, grouped": (
        nn.ConvTranspose2d(8, 12, 3, stride=2, padding=1, output_padding=1, groups=4, bias=False),
        (8, 12, 12),
    ),
    "transposed, dilated": (nn.ConvTranspose1d(4, 6, 3, dilation=2, bias=False), (4, 12)),
    "transposed 3d": (nn.ConvTranspose3d(2, 3, 2, stride=2, bias=False), (2, 4, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_fans_count_connections(name: str) -> None:
    """With weights and inputs of one an output counts what it reads, a gradient what an input feeds."""
    layer, shape = LAYERS[name]
    with torch.no_grad():
        for weight in layer.parameters():
            weight.fill_(1.0)
    x = torch.ones(1, *shape, requires_grad=True)
    output: Tensor = layer(x)
    (fed,) = torch.autograd.grad(output.sum(), x)
    output = output.detach()
    (edge,) = es.trace(layer, x.detach()).edges
    drawn = edge.weight
    assert drawn is not None
    assert drawn.fan_in * drawn.gain == pytest.approx(float(output.mean()))
    if "transposed" not in name:
        assert drawn.fan_in == int(output.max())
    if "strided" not in name:
        assert drawn.fan_out == int(fed.max())
    (weight,) = layer.parameters()
    sides = weight.shape[2:]
    assert drawn.kernel_size == pytest.approx(math.prod(sides) ** (1 / max(len(sides), 1)))
    assert drawn.groups == getattr(layer, "groups", 1)
    assert drawn.patches == (name == "patches")  # each patch is read once
    assert drawn.slides == (name not in ("linear", "patches"))
    out, into = (weight.shape[1], weight.shape[0]) if "transposed" in name else weight.shape[:2]
    units = (into // drawn.groups, out) if "transposed" in name else (into, out // drawn.groups)
    assert (drawn.units_in, drawn.units_out) == pytest.approx(units)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (2, 2), (3, 1), (3, 2)])
def test_kernel_taps_are_left_out_of_a_hidden_layer_s_width(kernel: int, stride: int) -> None:
    hidden = nn.Conv2d(16, 32, kernel, stride=stride, padding=kernel // 3)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), hidden, nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    net(torch.zeros(1, 3, 10, 10))
    sgd, adam = (es.plan(net, torch.zeros(2, 3, 10, 10), optimizer=o) for o in ("sgd", "adam"))
    size = 16 * kernel**2 * sgd["2.weight"].std ** 2  # about 2, which a rectifier needs
    assert sgd["2.weight"].lr_scale / sgd.lr_scale == pytest.approx(size * math.sqrt(32 / 16))
    # Under Adam over the width of the base besides, a chain of 64 channels.
    assert adam["2.weight"].lr_scale / adam.lr_scale == pytest.approx(math.sqrt(size) * 64 / 16)


def test_patches_of_the_input_are_read_whole() -> None:
    net = nn.Sequential(nn.Conv2d(3, 64, 8, stride=8), nn.Flatten(), nn.ReLU(), nn.Linear(256, 4))
    plan = es.plan(net, torch.zeros(2, 3, 16, 16))
    # Of 192 inputs it makes second moment one; the network is as wide as the base.
    assert plan["0.weight"].lr_scale / plan.lr_scale == pytest.approx(math.sqrt(64 / 192))


def test_a_readout_of_variances_starts_as_one_of_what_it_reads() -> None:
    model = Made(
        lambda m, x: m.c(m.b(F.relu(m.a(x))).var((2, 3))), a=nn.Conv2d(3, 8, 3), b=nn.Conv2d(8, 32, 3), c=linear(32, 4)
    )
    planned = es.plan(model, torch.zeros(2, 3, 16, 16))
    assert planned["c.weight"].std == pytest.approx((3 * 32) ** -0.5, rel=1e-6)
    # Of a variance hardly more than its mean is left: second moment 1 + 2/144, of which the readout makes a third.
    (output,) = [v.second_moment for v in planned.vertices if v.name == planned.graph.outputs[0]]
    assert output == pytest.approx((1 + 2 / 144) / 3, rel=1e-6)


def test_biases_of_a_recurrent_layer_go_with_the_unit_gaussian_they_are_added_to() -> None:
    model = Made(lambda m, x: m.out(m.lstm(x)[0]), lstm=nn.LSTM(40, 64, num_layers=3, proj_size=48), out=linear(48, 3))
    planned = es.plan(model, torch.zeros(4, 2, 40))
    for layer in range(3):
        assert planned[f"lstm.bias_ih_l{layer}"].lr_scale == planned.lr_scale
        assert planned[f"lstm.bias_hh_l{layer}"].lr_scale == planned.lr_scale
    assert planned["lstm.weight_ih_l0"].lr_scale != planned["lstm.weight_ih_l1"].lr_scale


@pytest.mark.parametrize("size", [1.0, -1.0, 1e-6, 0.0])
def test_a_gate_of_one_plans_as_if_it_were_not_there_and_others_draw_so(size: float) -> None:
    layers = {"a": linear(8, 16), "b": linear(16, 16), "c": linear(16, 16), "d": linear(16, 3)}

    class Gated(nn.Module):
        def __init__(self, *, gated: bool) -> None:
            super().__init__()
            self.layers = nn.ModuleDict(layers)
            self.gate = nn.Parameter(torch.full((16,), size)) if gated else None

        def forward(self, x: Tensor) -> Tensor:
            a, b, c, d = self.layers.values()
            h = F.relu(a(x))
            branch = c(h) if self.gate is None else self.gate * c(h)
            logits: Tensor = d(F.relu(b(h)) + branch)
            return logits

    for init in ("conserve", "degree", "he"):
        plain, gated = (es.plan(Gated(gated=gated), torch.zeros(2, 8), init=init) for gated in (False, True))
        assert {p.name: p.std for p in plain.parameters}.items() <= {
            p.name: pytest.approx(p.std, rel=1e-9) for p in gated.parameters
        }.items()
        if abs(size) == 1.0:
            assert gated.lr_scale == pytest.approx(plain.lr_scale, rel=1e-9)
            for p in plain.parameters:
                assert gated[p.name].lr_scale == pytest.approx(p.lr_scale, rel=1e-9), p.name


def test_a_recurrent_block_reads_before_its_own_activations() -> None:
    model = Made(lambda m, x: m.o(m.r(torch.tanh(m.a(x)))[0]), a=linear(8, 16), r=nn.GRU(16, 12), o=linear(12, 3))
    base = chain_like(es.trace(model, torch.zeros(5, 2, 8)))
    assert base == dag_mlp_graph("2", activation="tanh")  # order pre


# Parameters


def test_concat_shares_are_those_of_the_widths() -> None:
    model = Made(lambda m, x: m.c(torch.cat([m.a(x), m.b(x)], 1)), a=linear(4, 8), b=linear(4, 24), c=linear(32, 2))
    graph = es.trace(model, torch.zeros(1, 4))
    (joined,) = [vertex.name for vertex in graph.vertices if vertex.merge == "concat"]
    assert [edge.operators for edge in graph.incoming[joined]] == [(ConcatBlock(0.25),), (ConcatBlock(0.75),)]
    assert graph.in_degree(joined) == 1


def test_tied_weights_are_one_parameter_on_two_edges() -> None:
    model, args = next(entry for entry in ZOO if entry.name == "tied_language_model").make()
    planned = es.plan(model, args)
    uses = [edge for edge in planned.graph.edges if "embedding.weight" in edge.parameters]
    assert len(uses) == 2
    assert "output.weight" not in {p.name for p in planned.parameters}
    # As an embedding it wants std 1, as a readout of 8 units the root of 1/24: it gets the smaller.
    assert planned["embedding.weight"].std == pytest.approx(math.sqrt(1 / 24), rel=0.5)
    assert "tied" in planned["embedding.weight"].reason


def test_a_layer_used_three_times_lies_on_three_edges() -> None:
    model, args = next(entry for entry in ZOO if entry.name == "recurrent_depth").make()
    planned = es.plan(model, args)
    uses = [edge for edge in planned.graph.edges if "shared.weight" in edge.parameters]
    assert len(uses) == 3
    assert len({(edge.source, edge.target) for edge in uses}) == 3
    moments = path_moments(planned.graph)
    depths = [sum(bits) for bits in [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]]
    assert (moments.count, moments.m1, moments.m2, moments.m3) == power_sums(depths)


def test_parameters_on_no_path_are_planned_and_the_reason_says_so() -> None:
    model, args = next(entry for entry in ZOO if entry.name == "unused_parameter").make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    planned = es.plan(model, args)
    assert "on no path" in planned["forgotten.weight"].reason
    assert "on no path" in planned["forgotten.bias"].reason
    assert "not used" in planned["scale"].reason
    assert "on no path" not in planned["used.weight"].reason
    assert planned["forgotten.weight"].lr_scale == pytest.approx(planned.lr_scale)
    es.initialize_(model, planned)
    assert torch.equal(model.state_dict()["scale"], before["scale"])
    assert torch.equal(model.state_dict()["forgotten.weight"], before["forgotten.weight"])


def test_a_plan_changes_smoothly_with_how_far_a_gate_is_open() -> None:
    class Gated(nn.Module):
        def __init__(self, start: float) -> None:
            super().__init__()
            self.stem, self.branch, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
            self.gate = nn.Parameter(torch.full((8,), start))

        def forward(self, x: Tensor) -> Tensor:
            y = self.stem(x)
            logits: Tensor = self.head(y + self.gate * self.branch(torch.relu(y)))
            return logits

    x = torch.zeros(2, 8)
    starts = [0.0, 1e-6, *(10 ** (exponent / 20) for exponent in range(-119, 1))]  # a twentieth of a decade apart
    plans = [es.plan(Gated(start), x) for start in starts]
    scales = [planned.lr_scale for planned in plans]
    assert scales[0] == scales[1]
    assert scales[1] > 1.2 * scales[-1]  # closed, the branch makes no path longer
    for one, other in itertools.pairwise(scales):
        assert 0.95 < other / one <= 1.0
    for name in ("branch.weight", "stem.weight", "head.weight", "gate"):
        rates = [planned[name].lr_scale for planned in plans]
        assert all(0.9 < other / one < 1.1 for one, other in itertools.pairwise(rates)), name


def test_frozen_parameters_are_left_out_and_their_measured_size_is_used() -> None:
    frozen = nn.Linear(64, 128).requires_grad_(False)
    model = nn.Sequential(frozen, nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
    generator = torch.Generator().manual_seed(3)
    frozen.weight.normal_(0.0, 0.5, generator=generator)
    frozen.bias.zero_()
    planned = es.plan(model, torch.zeros(1, 64))
    assert {p.name for p in planned.parameters} == {"2.weight", "2.bias", "4.weight", "4.bias"}
    at = {v.name: v.second_moment for v in planned.vertices}
    size = float(frozen.weight.square().mean())
    assert at["0"] == pytest.approx(64 * size, rel=1e-5)
    # The next layer makes up for it: 64 * 0.25 = 16 arrives, the rectifier halves it, and 1 is to leave.
    assert planned["2.weight"].std == pytest.approx(math.sqrt(2 / (64 * size * 128)), rel=1e-5)
    before = frozen.weight.clone()
    es.initialize_(model, planned, generator=generator)
    assert torch.equal(before, frozen.weight)
    with torch.no_grad():
        out = model[:3](torch.randn(256, 64, generator=generator))
    assert float(out.square().mean()) == pytest.approx(1.0, rel=0.1)


def test_buffers_and_plain_tensors_serve_as_fixed_weights() -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.register_buffer("first", torch.randn(16, 16, generator=generator))
            self.second = 0.1 * torch.randn(16, 16, generator=generator)  # no buffer: a plain attribute
            self.register_buffer("scale", torch.tensor(4.0))
            self.head = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(x @ self.get_buffer("first")) @ self.second
            logits: Tensor = self.head(torch.tanh(y * self.get_buffer("scale")))
            return logits

    model = Projected()
    before = [model.get_buffer("first").clone(), model.second.clone(), model.get_buffer("scale").clone()]
    planned = es.plan(model, torch.zeros(2, 16))
    es.initialize_(model, planned)
    after = [model.get_buffer("first"), model.second, model.get_buffer("scale")]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert [p.name for p in planned.parameters] == ["head.weight", "head.bias"]
    at = {v.name: v.second_moment for v in planned.vertices}
    expected = 16 * float(before[0].square().mean()) / 2 * 16 * float(before[1].square().mean()) * 4.0**2
    assert any(value == pytest.approx(expected, rel=1e-4) for value in at.values())


def test_a_parametrised_slope_is_kept_and_sized() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.PReLU(init=0.5), nn.Linear(8, 2))
    planned = es.plan(model, torch.zeros(1, 8))
    assert planned["1.weight"].kept
    # E[prelu(z)^2] = (1 + 0.5^2) / 2
    (edge,) = [edge for edge in planned.graph.edges if edge.activation]
    assert edge.activation is not None
    assert activations.gain(edge.activation) == pytest.approx((1 + 0.25) / 2, rel=1e-5)


# Wrappers and example inputs


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def test_wrappers_do_not_change_the_graph() -> None:
    model = small()
    x = torch.zeros(2, 6)
    plain = es.trace(model, x)
    assert es.trace(nn.DataParallel(model), x) == plain
    compiled: Any = torch.compile(model, backend="eager")
    assert es.trace(compiled, x) == plain
    assert es.trace(nn.DataParallel(compiled), x) == plain
    inner = small()
    inner.load_state_dict(model.state_dict())
    inner[2] = checkpoint_wrapper(inner[2])
    assert "_checkpoint_wrapped_module" in "".join(name for name, _ in inner.named_parameters())
    wrapped = es.trace(inner, x)
    assert {p.name for p in wrapped.parameters} == {p.name for p in plain.parameters}
    assert es.plan(wrapped).parameters == es.plan(plain).parameters


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
        logits: Tensor = self.c(F.relu(self.a(x) + scale * self.b(y)))
        return logits


def test_example_inputs_may_be_given_in_any_form() -> None:
    model, x, y = TwoInputs(), torch.zeros(2, 4), torch.zeros(2, 3)
    expected = es.trace(model, (x, y))
    assert len(expected.inputs) == 2
    assert es.trace(model, [x, y]) == expected
    assert es.trace(model, {"x": x, "y": y}) == expected
    assert es.trace(model, (x,), example_kwargs={"y": y}) == expected
    assert es.trace(model, x, example_kwargs={"y": y, "scale": 2.0}) == expected
    assert es.trace(model, (x, y, 2.0)) == expected
    assert es.plan(model, example_kwargs={"x": x, "y": y}).graph == expected
    assert (Scale(5.0),) in {edge.operators for edge in es.trace(model, (x, y, 5.0)).edges}
    single = small()
    tensor = torch.zeros(2, 6)
    assert es.trace(single, tensor) == es.trace(single, (tensor,)) == es.trace(single, {"input": tensor})


# Activations

MODULES: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "relu in place": nn.ReLU(inplace=True),
    "leaky": nn.LeakyReLU(0.2),
    "elu": nn.ELU(1.5),
    "gelu": nn.GELU(),
    "gelu tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "hardswish": nn.Hardswish(),
    "softplus": nn.Softplus(beta=2),
    "relu6": nn.ReLU6(),
    "selu": nn.SELU(),
    "celu": nn.CELU(0.7),
    "mish": nn.Mish(),
    "hardsigmoid": nn.Hardsigmoid(),
    "hardtanh": nn.Hardtanh(),
    "logsigmoid": nn.LogSigmoid(),
    "prelu": nn.PReLU(init=0.3),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.relu": torch.relu,
    "method relu": lambda x: x.relu(),
    "method relu_": lambda x: (x + 0).relu_(),
    "F.leaky_relu": F.leaky_relu,
    "F.elu": F.elu,
    "F.gelu": F.gelu,
    "F.gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "F.silu": F.silu,
    "torch.tanh": torch.tanh,
    "torch.sigmoid": torch.sigmoid,
    "F.sigmoid": lambda x: x.sigmoid(),
    "F.hardswish": F.hardswish,
    "F.softplus": F.softplus,
    "F.relu6": F.relu6,
    "F.selu": F.selu,
    "F.celu": F.celu,
    "F.mish": F.mish,
    "F.hardtanh": F.hardtanh,
    "F.logsigmoid": F.logsigmoid,
    "clamp": lambda x: x.clamp(min=0),
    "clamp to 6": lambda x: x.clamp(0, 6),
}
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {**MODULES, **FUNCTIONS}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_is_known_with_its_gain(name: str) -> None:
    function = ACTIVATIONS[name]
    model = Made(
        lambda m, x: m.b(function(m.a(x))),
        a=nn.Linear(4, 4),
        b=nn.Linear(4, 2),
        **({"act": function} if isinstance(function, nn.Module) else {}),
    )
    (edge,) = [edge for edge in es.trace(model, torch.zeros(2, 4)).edges if edge.activation]
    assert edge.weight is not None
    assert edge.depth == 1
    assert edge.activation is not None
    z = torch.randn(400_000, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for mean, spread in ((0.0, 1.0), (0.5, 2.0)):
            out = function(mean + spread * z).double()
            first, second = activations.moments(edge.activation, mean, spread**2)
            assert second == pytest.approx(float(out.square().mean()), rel=0.02)
            assert first == pytest.approx(float(out.mean()), abs=0.02)


@pytest.mark.parametrize("softmax", [nn.Softmax(dim=-1), lambda x: F.softmax(x, -1), lambda x: x.softmax(1)])
def test_softmax_is_known_with_its_moments(softmax: Callable[[Tensor], Tensor]) -> None:
    model = Made(lambda m, x: m.b(softmax(m.a(x))), a=nn.Linear(4, 512), b=nn.Linear(512, 2))
    (edge,) = [edge for edge in es.trace(model, torch.zeros(2, 4)).edges if edge.activation]
    assert edge.activation is not None
    z = torch.randn(2000, 512, generator=torch.Generator().manual_seed(0))
    first, second = activations.moments(edge.activation, 0.0, 1.0)
    assert first == pytest.approx(1 / 512)
    assert second == pytest.approx(float(softmax(z).square().mean()), rel=0.03)
