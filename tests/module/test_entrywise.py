"""Check activations that a network writes out: one function of the field they read, in however many operators."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenstep as es
from evenstep.graph.operators import Activation
from evenstep.init import Network
from tests.zoo import hugging_face

torch.set_num_threads(1)
WIDTH = 256

Function = Callable[[Tensor], Tensor]


class MLP(nn.Module):
    """Three layers with a function between each two."""

    def __init__(self, function: Function, width: int = 16) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.c(self.function(self.b(self.function(self.a(x)))))
        return logits


def new_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def in_place(x: Tensor) -> Tensor:
    return torch.sigmoid(x).mul_(x)


def through_views(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x.reshape(-1)).view(x.shape)
    return (x.transpose(0, 1) * gate.to(x.dtype).transpose(0, 1)).t()


# What is written out -> torch's own.
WRITTEN: dict[str, tuple[Function, Function]] = {
    "gelu_new": (new_gelu, nn.GELU(approximate="tanh")),
    "gelu": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), nn.GELU()),
    "silu": (lambda x: x * torch.sigmoid(x), nn.SiLU()),
    "silu by exp": (lambda x: x / (1 + torch.exp(-x)), nn.SiLU()),
    "silu in place": (in_place, nn.SiLU()),
    "silu through views": (through_views, nn.SiLU()),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), nn.Mish()),
    "mish by log": (lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), nn.Mish()),
    "hardswish": (lambda x: x * (x + 3).clamp(0, 6) / 6, nn.Hardswish()),
    "hardsigmoid": (lambda x: F.relu6(x + 3) / 6, nn.Hardsigmoid()),
    "sigmoid": (lambda x: 0.5 * (1 + torch.tanh(x / 2)), nn.Sigmoid()),
    "softsign": (lambda x: x / (1 + x.abs()), nn.Softsign()),
    "softplus": (lambda x: torch.log1p(x.exp()), nn.Softplus()),
    "relu by maximum": (lambda x: torch.maximum(x, torch.zeros_like(x)), nn.ReLU()),
    "relu by where": (lambda x: torch.where(x > 0, x, 0.0), nn.ReLU()),
    "relu by mask": (lambda x: x * (x > 0), nn.ReLU()),
    "relu by a mask as numbers": (lambda x: x * (x >= 0).float(), nn.ReLU()),
    "relu by filling": (lambda x: x.masked_fill(x < 0, 0.0), nn.ReLU()),
    "relu by threshold": (lambda x: F.threshold(x, 0.0, 0.0), nn.ReLU()),
    "leaky relu by maximum": (lambda x: torch.maximum(x, 0.1 * x), nn.LeakyReLU(0.1)),
    "leaky relu by where": (lambda x: torch.where(x > 0, x, 0.1 * x), nn.LeakyReLU(0.1)),
    "elu": (lambda x: torch.where(x > 0, x, x.exp() - 1), nn.ELU()),
    "hardtanh": (lambda x: x.clamp(-1, 1), nn.Hardtanh()),
    "hardtanh by two": (lambda x: x.clamp_min(-1).clamp_max(1), nn.Hardtanh()),
    "straight through": (lambda x: x + (F.relu(x) - x).detach(), nn.ReLU()),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("init", ["conserve", "degree"])
def test_an_activation_plans_the_same_written_out_or_built_in(name: str, init: str) -> None:
    written, built_in = (es.plan(MLP(function), torch.zeros(2, 16), init=init) for function in WRITTEN[name])
    assert written.path_count == built_in.path_count == 1
    for planned in built_in.parameters:
        assert written[planned.name].std == pytest.approx(planned.std, rel=1e-5), planned.name
        assert written[planned.name].lr_scale == pytest.approx(planned.lr_scale, rel=1e-5), planned.name
    assert len(written.graph.vertices) == len(built_in.graph.vertices)


OTHERS: dict[str, tuple[Function, int]] = {
    # name -> (function, depth)
    "quick_gelu": (lambda x: x * torch.sigmoid(1.702 * x), 1),
    "relu squared": (lambda x: F.relu(x) ** 2, 1),
    "relu squared as product": (lambda x: F.relu(x) * F.relu(x), 1),
    "relu(x) * x": (lambda x: F.relu(x) * x, 1),
    "square": (lambda x: x * x, 0),
    "cube": (lambda x: x * x * x / 3, 0),
    "abs": (lambda x: x.abs(), 0),
    "one added": (lambda x: 1 + torch.tanh(x), 1),
    "a skip around an activation": (lambda x: x + F.relu(x), 1),
    "two activations": (lambda x: torch.tanh(F.relu(x)), 1),
    "bounds": (lambda x: x.clamp(-0.5, 2.0), 1),
    "hardtanh of other bounds": (lambda x: F.hardtanh(x, -2.0, 0.5), 1),
    "smaller than one": (lambda x: torch.minimum(x, torch.ones_like(x)), 1),
    "threshold": (lambda x: F.threshold(x, 0.5, -1.0), 1),
    "snake": (lambda x: x + torch.sin(x) ** 2, 1),
    "smooth modulus": (lambda x: (x**2 + 0.1).sqrt(), 0),
}


# Powers of a field whose size still differs from example to example, as it does at any finite width.
POLYNOMIALS = ("relu squared", "relu squared as product", "relu(x) * x", "square", "cube")


def read_by(plan: es.Plan) -> dict[str, float]:
    """Return the second moment that every weight reads."""
    network = Network.of(plan.graph, plan.init)
    edges = network.signal.graph.edges
    return {edges[index].parameters[0]: read for index, read in network.signal.reads.items()}


def measured_reads(model: nn.Module, plan: es.Plan, inputs: Callable[[torch.Generator], Any], seeds: int) -> Any:
    """Return the second moment that every layer reads in forward passes with the plan's initialisation."""
    totals: dict[str, float] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def hook(module: nn.Module, given: tuple[Tensor]) -> None:
            totals[name] = totals.get(name, 0.0) + float(given[0].double().square().mean()) / seeds

        return hook

    hooks = [
        module.register_forward_pre_hook(note(f"{path}.weight"))
        for path, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), nn.Parameter) and not isinstance(module, nn.Embedding)
    ]
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        es.initialize_(model, plan, generator=generator)
        with torch.no_grad():
            model(inputs(generator))
    for hook in hooks:
        hook.remove()
    return totals


