"""Accelerate's `prepare` with a plan, in real trainings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import evenstep as es
from evenstep.integrations.accelerate import prepare

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore", "error::evenstep.PlanWarning")

GENERATOR = torch.Generator().manual_seed(0)
INPUTS, TARGETS = torch.randn(64, 8, generator=GENERATOR), torch.randint(3, (64,), generator=GENERATOR)


def model_and_plan(seed: int = 0) -> tuple[nn.Module, es.Plan]:
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))
    plan = es.plan(model, INPUTS[:2], base=0.01, optimizer="adam")
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(seed))
    return model, plan


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=16)


def train(accelerator: Any, prepared: tuple[Any, ...], *, epochs: int) -> list[float]:
    (model, optimizer, loader, scheduler), losses = prepared, []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(float(loss.detach()))
        scheduler.step()
    return losses


def halving() -> Any:
    return partial(StepLR, step_size=1, gamma=0.5)


def test_the_prepared_optimizer_steps_as_planned_and_keeps_the_ratios() -> None:
    accelerator, (model, plan) = Accelerator(cpu=True), model_and_plan()
    prepared = prepare(accelerator, model, plan, batches(), scheduler=halving(), weight_decay=0.1)
    model, optimizer = prepared[:2]
    assert es.check_groups(model, plan, optimizer) == pytest.approx(0.01)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.1}
    losses = train(accelerator, prepared, epochs=2)
    assert es.check_groups(model, plan, optimizer) == pytest.approx(0.0025)

    other, plan = model_and_plan()
    plain = plan.optimizer(other, weight_decay=0.1)
    by_hand = []
    for factor in (1.0, 0.5):
        for group, rate in zip(
            plain.param_groups, [g["lr"] for g in plan.param_groups(other, weight_decay=0.1)], strict=True
        ):
            group["lr"] = factor * rate
        for x, y in batches():
            plain.zero_grad()
            loss = functional.cross_entropy(other(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            plain.step()
            by_hand.append(float(loss.detach()))
    assert losses == pytest.approx(by_hand, rel=1e-6)


def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    accelerator, (model, plan) = Accelerator(cpu=True), model_and_plan()
    prepared = prepare(accelerator, model, plan, batches(), scheduler=halving())
    train(accelerator, prepared, epochs=1)
    accelerator.save_state(str(tmp_path))
    whole = train(accelerator, prepared, epochs=1)

    accelerator, (model, plan) = Accelerator(cpu=True), model_and_plan(seed=1)
    prepared = prepare(accelerator, model, plan, batches(), scheduler=halving())
    accelerator.load_state(str(tmp_path))
    assert es.check_groups(prepared[0], plan, prepared[1]) == pytest.approx(0.005)
    assert train(accelerator, prepared, epochs=1) == pytest.approx(whole, rel=1e-6)


def test_a_scheduler_that_makes_rates_alike_is_refused() -> None:
    model, plan = model_and_plan()
    floor = partial(CosineAnnealingLR, T_max=5, eta_min=0.001)
    with pytest.raises(es.PlanError, match="CosineAnnealingLR changes the ratios of rates"):
        prepare(Accelerator(cpu=True), model, plan, scheduler=floor)


def test_bad_input_is_named() -> None:
    model, plan = model_and_plan()
    with pytest.raises(es.InputError, match=r"the accelerator is Sequential"):
        prepare(model, Accelerator(cpu=True), plan)
    with pytest.raises(es.InputError, match=r"the plan is 3"):
        prepare(Accelerator(cpu=True), model, 3)  # type: ignore[arg-type]
    with pytest.raises(es.PlanError, match="the plan does not fit Linear"):
        prepare(Accelerator(cpu=True), nn.Linear(8, 3), plan)
