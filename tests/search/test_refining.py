"""Plans corrected on the network itself: spoilt plans come back, and nothing else is touched."""

from __future__ import annotations

import json
import math
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import evenstep as es
from evenstep.data.digits import digits
from evenstep.planning import Plan
from evenstep.search import LocalEngine, Refinement, refine
from evenstep.search.recipe import cosine_schedule
from tests.search import plain

torch.set_num_threads(1)
ENGINE = LocalEngine(workers=1)


@cache
def data() -> tuple[Tensor, Tensor]:
    images, labels = digits().train
    return images.flatten(1)[:1024], labels[:1024]


def network() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(64, 48), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(48, 48), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(48, 10))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1, generator=generator)
    return model


@cache
def planned(base: float) -> Plan:
    return es.plan(network(), data()[0][:2], base=base, optimizer="momentum")


@cache
def refined(base: float, steps: int | None = None) -> Refinement:
    return refine(network(), planned(base), data(), steps=steps, train_steps=200, engine=ENGINE)


@cache
def loss_at(multiple: float, *, steps: int, batch_size: int = 64) -> float:
    """Train the network plainly at a multiple of its plan, with warm-up and cosine; return the mean of the end."""
    model, plan = network(), planned(0.1)
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    scales = {p.name: p.lr_scale for p in plan.parameters}
    done = plain.trained(
        lambda: model,
        data(),
        lr=0.1 * multiple,
        seed=0,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
        scales=scales,
        steps=steps,
        batch_size=batch_size,
        schedule=cosine_schedule(steps),
    )
    counted = done.curve[-max(round(steps / 4), 1) :]
    return math.fsum(counted) / len(counted)


@pytest.mark.parametrize("spoilt", [1 / 8, 1 / 2, 1, 2, 8])
def test_spoilt_plans_come_back_to_the_same_rates(spoilt: float) -> None:
    """The best multiple of a training of 200 steps, plainly trained, is within half an octave, or as good."""
    found = refined(0.1 * spoilt)
    rate = 0.1 * spoilt * found.multiple
    losses = {octave: loss_at(2.0**octave, steps=200) for octave in (-2, -1, 0, 1, 2)}
    best = min(losses, key=lambda octave: losses[octave])
    here = loss_at(rate / 0.1, steps=200)
    assert abs(math.log2(rate / 0.1) - best) <= 1.0 or here <= losses[best] + 0.02
    assert found.plan.base == 0.1 * spoilt
    assert found.plan.lr_scale == pytest.approx(planned(0.1 * spoilt).lr_scale * found.multiple)


def test_the_losses_are_those_of_plain_training() -> None:
    found = refined(0.1)
    trials = list(zip(found.search.grid, found.search.losses, strict=True))
    stable = [(rate, losses[0]) for rate, losses in trials if rate < 0.4]  # beyond, rounding alone makes a tenth
    assert len(stable) >= 3
    for rate, loss in stable:
        assert loss == pytest.approx(loss_at(rate / 0.1, steps=128), rel=1e-4)


def test_the_answer_says_what_it_stands_on() -> None:
    found = refined(0.1)
    low, high = found.interval
    assert low <= found.multiple <= high
    runs = len(found.search.grid)
    assert f"{runs} runs of the network itself, 128 steps on 64 examples each" in str(found)
    factor = found.plan.factors[-1]
    assert (factor.name, factor.value) == ("refined", found.multiple)
    assert found.plan.history[-1].startswith("refined: rates x ")
    assert Refinement.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert Plan.from_json(found.plan.to_json()) == found.plan


@pytest.mark.parametrize("spoilt", [1e-4, 1e3])
def test_plans_that_are_far_off_are_found_too(spoilt: float) -> None:
    found = refine(network(), planned(0.1 * spoilt), data(), train_steps=200, engine=ENGINE)
    assert abs(math.log2(found.multiple * spoilt / refined(0.1).multiple)) < 1.25


def test_a_plan_of_another_network_is_refused() -> None:
    other = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    with pytest.raises(es.PlanError, match="plan this very model"):
        refine(other, planned(0.1), data(), engine=ENGINE)


def test_nothing_else_is_touched() -> None:
    model = network()
    model.register_buffer("count", torch.zeros(()))
    model.eval()
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(TensorDataset(*data()), batch_size=64, shuffle=True, generator=generator)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = (torch.get_rng_state(), random.getstate(), str(numpy.random.get_state()), generator.get_state())
    plan = es.plan(model, data()[0][:2], base=0.1, optimizer="momentum")
    refine(model, plan, loader, steps=6, engine=ENGINE)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert states[2] == str(numpy.random.get_state())
    assert torch.equal(states[3], generator.get_state())


