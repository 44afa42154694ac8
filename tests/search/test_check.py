"""The coordinate check: against plain torch, where it must pass, where it must fail, and what it leaves alone."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evenstep
from evenstep.data import digits
from evenstep.errors import InputError, PlanError
from evenstep.graph import dag_mlp_graph
from evenstep.module import plan
from evenstep.planning import Plan
from evenstep.rules import Optimizer
from evenstep.search import Check, check
from evenstep.search.fields import TensorPair
from evenstep.search.first_step import Changes, measure, recorded_modules
from evenstep.search.job import Job
from evenstep.search.recipe import Recipe
from evenstep_research.spaces import DagMLP
from evenstep_research.study.codes import chain_code, dense_code, residual_code

torch.set_num_threads(1)

OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "momentum", "adam")
# About those that a search of the one-hidden-layer network of 64 units finds on the digits.
RATES = {"sgd": 0.5, "momentum": 0.2, "adam": 0.01}


@pytest.fixture(scope="module")
def data() -> TensorPair:
    return digits().train


def small_data(*, double: bool = True) -> TensorPair:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(24, 1, 8, 8, generator=generator)
    targets = torch.randint(10, (24,), generator=generator)
    return (inputs.double() if double else inputs), targets


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.block(self.embed(x[:, 0])).mean(1))
        return logits


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(input=self.cell(x[:, 0])[0][:, -1])
        return logits


class OwnReLU(torch.autograd.Function):
    """A function of the old form, which torch cannot differentiate forwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        passed: Tensor = gradients[0] * (ctx.saved_tensors[0] > 0)
        return passed


