"""Check networks of unusual make: weights that are computed, tensors written in place, states handed over."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import evenstep as es
from evenstep.planning import chain_like

torch.set_num_threads(1)
# Odd on purpose: what a plan says of them is the business of test_checked.py.
pytestmark = pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")

WIDTH = 256


class Made(nn.Module):
    """Run a function of itself and its inputs; parts are given by name."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.run(self, *inputs)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parameter(*shape: int, scale: float = 1.0) -> nn.Parameter:
    return nn.Parameter(scale * normal(*shape, seed=1))


def unused(plan: es.Plan) -> list[str]:
    return [p.name for p in plan.parameters if "no path" in p.reason or "not used" in p.reason]


def measured(model: nn.Module, plan: es.Plan, inputs: tuple[Tensor, ...]) -> float:
    """Return the second moment of the (first) output, averaged over initialisations."""
    found = []
    for seed in range(6):
        es.initialize_(model, plan, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            out = model(*inputs)
        found.append(float((out[0] if isinstance(out, tuple) else out).square().mean()))
    return sum(found) / len(found)


def predicted(plan: es.Plan) -> float:
    last = plan.graph.outputs[0]
    return next(vertex.second_moment for vertex in plan.vertices if vertex.name == last)


# Weights that are computed from parameters


def weight_normed() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(64, WIDTH)), nn.ReLU(), nn.Linear(WIDTH, 64))


def spectral_normed() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(64, WIDTH)), nn.ReLU(), nn.Linear(WIDTH, 64))


def adapted() -> nn.Module:
    """Merge a low-rank change into a weight."""
    return Made(
        lambda m, x: m.head(F.relu(F.linear(x, m.W + m.A @ m.B))),
        W=parameter(WIDTH, 64, scale=0.2),
        A=parameter(WIDTH, 4),
        B=parameter(4, 64),
        head=nn.Linear(WIDTH, 64),
    )


def standardised() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        kernel = (m.W - m.W.mean((1, 2), keepdim=True)) / m.W.std((1, 2), keepdim=True)
        out: Tensor = m.head(F.relu(F.conv1d(x.unsqueeze(-1), kernel)).squeeze(-1))
        return out

    return Made(run, W=parameter(WIDTH, 64, 1), head=nn.Linear(WIDTH, 64))


def generated() -> nn.Module:
    """Let a small network write the weight."""
    return Made(
        lambda m, x: m.head(F.relu(F.linear(x, m.maker(m.code).view(WIDTH, 64)))),
        code=parameter(4),
        maker=nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, WIDTH * 64)),
        head=nn.Linear(WIDTH, 64),
    )