def test_a_store_continues_a_refinement(tmp_path: Path) -> None:
    told: list[Any] = []

    def stop(progress: Any) -> None:
        told.append(progress)
        if len(told) == 2:
            raise RuntimeError("stopped")

    store = tmp_path / "runs.sqlite"
    options: dict[str, Any] = {"train_steps": 200, "engine": ENGINE, "store": store}
    with pytest.raises(RuntimeError, match="stopped"):
        refine(network(), planned(0.1), data(), progress=stop, **options)
    again = refine(network(), planned(0.1), data(), **options)
    assert again == refined(0.1)


def test_runs_that_learn_nothing_leave_the_plan_and_say_so() -> None:
    labels = torch.randint(10, (1024,), generator=torch.Generator().manual_seed(9))
    with pytest.warns(es.SearchWarning, match="short runs of 8 steps learn next to nothing"):
        found = refine(network(), planned(0.1), (data()[0], labels), steps=8, engine=ENGINE)
    assert found.multiple == pytest.approx(1.0)
    assert found.interval[0] < 0.5 < 2 < found.interval[1]


class Loud(nn.Module):
    """A network whose logits start far too large, and that computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = 6 * self.layers(x)
        return {"logits": logits} | ({} if labels is None else {"loss": F.cross_entropy(logits, labels)})


@pytest.mark.filterwarnings("ignore:the output:evenstep.PlanWarning")
def test_shedding_what_is_above_guessing_is_no_learning() -> None:
    labels = torch.randint(10, (1024,), generator=torch.Generator().manual_seed(9))
    inputs = data()[0]
    plan = es.plan(Loud(), inputs[:2], base=0.1, optimizer="momentum", init="keep")
    with pytest.warns(es.SearchWarning, match="short runs of 48 steps learn next to nothing"):
        found = refine(Loud(), plan, {"x": inputs, "labels": labels}, steps=48, engine=ENGINE)
    assert found.search.untrained == pytest.approx(math.log(10))
    assert found.multiple == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": "plan"}, "the plan is str"),
        ({"steps": 2}, "steps is 2; give a whole number from 4 up"),
        ({"train_steps": 0}, "train_steps is 0"),
        ({"data": None}, "data is NoneType"),
        ({"seeds": 0}, "seeds is 0"),
    ],
)
def test_bad_input_is_one_line(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": network(), "plan": planned(0.1), "data": data(), "engine": ENGINE} | change
    with pytest.raises(es.EvenstepError, match=message) as raised:
        refine(given.pop("model"), given.pop("plan"), given.pop("data"), **given)
    assert "\n" not in str(raised.value)


def test_a_plan_without_a_rate_is_refused() -> None:
    factors = es.plan(network(), data()[0][:2], optimizer="momentum")
    with pytest.raises(es.InputError, match="factors only; plan with base="):
        refine(network(), factors, data())


def steep(batch_size: int) -> Refinement:
    """Refine a linear regression with a long flat valley: its best rate is next to the largest, at any batch size."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.logspace(0, -2, 8)
    inputs = sizes * torch.randn(512, 8, generator=generator)
    targets = inputs @ (torch.randn(8, 1, generator=generator) / sizes[:, None])
    model = nn.Linear(8, 1, bias=False)
    plan = es.plan(model, inputs[:2], base=0.14, base_graph=es.trace(model, inputs[:2]), optimizer="sgd")
    options: dict[str, Any] = {"steps": 64, "train_steps": 64, "batch_size": 64, "engine": ENGINE}
    return refine(model, plan, (inputs, targets), loss=F.mse_loss, run_batch_size=batch_size, **options)


def test_rates_are_lowered_until_a_short_run_survives_them() -> None:
    whole, quarter = steep(64), steep(16)
    assert whole.diverged_at is None
    assert quarter.diverged_at is not None
    assert quarter.multiple < quarter.diverged_at  # the batch's rule asks for more than any batch survives
    rates = dict(zip(quarter.search.grid, quarter.search.mean_losses, strict=True))
    base = quarter.plan.base or 0.0
    untrained = quarter.search.untrained or 0.0

    def survived(rate: float) -> bool:
        return any(tried >= rate * (1 - 1e-2) and loss < untrained for tried, loss in rates.items())

    assert survived(base * quarter.multiple)
    assert not survived(base * quarter.diverged_at)
    assert f"lowered from x {quarter.diverged_at:.3g}" in quarter.plan.history[-1]
    assert quarter.interval[0] <= quarter.multiple
    assert Refinement.from_dict(json.loads(json.dumps(quarter.to_dict()))) == quarter
