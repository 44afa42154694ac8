"""Hold plans against real forward passes: what operators make of a signal is computed right, or said to be wrong."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import evenstep as es
from evenstep.graph.operators import Measured
from evenstep.module import measuring

torch.set_num_threads(1)

WIDTH = 256


class Between(nn.Module):
    """A function between layers of weights, wide enough for means to be means."""

    def __init__(self, function: Callable[[Tensor], Tensor], wide: int = WIDTH) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, WIDTH), nn.Linear(wide, WIDTH)
        self.readout = nn.Linear(WIDTH, 16)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.readout(torch.relu(self.second(self.function(self.first(x)))))
        return logits


X = torch.zeros(32, 64)
RIGHT: dict[str, Callable[[Tensor], Tensor]] = {
    "normalize": lambda h: F.normalize(h, dim=-1),
    "divided by its norm": lambda h: h / h.norm(dim=-1, keepdim=True),
    "divided by its deviation": lambda h: h / h.std(-1, keepdim=True),
    "cumsum": lambda h: h.cumsum(-1),
    "log_softmax": lambda h: F.log_softmax(h, dim=-1),
    "one over one plus square": lambda h: 1 / (1 + h**2),
    "clamp": lambda h: h.clamp(-0.1, 0.1),
    "clamp to almost nothing": lambda h: h.clamp(-0.001, 0.001),
    "tanhshrink": F.tanhshrink,
    "squared relu": lambda h: torch.relu(h) ** 2,
    "threshold": lambda h: F.threshold(h, 0.5, 0.0),
    "dropout": lambda h: F.dropout(h, 0.5, training=True),
    "an added number": lambda h: h + 5.0,
    "numbers made on the way": lambda h: h - torch.full((WIDTH,), 5.0),
    "sum of all": lambda h: torch.einsum("bc->b", h)[:, None].expand(-1, WIDTH),
    "times its mirror image": lambda h: h * h.flip(1),
    "padded": lambda h: F.pad(h[:, :64], (0, 192)),
}


def second_moments(model: nn.Module, plan: es.Plan, draws: int = 24, batch: int = 256) -> dict[str, float]:
    """Return what the layers of a module make in plain torch, drawn as planned: nothing of ours but `initialize_`."""
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad(), torch.random.fork_rng():
        for seed in range(draws):
            torch.manual_seed(seed)
            drawn = copy.deepcopy(model)
            es.initialize_(drawn, plan)
            for name, layer in drawn.named_children():
                layer.register_forward_hook(lambda _m, _x, y, name=name: found.setdefault(name, []).append(y))
            drawn(torch.randn(batch, 64))
    return {name: float(torch.stack(values).square().mean()) for name, values in found.items()}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.filterwarnings("ignore:.*(times the base's rate|standard deviation):evenstep.PlanWarning")
def test_what_operators_make_of_a_signal_is_computed_right(name: str) -> None:
    model = Between(RIGHT[name])
    plan = es.plan(model, X)
    assert not plan.remarks
    computed = {vertex.name: vertex.second_moment for vertex in plan.vertices}
    assert second_moments(model, plan)["second"] == pytest.approx(computed["second"], rel=0.1)


class Added(nn.Module):
    """Add numbers that are trained, or not."""

    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        values = torch.linspace(4.0, 6.0, WIDTH)
        self.values = nn.Parameter(values) if trained else values

    def forward(self, h: Tensor) -> Tensor:
        return h + self.values


@pytest.mark.parametrize("trained", [True, False])
def test_what_is_added_counts(*, trained: bool) -> None:
    model = Between(Added(trained=trained))
    plan = es.plan(model, X)
    assert not plan.warnings
    computed = {vertex.name: vertex.second_moment for vertex in plan.vertices}
    assert second_moments(model, plan)["second"] == pytest.approx(computed["second"], rel=0.1)


def wrong_product(h: Tensor) -> Tensor:
    return h @ h.T @ h


def divided(h: Tensor) -> Tensor:
    return h / (100.0 + h.roll(1, 1).abs())


@pytest.mark.parametrize(("function", "operator"), [(wrong_product, "aten.matmul"), (divided, "aten.div")])
def test_what_is_computed_wrong_is_said_and_the_plan_goes_on_from_what_is_measured(
    function: Callable[[Tensor], Tensor], operator: str
) -> None:
    model = Between(function)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = es.plan(model, X)
        blind = es.plan(model, X, measure=False)
    assert operator in plan.remarks[0]
    assert "uses the measured value" in plan.remarks[0]
    assert {str(warning.message) for warning in caught} >= set(plan.remarks)
    computed = {vertex.name: vertex.second_moment for vertex in plan.vertices}
    measured, unmeasured = (second_moments(model, made, batch=len(X)) for made in (plan, blind))
    assert 0.4 < measured["second"] / computed["second"] < 2.5
    assert not 0.5 < unmeasured["second"] / computed["second"] < 2
    assert any(isinstance(operator, Measured) for edge in plan.graph.edges for operator in edge.operators)
    assert es.Plan.from_json(plan.to_json()) == plan


def test_strict_makes_an_error_of_a_warning() -> None:
    with pytest.raises(es.PlanError, match=r"aten.matmul.*strict=True"):
        es.plan(Between(wrong_product), X, strict=True)


def test_the_ratio_stands_beside_every_vertex() -> None:
    plan = es.plan(Between(torch.tanh), X)
    ratios = {vertex.name: vertex.measured for vertex in plan.vertices}
    assert all(ratio is not None and 0.7 < ratio < 1.4 for ratio in ratios.values()), ratios
    assert all(vertex.measured is None for vertex in es.plan(Between(torch.tanh), X, measure=False).vertices)


def test_measuring_changes_neither_the_module_nor_the_random_state() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.3), nn.Flatten(), nn.Linear(8 * 36, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    first = es.plan(model, torch.zeros(2, 3, 8, 8), measure=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    torch.manual_seed(7)
    assert es.plan(model, torch.rand(2, 3, 8, 8), measure=True) == first  # the example's values do not count


def test_what_cannot_run_is_planned_as_computed() -> None:
    with torch.device("meta"):
        model = Between(torch.tanh)
    plan = es.plan(model, X.to("meta"))
    assert all(vertex.measured is None for vertex in plan.vertices)
    with pytest.raises(es.InputError, match="measure is True, but the module cannot be run"):
        es.plan(model, X.to("meta"), measure=True)


def test_a_network_that_fails_on_other_inputs_says_so_and_is_planned() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.readout = nn.Embedding(10, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            index = (x.abs() * 1e6).long()  # in range for an example of zeros alone
            logits: Tensor = self.readout(torch.relu(self.table(index)))
            return logits

    assert any("could not be run to measure its signals (IndexError" in line for line in said(Fails()))


def test_large_forward_passes_run_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenstep.module.measuring._ALWAYS", 1e3)
    monkeypatch.setattr("evenstep.module.measuring._FOR_EVERY_NODE", 1.0)
    assert es.plan(Between(torch.tanh), X).vertices[-1].measured is None
    assert es.plan(Between(torch.tanh), X, measure=True).vertices[-1].measured is not None


def test_the_size_of_a_forward_pass_counts_multiplications() -> None:
    from evenstep.module.trace import read

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4))
    assert measuring.forward_size(read(model, torch.zeros(2, 3, 8, 8))) == 2 * 36 * 8 * 27 + 2 * 4 * 288


def test_tied_weights_are_drawn_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(500, 64)
            self.readout = nn.Linear(64, 500, bias=False)
            self.readout.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.readout(self.table(x))
            return logits

    model = Tied()
    ids = torch.randint(500, (64, 8), generator=torch.Generator().manual_seed(0))
    plan = es.plan(model, ids)
    generator = torch.Generator().manual_seed(0)
    es.initialize_(model, plan, generator=generator)
    logits = float(model(ids).detach().square().mean())
    vertex = plan.vertices[-1]
    assert vertex.measured is not None
    assert vertex.measured * vertex.second_moment == pytest.approx(logits, rel=0.1)


# What no plan should say


class Chain(nn.Module):
    """Two layers with something odd between them."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 4)
        self.middle = nn.Linear(64, 64)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.relu(self.middle(getattr(self, "factor", 1.0) * self.first(x))))
        return logits