@pytest.mark.parametrize("make", [weight_normed, spectral_normed, adapted, standardised, generated])
def test_a_computed_weight_keeps_its_parts_and_counts_by_its_real_size(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make().eval(), normal(512, 64)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    plan = es.plan(model, x)
    assert not unused(plan)
    assert predicted(plan) == pytest.approx(measured(model, plan, (x,)), rel=0.25)
    parts = [p for p in plan.parameters if "computed" in p.reason]
    assert parts
    for part in parts:
        assert part.kept
        assert torch.equal(model.get_parameter(part.name), before[part.name])


def test_moved_and_joined_weights_are_drawn_as_any_other() -> None:
    model = Made(
        lambda m, x: m.head(F.relu(F.linear(x, torch.cat([m.A.t(), m.B.view(8, 16)])))),
        A=parameter(16, 8),
        B=parameter(128),
        head=nn.Linear(16, 4),
    )
    plan = es.plan(model, normal(2, 16))
    assert [plan[name].std for name in "AB"] == pytest.approx([0.25, 0.25])
    assert not any(p.kept for p in plan.parameters)


def test_factors_computed_from_parameters_count_by_their_own_size_and_sign() -> None:
    grown = Made(lambda m, x: m.log.exp() * x, log=nn.Parameter(torch.full((8,), 1.0)))
    assert predicted(es.plan(grown, normal(2, 8))) == pytest.approx(math.e**2)
    # exp(-x) of |z| stays below one; exp(x) would not.
    decays = Made(lambda m, x: torch.exp(-torch.exp(m.log) * x.abs()), log=nn.Parameter(torch.zeros(8)))
    x = normal(4096, 8)
    assert predicted(es.plan(decays, x)) == pytest.approx(float(decays(x).detach().square().mean()), rel=0.3)


def test_a_kernel_built_on_the_way_counts_by_its_real_size() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        kernel = torch.ones(3, 1, 3, 3) / 3
        out: Tensor = F.conv2d(x, kernel, groups=3)
        return out

    x = normal(8, 3, 32, 32)
    plan = es.plan(Made(run, idle=nn.Linear(1, 1)), x)  # without anything to train there is no plan
    assert predicted(plan) == pytest.approx(1.0)
    assert predicted(plan) == pytest.approx(float(run(None, x).square().mean()), rel=0.1)


# Tensors written in place


def filled(m: Any, x: Tensor) -> Tensor:
    y = torch.zeros(x.shape[0], 2 * WIDTH)
    y[:, :WIDTH] = m.first(x)
    y[:, WIDTH:] = F.relu(m.second(x))
    out: Tensor = m.head(y)
    return out


def added_to_a_part(m: Any, x: Tensor) -> Tensor:
    y = torch.cat([m.first(x), m.first(x)], dim=1)
    y[:, WIDTH:] += m.second(x)
    out: Tensor = m.head(y)
    return out


def scattered(m: Any, x: Tensor) -> Tensor:
    y = torch.slice_scatter(torch.cat([m.first(x), x[:, :1].expand(-1, WIDTH)], 1), m.second(x), 1, WIDTH)
    out: Tensor = m.head(y)
    return out


def aliased(m: Any, x: Tensor) -> Tensor:
    """Rectify in place what another name still stands for."""
    y = torch.cat([m.first(x), m.second(x)], dim=1)
    F.relu_(y)
    out: Tensor = m.head(y)
    return out


@pytest.mark.parametrize("run", [filled, added_to_a_part, scattered, aliased])
def test_what_is_written_in_place_is_on_the_path(run: Callable[[Any, Tensor], Tensor]) -> None:
    model = Made(run, first=nn.Linear(64, WIDTH), second=nn.Linear(64, WIDTH), head=nn.Linear(2 * WIDTH, 64))
    x = normal(512, 64)
    plan = es.plan(model, x, init="he")
    assert not unused(plan)
    assert predicted(plan) == pytest.approx(measured(model, plan, (x,)), rel=0.2)


def test_an_activation_in_place_counts_for_every_name_of_its_tensor() -> None:
    model = Made(aliased, first=nn.Linear(8, 8), second=nn.Linear(8, 8), head=nn.Linear(16, 4))
    assert es.plan(model, normal(2, 8)).sum_cubed_depth == 2  # two paths of one ReLU each


# Products and sums


@pytest.mark.parametrize("equation", ["bi,io", "bi,io->bo", "...i,io->...o"])
@pytest.mark.parametrize("batch", [2, 7])
def test_an_einsum_reads_what_it_sums_over(equation: str, batch: int) -> None:
    model = Made(lambda m, x: m.head(F.relu(torch.einsum(equation, x, m.W))), W=parameter(16, 8), head=nn.Linear(8, 4))
    found = next(p for p in es.trace(model, normal(batch, 16)).parameters if p.name == "W")
    assert (found.fan_in, found.fan_out) == (16, 8)


def test_weights_of_three_axes_are_no_convolutions() -> None:
    """Plan a weight for two heads, and the same weight flat."""
    heads = Made(
        lambda m, x: m.head(F.relu(torch.einsum("bi,iho->bho", x, m.W)).flatten(1)),
        W=parameter(16, 2, 8),
        head=nn.Linear(16, 4),
    )
    flat = Made(lambda m, x: m.head(F.relu(x @ m.W)), W=parameter(16, 16), head=nn.Linear(16, 4))
    a, b = (es.plan(model, normal(2, 16)) for model in (heads, flat))
    assert [f.name for f in a.factors] == ["topology"]
    assert [p.std for p in a.parameters] == pytest.approx([p.std for p in b.parameters])
    assert [p.lr_scale for p in a.parameters] == pytest.approx([p.lr_scale for p in b.parameters])


def test_addmm_adds_a_signal_or_a_bias() -> None:
    x = normal(512, WIDTH)
    residual = Made(
        lambda m, x: m.head(torch.addmm(x, F.relu(x), m.W, beta=0.5, alpha=2.0)),
        W=parameter(WIDTH, WIDTH),
        head=nn.Linear(WIDTH, 64),
    )
    plan = es.plan(residual, x, init="he")
    assert plan.path_count == 2
    assert predicted(plan) == pytest.approx(measured(residual, plan, (x,)), rel=0.15)
    biased = Made(lambda m, x: torch.addmm(m.b, x, m.W), W=parameter(WIDTH, 64), b=parameter(64))
    plan = es.plan(biased, x)
    assert [plan[name].role for name in "Wb"] == ["weight", "bias"]


def test_a_matrix_product_with_its_bias_written_out_plans_as_a_linear_layer() -> None:
    first, second, head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
    for layer in (first, second):
        nn.init.zeros_(layer.bias)

    def written(m: Any, x: Tensor) -> Tensor:
        h = F.relu(x @ m.first.weight.t() + m.first.bias)
        out: Tensor = m.head(F.relu(h - (h @ m.second.weight.t() + m.second.bias)))
        return out

    def called(m: Any, x: Tensor) -> Tensor:
        h = F.relu(m.first(x))
        out: Tensor = m.head(F.relu(h + m.second(h)))
        return out

    a, b = (es.plan(Made(run, first=first, second=second, head=head), normal(2, 8)) for run in (written, called))
    for name in ("first.weight", "second.weight", "head.weight"):
        assert (a[name].std, a[name].lr_scale) == pytest.approx((b[name].std, b[name].lr_scale))


# Recurrent cells and states


def test_the_encoder_behind_an_initial_state_is_on_the_path() -> None:
    def run(m: Any, x: Tensor, y: Tensor) -> Tensor:
        _, state = m.encoder(x)
        out: Tensor = m.head(m.decoder(y, state)[0])
        return out

    model = Made(run, encoder=nn.LSTM(8, 16), decoder=nn.LSTM(8, 16), head=nn.Linear(16, 4))
    plan = es.plan(model, (normal(5, 2, 8), normal(4, 2, 8)))
    assert not unused(plan)
    assert plan["encoder.weight_hh_l0"].std == pytest.approx(0.25)


def test_packed_sequences_of_full_length_plan_as_the_tensor_they_hold() -> None:
    def packed(m: Any, x: Tensor) -> Tensor:
        lengths = torch.full((x.shape[0],), x.shape[1])
        out, _ = m.cell(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
        read: Tensor = m.head(nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0])
        return read

    def whole(m: Any, x: Tensor) -> Tensor:
        read: Tensor = m.head(m.cell(x)[0])
        return read

    plans = [
        es.plan(Made(run, cell=nn.LSTM(8, 16, num_layers=2, batch_first=True), head=nn.Linear(16, 4)), normal(3, 5, 8))
        for run in (packed, whole)
    ]
    assert not unused(plans[0])
    for one, other in zip(*plans, strict=True):
        assert (one.name, one.std, one.role) == (other.name, other.std, other.role)
        assert one.lr_scale == pytest.approx(other.lr_scale)


@pytest.mark.parametrize("cell", [nn.LSTMCell(8, 16), nn.GRUCell(8, 16), nn.RNNCell(8, 16)])
def test_cells_unrolled_by_hand_plan_as_the_layer_does(cell: nn.Module) -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        state: Any = x.new_zeros(x.shape[1], 16)
        state = (state, state) if isinstance(cell, nn.LSTMCell) else state
        for step in x:
            state = m.cell(step, state)
        out: Tensor = m.head(state[0] if isinstance(state, tuple) else state)
        return out

    x = normal(3, 2, 8)
    plan = es.plan(Made(run, cell=cell, head=nn.Linear(16, 4)), x)
    layer = {nn.LSTMCell: nn.LSTM, nn.GRUCell: nn.GRU, nn.RNNCell: nn.RNN}[type(cell)](8, 16)
    whole = es.plan(Made(lambda m, x: m.head(m.cell(x)[0]), cell=layer, head=nn.Linear(16, 4)), x)
    assert not unused(plan)
    for name in ("weight_ih", "weight_hh", "bias_ih"):
        one, other = plan[f"cell.{name}"], whole[f"cell.{name}_l0"]
        assert (one.std, one.lr_scale, one.role) == (other.std, other.lr_scale, other.role)


def test_the_projection_of_an_lstm_has_no_gates() -> None:
    model = Made(lambda m, x: m.head(m.lstm(x)[0]), lstm=nn.LSTM(8, 16, proj_size=6), head=nn.Linear(6, 4))
    found = next(p for p in es.trace(model, normal(3, 2, 8)).parameters if p.name == "lstm.weight_hr_l0")
    assert (found.fan_in, found.fan_out) == (16, 6)


# Operators met in the wild

ORDINARY: dict[str, tuple[Callable[[Any, Tensor], Any], float]] = {
    # name -> (what stands between two layers, tolerance of the predicted second moment)
    "noise": (lambda m, h: h + 0 * torch.randn_like(h), 0.15),
    "mask": (lambda m, h: h * torch.ones_like(h), 0.15),
    "mixed": (lambda m, h: torch.lerp(h, m.other(F.relu(h)), 0.3), 0.15),
    "layer norm by hand": (
        lambda m, h: (h - h.mean(-1, keepdim=True)) * torch.rsqrt(h.var(-1, keepdim=True) + 1e-5),
        0.15,
    ),
    "divided by its deviation": (lambda m, h: (h - h.mean(-1, keepdim=True)) / h.std(-1, keepdim=True), 0.15),
    "larger of two": (lambda m, h: torch.max(h, m.other(F.relu(h))), 0.15),
    "largest": (lambda m, h: h.view(-1, WIDTH // 2, 2).amax(-1).repeat(1, 2), 0.15),
    "smallest": (lambda m, h: h.view(-1, WIDTH // 2, 2).min(-1).values.repeat(1, 2), 0.15),
    "shrunk": (lambda m, h: F.softshrink(h, 0.4), 0.15),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_operators_are_known_and_keep_their_sizes(name: str) -> None:
    between, tolerance = ORDINARY[name]
    model = Made(
        lambda m, x: m.head(between(m, m.first(x))),
        first=nn.Linear(64, WIDTH),
        other=nn.Linear(WIDTH, WIDTH),
        head=nn.Linear(WIDTH, 64),
    )
    x = normal(512, 64)
    plan = es.plan(model, x)
    assert predicted(plan) == pytest.approx(measured(model, plan, (x,)), rel=tolerance)


def test_a_model_that_returns_its_loss_is_read_up_to_its_logits() -> None:
    layers = {"first": nn.Linear(8, 16), "head": nn.Linear(16, 4)}
    with_loss = Made(lambda m, x, y: F.cross_entropy(m.head(F.relu(m.first(x))), y), **layers)
    without = Made(lambda m, x: m.head(F.relu(m.first(x))), **layers)
    a = es.plan(with_loss, (normal(2, 8), torch.tensor([0, 1])))
    assert a.parameters == es.plan(without, normal(2, 8)).parameters


def test_attention_with_weights_and_masks_is_known() -> None:
    mask = torch.triu(torch.full((5, 5), float("-inf")), 1)

    def run(m: Any, x: Tensor, padding: Tensor) -> Tensor:
        mixed = m.attention(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=True)[0]
        out: Tensor = m.head(x + mixed)
        return out

    model = Made(run, attention=nn.MultiheadAttention(16, 4, batch_first=True), head=nn.Linear(16, 4))
    plan = es.plan(model, (normal(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)))
    assert not unused(plan)


def test_a_bias_on_the_scores_of_attention_is_on_the_path() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(m.q(x), m.k(x), m.v(x), attn_mask=2 * m.table)
        out: Tensor = m.head(mixed)
        return out

    layers = {name: nn.Linear(16, 16) for name in ("q", "k", "v", "head")}
    plan = es.plan(Made(run, table=parameter(5, 5), **layers), normal(2, 5, 16))
    assert not unused(plan)
    assert plan["table"].kept
    assert "scaled_dot_product_attention" in plan["table"].reason


# Activations that cannot carry the second moment


@pytest.mark.parametrize("gate", [torch.sigmoid, torch.tanh, F.hardsigmoid, torch.sin, F.softplus])
def test_bounded_activations_do_not_blow_up_the_weights_before_them(gate: Callable[[Tensor], Tensor]) -> None:
    model = Made(
        lambda m, x: m.head((y := m.first(x)) * gate(m.gate(y)) + gate(m.gate2(x))),
        first=nn.Linear(64, WIDTH),
        gate=nn.Linear(WIDTH, WIDTH),
        gate2=nn.Linear(64, WIDTH),
        head=nn.Linear(WIDTH, 64),
    )
    x = normal(512, 64)
    plan = es.plan(model, x)
    for name, fan_in in (("gate.weight", WIDTH), ("gate2.weight", 64)):
        assert 0.1 < plan[name].std * math.sqrt(fan_in) < 3
    assert predicted(plan) == pytest.approx(measured(model, plan, (x,)), rel=0.25)


# The base behind a number


def test_squares_and_roots_of_a_norm_by_hand_are_no_activations_of_the_base() -> None:
    def run(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = F.silu(layer(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)))
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        out: Tensor = m.head(x)
        return out

    model = Made(run, layers=nn.ModuleList([nn.Linear(16, 16) for _ in range(2)]), head=nn.Linear(16, 4))
    graph = es.trace(model, normal(2, 16))
    assert {edge.activation for edge in chain_like(graph).edges} <= {"silu", None}


def test_a_branch_that_runs_for_nothing_changes_no_number() -> None:
    layers = {"first": nn.Linear(16, 16), "head": nn.Linear(16, 4)}
    plain = Made(lambda m, x: m.head(F.relu(m.first(x))), **layers)

    def run(m: Any, x: Tensor) -> Tensor:
        torch.tanh(m.dead(torch.tanh(m.norm(x).unsqueeze(1)))).sum()
        out: Tensor = m.head(F.relu(m.first(x)))
        return out

    dead = Made(run, dead=nn.Conv1d(1, 4, 5), norm=nn.LayerNorm(16), **layers)
    a, b = es.plan(plain, normal(2, 16)), es.plan(dead, normal(2, 16))
    assert a.factors == b.factors
    assert [b[p.name] for p in a.parameters] == list(a.parameters)


def test_a_patch_embedding_plans_like_the_matrix_it_is() -> None:
    """A convolution whose stride is its kernel reads each patch once: a linear layer on patches."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(3 * 4 * 4, 24)
            self.head = nn.Linear(24, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            cut = images.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3)
            logits: torch.Tensor = self.head(torch.relu(self.embed(cut)).mean(dim=(1, 2)))
            return logits

    convolution = nn.Sequential(
        nn.Conv2d(3, 24, 4, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)
    )
    images = torch.zeros(2, 3, 16, 16)
    one, other = es.plan(convolution, images), es.plan(Patches(), images)
    assert one.lr_scale == pytest.approx(other.lr_scale)
    for mine, theirs in (("0.weight", "embed.weight"), ("4.weight", "head.weight")):
        assert one[mine].std == pytest.approx(other[theirs].std)
        assert one[mine].lr_scale == pytest.approx(other[theirs].lr_scale)
