"""Check how far steps on weights move the head, against real perturbations of real networks.

A weight is changed by small Gaussian noise of standard deviation e / sqrt(fan_in); the head moves by e^2 times the
effect, in units of its own second moment, on average over draws of all weights.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import evenstep as es
from evenstep.graph import Edge, Graph, Vertex
from evenstep.graph.operators import (
    Activation,
    Average,
    ConcatBlock,
    Maximum,
    Norm,
    RMSNorm,
    Scale,
    Slice,
    Steer,
    Weight,
)
from evenstep.init import Network
from evenstep_research.study.backward import effects, sensitivities

WIDTH, BATCH, DRAWS = 256, 64, 12


def measured_effects(
    head: Callable[[dict[str, Tensor], Tensor], Tensor], plan: es.Plan, inputs: tuple[int, ...], *, draws: int = DRAWS
) -> dict[str, float]:
    """Return how far noise on each weight moves the head, by the weight's name."""
    generator = torch.Generator().manual_seed(0)
    fan_in = {p.name: p.fan_in for p in plan.graph.parameters if p.role == "weight"}
    small = 1e-3
    moved = dict.fromkeys(fan_in, 0.0)
    size = 0.0
    for _ in range(draws):
        weights = {
            p.name: p.mean + p.std * torch.randn(p.shape, generator=generator, dtype=torch.float64)
            for p in plan.parameters
        }
        x = torch.randn((BATCH, *inputs), generator=generator, dtype=torch.float64)
        start = head(weights, x)
        size += start.square().mean().item()
        for name in fan_in:
            noise = torch.randn(weights[name].shape, generator=generator, dtype=torch.float64)
            changed = head({**weights, name: weights[name] + small * fan_in[name] ** -0.5 * noise}, x)
            moved[name] += (changed - start).square().mean().item() / small**2
    return {name: value / size for name, value in moved.items() if value > 0}


def predicted_effects(plan: es.Plan) -> dict[str, float]:
    network = Network.of(plan.graph, plan.init)
    weights = {p.name for p in plan.graph.parameters if p.role == "weight"}
    return {
        name: effect
        for edge_index, effect in effects(network).items()
        for name in network.live.edges[edge_index].parameters
        if name in weights
    }


class Net(nn.Module):
    """A network whose head is what `body` returns, before a readout."""

    def __init__(self, body: Callable[[dict[str, Tensor], Tensor], Tensor], names: tuple[str, ...]) -> None:
        super().__init__()
        self.body = body
        self.weights = nn.ParameterDict({name: nn.Parameter(torch.zeros(WIDTH, WIDTH)) for name in names})
        self.readout = nn.Parameter(torch.zeros(16, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.body(dict(self.weights.items()), x), self.readout)


def linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[name])


def chain(w: dict[str, Tensor], x: Tensor) -> Tensor:
    return linear(w, "c", F.relu(linear(w, "b", F.relu(linear(w, "a", x)))))


def post(w: dict[str, Tensor], x: Tensor) -> Tensor:
    x = F.gelu(linear(w, "a", x))
    return F.gelu(linear(w, "b", x)) + F.gelu(linear(w, "c", x))


def residual(w: dict[str, Tensor], x: Tensor) -> Tensor:
    x = linear(w, "a", x)
    x = x + linear(w, "b", F.relu(x))
    return x + 0.5 * linear(w, "c", F.tanh(x))


def copies(w: dict[str, Tensor], x: Tensor) -> Tensor:
    x = linear(w, "a", x)
    y = x + x
    return y + x + linear(w, "b", F.relu(y))


def normed(w: dict[str, Tensor], x: Tensor) -> Tensor:
    x = 3.0 * linear(w, "a", x)
    x = x + linear(w, "b", F.relu(F.layer_norm(x, (WIDTH,))))
    return F.layer_norm(x + linear(w, "c", F.relu(F.rms_norm(x, (WIDTH,)))), (WIDTH,))


def gated(w: dict[str, Tensor], x: Tensor) -> Tensor:
    x = linear(w, "a", x)
    return linear(w, "b", x) * F.silu(linear(w, "c", x))


def joined(w: dict[str, Tensor], x: Tensor) -> Tensor:
    x = linear(w, "a", x)
    left, right = x.chunk(2, dim=-1)
    return linear(w, "b", torch.cat([F.relu(left), right], dim=-1))


def written_out(w: dict[str, Tensor], x: Tensor) -> Tensor:
    x = linear(w, "a", x)
    x = linear(w, "b", 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x**3))))
    return linear(w, "c", F.relu(x) * x)