@pytest.mark.parametrize("name", OTHERS)
def test_predicted_second_moments_are_those_of_a_run(name: str) -> None:
    function, depth = OTHERS[name]
    model = MLP(function, WIDTH)
    plan = es.plan(model, torch.zeros(2, WIDTH))
    assert plan.path_count == 1
    assert sum(edge.depth for edge in plan.graph.edges) == 2 * depth
    measured = measured_reads(model, plan, lambda generator: torch.randn(64, WIDTH, generator=generator), 12)
    for weight, read in read_by(plan).items():
        if weight != "c.weight" or name not in POLYNOMIALS:
            assert measured[weight] == pytest.approx(read, rel=0.08), weight


def test_a_plan_keeps_its_written_out_activations_in_json() -> None:
    plan = es.plan(MLP(OTHERS["quick_gelu"][0]), torch.zeros(2, 16))
    again = es.Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    names = {o.name for edge in again.graph.edges for o in edge.operators if isinstance(o, Activation)}
    assert names == {"x * sigmoid(1.702 * x)"}


# What is not one function of one field


def body(run: Callable[[Any, Tensor], Tensor]) -> es.Graph:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
            self.norm, self.factor = nn.LayerNorm(16), nn.Parameter(torch.full((16,), 0.7))
            self.register_buffer("mask", torch.arange(16.0))

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.c(run(self, x))
            return logits

    return es.trace(Net(), torch.zeros(4, 16))


APART: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "two weights": lambda m, x: m.a(x) * torch.sigmoid(m.b(x)),
    "moved entries": lambda m, x: (y := m.a(x)) * y.roll(1, 0).sigmoid(),
    "moved in unknown ways": lambda m, x: (y := m.a(x)) * y[torch.arange(4).flip(0)].sigmoid(),
    "halves": lambda m, x: torch.cat([(p := m.a(x).chunk(2, -1))[0] * p[1].sigmoid(), p[1]], -1),
    "dropout": lambda m, x: (y := m.a(x)) * F.dropout(torch.sigmoid(y), 0.5),
    "a norm": lambda m, x: (y := m.a(x)) * torch.sigmoid(m.norm(y)),
    "a softmax": lambda m, x: (y := m.a(x)) * torch.softmax(y, -1),
    "a mean": lambda m, x: (y := m.a(x)) * torch.sigmoid(y.mean(-1, keepdim=True)),
    "a parameter": lambda m, x: (y := m.a(x)) * torch.sigmoid(y * m.factor),
    "a buffer": lambda m, x: (y := m.a(x)) * torch.sigmoid(y + m.mask),
}