def said(model: nn.Module, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        es.plan(model, torch.zeros(2, 16), **options)
    return [str(warning.message) for warning in caught if issubclass(warning.category, es.PlanWarning)]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Chain(factor=1e-3), "'middle.weight' starts at a huge standard deviation, 125"),
        (Chain(factor=1e5), "'middle.weight' starts at a tiny standard deviation, 1.25e-06"),
        (Chain(factor=1e-3), "'middle.weight' would train at 1"),
        (Chain(idle=nn.Linear(3, 3)), "'idle.weight' is not used: no output depends on it; the same is true of 1 more"),
        (
            Chain(factor=nn.Parameter(torch.ones(2, 64))),
            "",
        ),
    ],
    ids=["large", "small", "fast", "idle", "fine"],
)
def test_what_looks_absurd_is_said_with_the_parameter_and_the_reason(model: nn.Module, words: str) -> None:
    lines = said(model)
    assert any(line.startswith(words) for line in lines) if words else not lines


def test_much_that_is_left_as_it_is_is_said_but_not_where_it_was_asked_for() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 64)), nn.ReLU(), nn.Linear(64, 4))
    (line,) = said(model)
    part = 64 * 17 / sum(p.numel() for p in model.parameters())
    assert line.startswith(
        f"{100 * part:.3g} % of all parameter values are kept as they are, "
        "above all those of '0.parametrizations.weight."
    )
    assert not said(model, init="keep")