BODIES = {"chain": chain, "post": post, "residual": residual, "copies": copies, "normed": normed} | {
    "gated": gated,
    "written out": written_out,
    "joined": joined,
}


@pytest.mark.parametrize("init", ["conserve", "he"])
@pytest.mark.parametrize("name", BODIES)
def test_a_step_moves_the_head_as_far_as_predicted(name: str, init: str) -> None:
    used = tuple("abc" if name not in ("copies", "joined") else "ab")
    net = Net(BODIES[name], used)
    plan = es.plan(net, torch.zeros(2, WIDTH), init=init)

    def head(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return BODIES[name]({key.removeprefix("weights."): value for key, value in weights.items()}, x)

    predicted, measured = predicted_effects(plan), measured_effects(head, plan, (WIDTH,))
    assert set(predicted) == {f"weights.{key}" for key in used} == set(measured)
    for weight in predicted:
        assert predicted[weight] == pytest.approx(measured[weight], rel=0.1), weight


def test_steps_of_convolutions_move_the_head_as_far_as_predicted() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.readout = (
                nn.Conv2d(8, 32, 3, padding=1),
                nn.Conv2d(32, 32, 3, padding=1),
                nn.Linear(32, 4),
            )

        def forward(self, x: Tensor) -> Tensor:
            x = self.b(F.relu(self.a(x)))
            result: Tensor = self.readout(F.relu(x).mean((2, 3)))
            return result

    plan = es.plan(Small(), torch.zeros(2, 8, 16, 16))

    def head(w: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.conv2d(F.relu(F.conv2d(x, w["a.weight"], padding=1)), w["b.weight"], padding=1)

    predicted, measured = predicted_effects(plan), measured_effects(head, plan, (8, 16, 16), draws=6)
    for name in ("a.weight", "b.weight"):
        assert predicted[name] == pytest.approx(measured[name], rel=0.1), name


# By hand


def graph_of(*edges: Edge, merge: str = "sum") -> Graph:
    names = dict.fromkeys(end for edge in edges for end in (edge.source, edge.target))
    return Graph.build(
        [Vertex(name, merge if name == "h" else "sum") for name in names],  # type: ignore[arg-type]
        edges,
        inputs=("x",),
        outputs=("y",),
    )


STEM, HEAD = Edge("x", "a", (Weight(),)), Edge("h", "y", (Weight(),))


def sensitivity(*edges: Edge, merge: str = "sum") -> float:
    network = Network.of(graph_of(STEM, *edges, HEAD, merge=merge))
    return sensitivities(network.signal, "h")["a"]


def test_sensitivities_of_single_operators() -> None:
    assert sensitivity(Edge("a", "h", (Scale(3.0),))) == pytest.approx(9.0)
    assert sensitivity(Edge("a", "h", (Norm(),))) == pytest.approx(1.0)
    assert sensitivity(Edge("a", "b", (Scale(3.0),)), Edge("b", "h", (RMSNorm(),))) == pytest.approx(1.0)
    assert sensitivity(Edge("a", "h", (Average(4),))) == pytest.approx(1 / 4)
    assert sensitivity(Edge("a", "h", (Slice(),))) == pytest.approx(1.0)
    assert sensitivity(Edge("a", "h", (Maximum(4),))) == pytest.approx(1.0)
    assert sensitivity(Edge("a", "h", (Activation("relu"),))) == pytest.approx(0.5, rel=1e-2)
    assert sensitivity(
        Edge("a", "h", (ConcatBlock(0.25),)), Edge("x", "h", (ConcatBlock(0.75),)), merge="concat"
    ) == pytest.approx(0.25)


def test_copies_of_a_change_add_in_amplitude_and_new_fields_in_power() -> None:
    skip = Edge("a", "h")
    assert sensitivity(skip, skip) == pytest.approx(4.0)
    assert sensitivity(skip, Edge("a", "h", (Scale(-1.0),))) == pytest.approx(0.0)
    fresh = Edge("a", "h", (Weight(),))
    assert sensitivity(fresh, fresh) == pytest.approx(1.0)  # each drawn for half of what arrives


def test_a_square_moves_twice_as_far_as_what_it_squares() -> None:
    factor = Edge("a", "h")
    assert sensitivity(factor, factor, merge="product") == pytest.approx(4.0)


def test_what_steers_moves_nothing() -> None:
    assert sensitivity(Edge("x", "h"), Edge("a", "h", (Steer(),)), merge="product") == 0.0


def test_readouts_and_dead_ends_move_no_head() -> None:
    network = Network.of(graph_of(STEM, Edge("a", "h"), HEAD))
    assert set(effects(network)) == {0}