class Twice(nn.Module):
    """Use one layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.shared, self.head = nn.Linear(64, 12), nn.Linear(12, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.relu(self.stem(x.flatten(1)))
        logits: Tensor = self.head(torch.relu(self.shared(torch.relu(self.shared(at)))))
        return logits


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(216, 10),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dense MLP": lambda: DagMLP("2_22_222", width=16, inputs=64),
    "normed CNN, in place": convolutional,
    "attention": Attention,
    "LSTM": Recurrent,
    "shared layer": Twice,
}


def measured(
    make: Callable[[], nn.Module], data: TensorPair, optimizer: Optimizer, lr: float, planned: Plan | None = None
) -> dict[str, Changes]:
    planned = planned or plan(make(), data[0][:2], optimizer=optimizer)
    job = Job.of(make, planned, Recipe(optimizer=optimizer, batch_size=8), range(1))
    return measure(job, data, lr=lr, steps=3, seed=0)


def by_hand(
    make: Callable[[], nn.Module], data: TensorPair, optimizer: Optimizer, lr: float, planned: Plan
) -> list[dict[str, Tensor]]:
    """Return every layer's output before and after each of three steps of torch's own optimiser."""
    model = Job.of(make, planned, Recipe(), range(1)).start(0).train()
    index = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(0))[:8]
    inputs, targets = data[0][index], data[1][index]
    groups = planned.param_groups(model, lr=lr)
    stepper: torch.optim.Optimizer
    if optimizer == "adam":
        stepper = torch.optim.Adam(groups)
    elif optimizer == "momentum":
        stepper = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    else:
        stepper = torch.optim.SGD(groups)
    found: list[dict[str, Tensor]] = []

    def record() -> None:
        now: dict[str, list[Tensor]] = {}
        twin = copy.deepcopy(model)
        for name, layer in recorded_modules(twin, planned).layers.items():

            def note(_module: nn.Module, _args: Any, output: Any, name: str = name) -> None:
                first = output[0] if isinstance(output, tuple) else output
                now.setdefault(name, []).append(first.detach().clone().flatten())

            layer.register_forward_hook(note)
        twin(inputs)
        found.append({name: torch.cat(parts) for name, parts in now.items()})

    record()
    for _ in range(3):
        stepper.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        stepper.step()
        record()
    return found


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", list(MODELS))
def test_changes_are_those_of_plain_torch(name: str, optimizer: Optimizer) -> None:
    def make() -> nn.Module:
        return MODELS[name]().double()

    data = small_data()
    planned = plan(make(), data[0][:2], optimizer=optimizer)
    for lr, is_small in ((1e-6, True), (0.02, False)):
        found = measured(make, data, optimizer, lr, planned)
        truth = by_hand(make, data, optimizer, lr, planned)
        layers = truth[0].keys()
        assert layers == found.keys() - {name for name in found if name.endswith(" reads")}
        for layer in layers:
            steps = [rms(now[layer] - truth[0][layer]) for now in truth[1:]]
            assert found[layer].start == pytest.approx(rms(truth[0][layer]))
            assert found[layer].changes == pytest.approx(steps, rel=1e-6)
            if is_small:  # a finite difference along the optimiser's own step
                assert found[layer].predicted == pytest.approx(steps[0], rel=2e-3)


def test_without_a_forward_derivative_a_difference_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def relu(x: Tensor) -> Tensor:
        result: Tensor = OwnReLU.apply(x)  # type: ignore[no-untyped-call]
        return result

    make, data = MODELS["shared layer"], small_data(double=False)
    for optimizer in OPTIMIZERS:
        wanted = measured(make, data, optimizer, 1e-5)
        planned = plan(make(), data[0][:2], optimizer=optimizer)  # read with the ReLU that a trace knows
        job = Job.of(make, planned, Recipe(optimizer=optimizer, batch_size=8), range(1))
        with monkeypatch.context() as patched:
            patched.setattr(torch, "relu", relu)
            found = measure(job, data, lr=1e-5, steps=1, seed=0)
        for name, changes in found.items():
            assert changes.predicted == pytest.approx(wanted[name].predicted, rel=1e-2)


def test_what_the_readout_reads_is_recorded() -> None:
    data = small_data()

    def make() -> nn.Module:
        return DagMLP("2_12", width=16, inputs=64).double()

    found = measured(make, data, "sgd", 1e-6)["readout reads"]
    planned = plan(make(), data[0][:2])
    model = Job.of(make, planned, Recipe(), range(1)).start(0)
    index = torch.randperm(24, generator=torch.Generator().manual_seed(0))[:8]
    seen: list[Tensor] = []
    model.get_submodule("readout").register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    model(data[0][index])
    assert found.start == pytest.approx(rms(seen[0]))
    assert found.predicted == pytest.approx(found.changes[0], rel=2e-3)


def network(
    code: str,
    width: int,
    data: TensorPair,
    *,
    rule: str = "weighted",
    init: str = "conserve",
    optimizer: Optimizer = "sgd",
    base_width: int | None = None,
) -> tuple[Callable[[], nn.Module], Plan]:
    def make() -> nn.Module:
        return DagMLP(code, width=width, inputs=64)

    # The same graph as traced, and sooner; 'keep' needs the module's weights.
    graph = dag_mlp_graph(code, width=width, inputs=64)
    if init == "keep":
        return make, plan(make(), data[0][:2], rule=rule, init=init, optimizer=optimizer)
    base = None if base_width is None else dag_mlp_graph(code, width=base_width, inputs=64)
    return make, plan(graph, rule=rule, init=init, optimizer=optimizer, base_graph=base)


WIDTHS = (64, 224, 768)


@pytest.mark.parametrize(
    ("code", "optimizer"),
    [
        pytest.param(code, optimizer, id=f"{name}-{optimizer}")
        for name, code in (("chain", chain_code(3)), ("residual", residual_code(4)), ("dense", dense_code(3)))
        for optimizer in OPTIMIZERS
        if name == "chain" or optimizer != "momentum"  # whose first step is SGD's, 1.9 times as long
    ],
)
def test_the_plan_is_flat_over_width(code: str, optimizer: Optimizer, data: TensorPair) -> None:
    networks = {width: network(code, width, data, optimizer=optimizer, base_width=64) for width in WIDTHS}
    found = check(networks, data, lr=RATES[optimizer], steps=1, seeds=4)
    assert found.compare == "layers"
    assert {"stem", "edges.0_1", "readout", "readout reads"} <= {trend.signal for trend in found.trends}
    assert found.ok, str(found)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_standard_parameterisation_fails_over_width(optimizer: Optimizer, data: TensorPair) -> None:
    networks = {}
    for width in WIDTHS:
        make, planned = network(chain_code(3), width, data, rule="constant", init="he", optimizer=optimizer)
        wide = tuple(
            replace(p, std=1 / math.sqrt(width)) if p.name == "readout.weight" else p for p in planned.parameters
        )
        networks[width] = (make, replace(planned, parameters=wide))
    # At a rate so small that nothing diverges: the failure is one of slopes.
    found = check(networks, data, lr=RATES[optimizer] / 50, seeds=2)
    assert not found.diverged
    assert found.verdict == "failed"
    assert found.worst.signal == "readout"
    assert found.worst.slope > 0.5


def test_torchs_own_initialisation_fails_over_width(data: TensorPair) -> None:
    networks = {width: network("2_02", width, data, rule="constant", init="keep") for width in WIDTHS}
    slopes = {t.signal: t.slope for t in check(networks, data, lr=0.1, seeds=2).trends}
    # A readout of variance 1/n: the first layer's change falls like the root of the width, the output's grows.
    assert slopes["stem"] == pytest.approx(-0.5, abs=0.15)
    assert slopes["readout"] > 0.4


DEPTHS = (2, 4, 8, 16)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("topology", [chain_code, residual_code], ids=["chain", "residual"])
def test_the_plan_is_even_over_depth(topology: Callable[[int], str], optimizer: Optimizer, data: TensorPair) -> None:
    networks = {depth: network(topology(depth), 128, data, optimizer=optimizer) for depth in DEPTHS}
    found = check(networks, data, lr=RATES[optimizer], steps=1, seeds=4)
    assert found.compare == "last"
    assert [trend.signal for trend in found.trends] == ["readout reads"]
    assert [trend.signal for trend in found.shown] == ["readout"]
    assert found.ok, str(found)


@pytest.mark.parametrize("rule", ["constant", "mup"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_rate_for_all_depths_fails(optimizer: Optimizer, rule: str, data: TensorPair) -> None:
    networks = {depth: network(chain_code(depth), 128, data, rule=rule, optimizer=optimizer) for depth in DEPTHS}
    found = check(networks, data, lr=RATES[optimizer] / 50, steps=1, seeds=2)
    assert not found.diverged
    assert found.verdict == "failed"
    assert found.worst.slope > 0.6


@pytest.mark.parametrize("topology", [residual_code, dense_code], ids=["residual", "dense"])
def test_one_rate_fails_on_other_topologies(topology: Callable[[int], str], data: TensorPair) -> None:
    networks = {depth: network(topology(depth), 96, data, rule="constant") for depth in (2, 4, 8, 12)}
    assert not check(networks, data, lr=0.01, steps=1, seeds=2).ok


def test_named_networks_are_compared_by_their_spread(data: TensorPair) -> None:
    codes = {"chain": chain_code(6), "residual": residual_code(6), "base": "2"}
    found = check({name: network(code, 64, data) for name, code in codes.items()}, data, lr=0.2, seeds=2)
    assert found.named
    assert found.ok, str(found)
    values = found.trends[0].values
    assert found.worst.slope == pytest.approx(math.log2(max(values) / min(values)))
    unscaled = {name: network(code, 64, data, rule="mup") for name, code in codes.items()}
    assert not check(unscaled, data, lr=0.2, seeds=2).ok


def test_a_divergence_fails(data: TensorPair) -> None:
    networks = {width: network("2", width, data) for width in (32, 64)}
    found = check(networks, data, lr=1e12, steps=8, seeds=1)
    assert found.diverged
    assert found.verdict == "failed"
    assert "lower the learning rate" in str(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_behind_a_readout_of_zeros_later_steps_are_judged(data: TensorPair) -> None:
    networks = {}
    for width in (64, 256):
        make, planned = network("2_02", width, data, base_width=64)
        zeros = tuple(replace(p, std=0.0) if p.name == "readout.weight" else p for p in planned.parameters)
        networks[width] = (make, replace(planned, parameters=zeros))
    found = check(networks, data, lr=0.5, seeds=2)
    stem = next(trend for trend in found.trends if trend.signal == "stem")
    assert stem.values == (0.0, 0.0)
    assert all(stem.later)
    assert stem.slope == pytest.approx(math.log2(stem.later[1] / stem.later[0]) / 2)
    assert abs(stem.slope) < found.tolerance


def test_model_random_state_and_data_stay_as_they_are() -> None:
    kept = convolutional()
    before = copy.deepcopy(kept.state_dict())
    data = small_data(double=False)
    copies = [part.clone() for part in data]
    planned = plan(kept, data[0][:2], init="keep")
    torch.manual_seed(11)
    state = torch.get_rng_state()
    networks = {width: (lambda: kept, planned) for width in (1, 2)}
    found = [check(networks, data, lr=0.1, batch_size=8, seeds=1) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].worst.slope == 0.0  # one network twice
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(kept.state_dict()[name], value) for name, value in before.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in kept.modules())
    assert all(p.grad is None for p in kept.parameters())
    assert all(torch.equal(part, one) for part, one in zip(data, copies, strict=True))


def test_dropout_draws_alike() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10)).double()

    found = measured(make, small_data(), "sgd", 1e-7)
    assert found["3"].predicted == pytest.approx(found["3"].changes[0], rel=1e-3)


def test_the_result_as_plain_values() -> None:
    data = small_data(double=False)
    found = check({w: network("2", w, data) for w in (8, 16)}, data, lr=0.1, steps=2, seeds=2)
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["verdict"] == found.verdict
    assert [one["label"] for one in values["networks"]] == [8, 16]
    assert len(values["networks"][0]["signals"]["stem"]["changes"]) == 2
    assert values["worst"]["signal"] == found.worst.signal
    assert (evenstep.check, evenstep.Check) == (check, Check)


def test_the_example_of_the_docs_runs(capsys: pytest.CaptureFixture[str], data: TensorPair) -> None:
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)

    def make_net(width: int) -> nn.Module:
        return DagMLP("2", width=width, inputs=64)

    names = {"es": evenstep, "partial": partial, "make_net": make_net, "inputs": data[0], "targets": data[1]}
    exec(code, names)
    assert capsys.readouterr().out.startswith("ok: ")


def wrong(**changed: Any) -> None:
    data = small_data(double=False)
    networks = {width: network("2", width, data) for width in (8, 16)}
    given: dict[str, Any] = {"networks": networks, "data": data, "lr": 0.1, "seeds": 1, **changed}
    check(given.pop("networks"), given.pop("data"), **given)


GOOD = (MODELS["shared layer"], plan(Twice(), torch.zeros(2, 1, 8, 8)))
ADAM = (MODELS["shared layer"], plan(Twice(), torch.zeros(2, 1, 8, 8), optimizer="adam"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"networks": {1: GOOD}}, "at least two"),
        ({"networks": [GOOD, GOOD]}, "at least two"),
        ({"networks": {0: GOOD, 1: GOOD}}, "label 0"),
        ({"networks": {True: GOOD, 2: GOOD}}, "label True"),
        ({"networks": {"a": GOOD, 1: GOOD}}, "label all of them the same way"),
        ({"networks": {1: GOOD, 2: Twice}}, "network 2"),
        ({"networks": {1: GOOD, 2: ADAM}}, "adam and sgd"),
        ({"lr": None}, "factors only"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": "fast"}, "lr is 'fast'"),
        ({"steps": 0}, "steps is 0"),
        ({"seeds": True}, "seeds is True"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"tolerance": math.nan}, "tolerance is nan"),
        ({"compare": "all"}, "compare is 'all'"),
        ({"data": small_data(double=False)[0]}, "data is Tensor"),
        ({"data": (torch.randn(24, 7), torch.zeros(24, dtype=torch.long))}, "do not run on the data"),
        ({"loss": lambda output, _: output}, "do not run on the data"),
        ({"loss": lambda output, _: 0 * output.sum()}, "no signal moves"),
    ],
)
def test_bad_input_is_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        wrong(**changed)


def test_layers_of_other_names_cannot_be_compared() -> None:
    data = small_data(double=False)
    networks = {depth: network(chain_code(depth), 8, data) for depth in (1, 2)}
    with pytest.raises(InputError, match="different names"):
        check(networks, data, lr=0.1, compare="layers")
    assert check(networks, data, lr=0.1, seeds=1).compare == "last"


def test_a_plan_of_another_model_is_refused() -> None:
    data = small_data(double=False)
    networks = {8: network("2", 8, data), 16: (network("2", 16, data)[0], network("2", 32, data)[1])}
    with pytest.raises(PlanError, match="does not fit"):
        check(networks, data, lr=0.1)