@pytest.mark.parametrize("name", APART)
def test_what_mixes_entries_or_fields_stays_a_product(name: str) -> None:
    products = [vertex.name for vertex in body(APART[name]).vertices if vertex.merge == "product"]
    assert len(products) == 1


def test_copies_in_a_sum_stay_paths() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        y = F.relu(m.a(x))
        return F.relu(y + 0.5 * y)

    assert es.plan(MLP(lambda x: F.relu(x + x)), torch.zeros(2, 16)).path_count == 4
    graph = body(run)
    (joined,) = (vertex.name for vertex in graph.vertices if graph.in_degree(vertex.name) == 2)
    assert [edge.words() for edge in graph.incoming[joined]] == ["identity", "times 0.5"]


def test_a_step_that_others_read_stays() -> None:
    graph = body(lambda m, x: (y := torch.sigmoid(h := m.a(x))) * h + m.b(y))
    names = {operator.name for edge in graph.edges for operator in edge.operators if isinstance(operator, Activation)}
    assert names == {"sigmoid", "silu"}


def test_functions_that_are_composed_over_and_over_stay_small() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.a(x)
        for _ in range(12):
            y = y * torch.tanh(y) + torch.sin(y)
        return y

    names = [o.name for edge in body(run).edges for o in edge.operators if isinstance(o, Activation)]
    assert max(map(len, names)) < 5000


@pytest.mark.parametrize(
    "guard", [lambda x: x.clamp(-1e4, 1e4), lambda x: x.clamp(min=-50), lambda x: x.clamp(max=1e9)]
)
def test_a_guard_against_extremes_is_no_activation(guard: Function) -> None:
    assert all(edge.activation is None for edge in body(lambda m, x: guard(m.a(x))).edges)


# GPT-2


@pytest.mark.parametrize("init", ["conserve", "he"])
@pytest.mark.filterwarnings("ignore:.*times the base's rate:evenstep.PlanWarning")
def test_the_matrices_of_gpt2_read_what_its_plan_says(init: str) -> None:
    pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "n_positions": 32, "n_embd": 128, "n_layer": 2, "n_head": 4}
    special = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    model = hugging_face("GPT2", "Sequence", use_cache=False, **sizes, **special).eval()
    tokens = torch.arange(2 * 32).view(2, 32)
    plan = es.plan(model, tokens, init=init)
    measured = measured_reads(
        model, plan, lambda generator: torch.randint(1, 64, (8, 32), generator=generator), seeds=6
    )
    predicted = read_by(plan)
    for block in (0, 1):
        name = f"transformer.h.{block}.mlp.c_proj.weight"
        assert measured[name] == pytest.approx(predicted[name], rel=0.05)
    assert "gelu_tanh" in {edge.activation for edge in plan.graph.edges}


@pytest.mark.parametrize(("name", "built_in"), [("gelu_new", nn.GELU(approximate="tanh")), ("gelu_python", nn.GELU())])
def test_activations_of_transformers_plan_as_those_of_torch(name: str, built_in: nn.Module) -> None:
    activations = pytest.importorskip("transformers.activations")
    written, plain = (es.plan(MLP(f), torch.zeros(2, 16)) for f in (activations.ACT2FN[name], built_in))
    assert written.graph.edges == plain.graph.edges
    assert written.parameters == plain.parameters


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_a_root_mean_square_norm_is_one_however_its_square_is_written(epsilon: float) -> None:
    def norm(square: Callable[[Tensor], Tensor], added: float = epsilon) -> Callable[[Tensor], Tensor]:
        return lambda z: 8 * z / torch.sqrt(square(8 * z).mean(-1, keepdim=True) + added)

    plans = [planned(norm(square)) for square in (lambda z: z * z, lambda z: z.pow(2), torch.square)]
    assert plans[0] == plans[1] == plans[2] == planned(lambda z: F.rms_norm(z, (64,)))
    with pytest.warns(es.PlanWarning, match="aten.div"):  # no norm: most of the root is the constant
        assert planned(norm(torch.square, added=100.0)) != plans[0]


def planned(function: Callable[[Tensor], Tensor]) -> list[tuple[str, float]]:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after, self.readout = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.readout(torch.relu(self.after(function(self.before(x)))))
            return logits

    plan = es.plan(Between(), torch.zeros(2, 16))
    return [(p.name, round(p.std, 6)) for p in plan.parameters]