def test_nothing_is_said_of_ordinary_networks() -> None:
    block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    assert not said(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        es.plan(nn.Sequential(nn.Linear(16, 32), block, nn.Linear(32, 4)), torch.zeros(2, 9, 16))
        assert math.isfinite(es.plan(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4)), torch.zeros(1, 16)).lr_scale)


# What an attack found


class Deep(nn.Module):
    """The same function after every one of several layers."""

    def __init__(self, function: Callable[[Tensor], Tensor], depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.readout = nn.Linear(WIDTH, 16)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.layers:
            h = self.function(layer(h))
        logits: Tensor = self.readout(h)
        return logits


def outputs(model: nn.Module, plan: es.Plan, batch: int, draws: int = 8) -> float:
    """Return the second moment of a network's output, in plain torch."""
    found = []
    with torch.no_grad(), torch.random.fork_rng():
        for seed in range(draws):
            torch.manual_seed(seed)
            drawn = copy.deepcopy(model)
            es.initialize_(drawn, plan)
            found.append(float(drawn(torch.randn(batch, 64)).square().mean()))
    return sum(found) / draws


@pytest.mark.parametrize("shift", [lambda h: h - h.roll(1, -1), lambda h: h - h.flip(1)], ids=["roll", "flip"])
def test_a_field_less_its_own_entries_in_other_places_is_not_nothing(shift: Callable[[Tensor], Tensor]) -> None:
    model = Deep(shift, 3)
    plan = es.plan(model, X)
    assert not plan.warnings
    assert outputs(model, plan, 64) == pytest.approx(plan.vertices[-1].second_moment, rel=0.25)


def test_small_deviations_that_build_up_are_said_and_corrected() -> None:
    model = Deep(torch.tril, 6)
    with pytest.warns(es.PlanWarning, match=r"aten\.tril"):
        plan = es.plan(model, X)
    assert plan.vertices[-1].second_moment / 2 < outputs(model, plan, len(X)) < 2 * plan.vertices[-1].second_moment
    blind = es.plan(model, X, measure=False)
    assert outputs(model, blind, len(X)) < blind.vertices[-1].second_moment / 10


@pytest.mark.parametrize(
    ("function", "words"),
    [(torch.log, "is not finite"), (lambda h: h.masked_fill(torch.ones_like(h) > 0, 0.0), "the signal is zero")],
)
def test_signals_that_are_nothing_or_no_numbers_are_said(function: Callable[[Tensor], Tensor], words: str) -> None:
    with pytest.warns(es.PlanWarning, match=words):
        es.plan(Between(function), X)


def test_a_network_that_ends_in_log_softmax_is_an_ordinary_one() -> None:
    logits = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = es.plan(nn.Sequential(*copy.deepcopy(logits), nn.LogSoftmax(-1)), X)
    assert plan.parameters == es.plan(logits, X).parameters


def test_an_example_of_zeros_and_ones_is_data_like_any_other() -> None:
    model = Between(torch.tanh)
    sparse = (torch.rand(32, 64, generator=torch.Generator().manual_seed(0)) < 0.02).float()
    assert es.plan(model, sparse) == es.plan(model, X)


def test_steps_of_a_loop_read_entries_of_their_own() -> None:
    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.readout = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            u = self.first(x)
            state, states = torch.zeros_like(u[:, 0]), []
            for t in range(x.shape[1]):
                state = 0.8 * state + 0.6 * u[:, t]
                states.append(state)
            logits: Tensor = self.readout(torch.relu(self.second(torch.stack(states, 1))))
            return logits

    # Of unit entries the state's second moment is 0.36 (1 - 0.64^(t + 1)) / 0.36: nearly one.
    expected = sum(1 - 0.64 ** (t + 1) for t in range(40)) / 40
    plan = es.plan(Scan(), torch.zeros(2, 40, 8))
    assert plan["second.weight"].std == pytest.approx((64 * expected) ** -0.5, rel=0.02)


def test_a_sum_over_positions_before_a_readout_is_said() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.readout = nn.Linear(16, 64), nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.readout(torch.relu(self.first(x)).sum(1))
            return logits

    with pytest.warns(es.PlanWarning, match="the output 'readout' starts at a huge second moment"):
        es.plan(Sums(), torch.zeros(4, 100, 16))
