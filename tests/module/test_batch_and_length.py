"""Moved plans in optimisers, searches and refinements, and the warnings where a plan is used elsewhere."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

import evenstep as es
from evenstep.report.page.parts import PlanPart
from evenstep.report.page.writing import render
from evenstep.rules.training import Training
from evenstep.search import LocalEngine

torch.set_num_threads(1)

X = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
ENGINE = LocalEngine(workers=1)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


def planned(model: nn.Module, **options: Any) -> es.Plan:
    return es.plan(model, X[:2], **{"base": 0.01, "optimizer": "adam", "batch_size": 64, "steps": 500, **options})


def settings(groups: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {(group["betas"], group["eps"]) for group in groups}


# What optimisers get


def test_betas_and_epsilon_of_the_sde_rule_reach_groups_and_the_optimizer() -> None:
    """At four times the batch: 1 - beta times 4, epsilon and rate by the root (Malladi et al. 2022)."""
    model = net()
    before = planned(model)
    plan = before.at(batch_size=256, batch_rule="sde")
    expected = {((0.6, 0.996), 5e-9)}
    assert settings(plan.param_groups(model)) == expected
    built = plan.optimizer(model)
    assert settings(built.param_groups) == expected
    assert settings(AdamW(plan.param_groups(model)).param_groups) == expected
    for moved, usual in zip(built.param_groups, before.optimizer(model).param_groups, strict=True):
        assert moved["lr"] == pytest.approx(2 * usual["lr"])
    assert es.check_groups(model, plan, built) == pytest.approx(0.01)
    assert settings(es.Plan.from_json(plan.to_json()).optimizer(model).param_groups) == expected
    given = plan.optimizer(model, betas=(0.8, 0.99), eps=1e-6)
    assert settings(given.param_groups) == {((0.2, 0.96), 5e-7)}
    assert settings(plan.param_groups(model, betas=(0.8, 0.99), eps=1e-6)) == {((0.2, 0.96), 5e-7)}
    for betas in ((0.5, 0.999), 0.9, (0.9,), (0.9, 1.5)):
        with pytest.raises(es.InputError, match="beta"):
            plan.optimizer(model, betas=betas)


def test_the_sde_rule_starts_from_the_plan_s_own_settings() -> None:
    model = net()
    plan = planned(model, optimizer=AdamW([torch.zeros(1, requires_grad=True)], betas=(0.8, 0.96), eps=4e-8))
    assert settings(plan.at(batch_size=256, batch_rule="sde").optimizer(model).param_groups) == {((0.2, 0.84), 2e-8)}
    smaller = plan.at(batch_size=16, batch_rule="sde").optimizer(model)
    assert settings(smaller.param_groups) == {((0.95, 0.99), 8e-8)}
    assert settings(plan.at(batch_size=256).optimizer(model).param_groups) == {((0.8, 0.96), 4e-8)}


def test_a_search_with_a_moved_plan_trains_with_its_betas_and_epsilon() -> None:
    """Its trials end where plain training by the plan's own optimiser does."""
    model = net()
    plan = planned(model, batch_size=96).at(batch_size=480, batch_rule="sde")  # of the data, so that order is nothing
    found = es.search_lr(
        net, (X, Y), plan=plan, grid=[0.02], seeds=1, steps=12, batch_size=96, engine=ENGINE, on_failure="return"
    )
    losses = {}
    for name, at in {"moved": plan, "as it was": planned(model, batch_size=96)}.items():
        es.initialize_(model, at, generator=torch.Generator().manual_seed(0))
        optimizer = at.optimizer(model, lr=0.02 * plan.lr_scale / at.lr_scale)
        for _ in range(12):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(X), Y))
            optimizer.step()
        losses[name] = float(nn.functional.cross_entropy(model(X), Y).detach())
    assert found.losses[0][0] == pytest.approx(losses["moved"], rel=1e-4)
    assert abs(losses["as it was"] - losses["moved"]) > 1e-2


# Warnings


@pytest.mark.parametrize(
    ("used", "words"),
    [
        ({"batch_size": 256}, r"is for batches of 64, but is used for batches of 256.*plan\.at\(batch_size=256\)"),
        ({"steps": 800}, r"is for 500 steps, but is used for 800 steps.*plan\.at\(steps=800\)"),
        ({"batch_size": 64, "steps": 800}, r"is for 500 steps, but is used for 800 steps.*plan\.at\(steps=800\)"),
        (
            {"batch_size": 8, "steps": 9},
            r"is for 500 steps on batches of 64, but is used for 9 steps on batches of 8.*batch_size=8, steps=9\)",
        ),
    ],
)
def test_a_plan_used_at_another_training_warns(used: dict[str, Any], words: str) -> None:
    model = net()
    plan = planned(model)
    optimizer = plan.optimizer(model)
    for act in (plan.optimizer, plan.param_groups, lambda m, **o: es.check_groups(m, plan, optimizer, **o)):
        with pytest.warns(es.PlanWarning, match=words) as caught:
            made: Any = act(model, **used)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        groups = made.param_groups if isinstance(made, AdamW) else made if isinstance(made, list) else []
        assert not any({"batch_size", "steps"} & group.keys() for group in groups)
    moved = plan.at(**used)
    moved.optimizer(model, **used)
    moved.param_groups(model, **used)
    es.check_groups(model, moved, moved.optimizer(model), **used)


def test_what_a_plan_does_not_know_of_its_training_warns() -> None:
    model = net()
    plan = planned(model, batch_size=None)
    plan.optimizer(model, steps=500)
    with pytest.warns(es.PlanWarning, match=r"not know the batch size it is for, but is used at batch_size=32"):
        plan.optimizer(model, batch_size=32)
    with pytest.raises(es.InputError, match="batch_size is 0"):
        plan.optimizer(model, batch_size=0)


def test_decay_and_epsilon_without_their_rates_warn() -> None:
    """The rules that pair decay and epsilon with rates are half applied by an optimizer that has one of each."""
    model = net()
    plan = planned(model, rule="completep")
    assert len({p.decay_scale for p in plan}) > 1
    complete = plan.optimizer(model, weight_decay=0.1)
    es.check_groups(model, plan, complete)
    for decay in ("even", "independent"):
        es.check_groups(model, plan, plan.optimizer(model, weight_decay=1e-4, decay=decay))
    groups = plan.param_groups(model)
    with pytest.warns(es.PlanWarning, match=r"'completep' scales weight_decay together .* has weight_decay 0\.1 for"):
        es.check_groups(model, plan, AdamW(groups, weight_decay=0.1))
    moved = planned(model).at(batch_size=256, batch_rule="sde")
    rates = [{name: group[name] for name in ("params", "lr", "eps")} for group in moved.param_groups(model)]
    with pytest.warns(es.PlanWarning, match=r"scales betas together .* has betas \(0\.9, 0\.999\)"):
        es.check_groups(model, moved, AdamW(rates))
    rates = [{name: group[name] for name in ("params", "lr", "betas")} for group in moved.param_groups(model)]
    with pytest.warns(es.PlanWarning, match=r"scales eps together .* has eps 1e-08"):
        es.check_groups(model, moved, AdamW(rates))


def test_muon_without_matrices_and_a_schedule_that_flattens_are_refused() -> None:
    shallow = nn.Linear(8, 2)
    with pytest.raises(es.InputError, match="no hidden matrices"):
        es.plan(shallow, X[:2], base=0.01, optimizer="muon")
    model = net()
    plan = planned(model)
    optimizer = plan.optimizer(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=1e-4)
    with pytest.raises(es.PlanError, match="changes the ratios of rates"):
        es.check_groups(model, plan, optimizer, scheduler, batch_size=64, steps=500)


# Searches, refinements and plans from nothing


def test_a_search_s_plan_is_for_what_it_was_searched_with() -> None:
    found = es.search_lr(
        net, (X, Y), optimizer="adam", grid=[1e-3, 1e-2, 3.0], seeds=1, steps=20, batch_size=32, engine=ENGINE
    )
    plan = es.plan(net(), X[:2], base=found)
    assert plan.searched == plan.training == Training(32, 20)
    assert plan.at(batch_size=512).lr_scale == pytest.approx(2 * plan.lr_scale)
    assert es.plan(net(), X[:2], base=es.LRSearch.from_dict(found.to_dict())) == plan


def test_refine_moves_a_plan_to_its_training_first() -> None:
    model = net()
    options: dict[str, Any] = {"steps": 16, "engine": ENGINE, "progress": False}
    plan = planned(model, batch_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", es.SearchWarning)
        here = es.refine(model, plan, (X, Y), **options)
        there = es.refine(model, plan, (X, Y), batch_size=64, train_steps=6000, **options)
        unknown = es.refine(model, planned(model, batch_size=None, steps=None), (X, Y), **options)
    assert (here.batch_size, here.train_steps, here.plan.training) == (16, 500, plan.training)
    assert [factor.name for factor in here.plan.factors[len(plan.factors) :]] == ["refined"]
    assert there.plan.training == Training(64, 6000)
    assert there.plan.searched == Training(16, 500)
    added = there.plan.factors[len(plan.factors) :]
    assert [factor.name for factor in added] == ["length", "batch", "refined"]
    assert [factor.value for factor in added[:2]] == pytest.approx(
        [4**-0.32 * (1 + 80 / 6000) / (1 + 80 / 500), 4**0.25]
    )
    assert (unknown.plan.training, unknown.plan.searched) == (Training(64, 1500), Training())
    assert unknown.plan.at(batch_size=1024).lr_scale == pytest.approx(2 * unknown.plan.lr_scale)


def test_a_plan_from_nothing_is_for_its_training() -> None:
    torch.manual_seed(0)
    blocks = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *blocks, nn.Linear(16, 2))
    plan = es.auto_plan(model, (X, Y), batch_size=32, train_steps=2400, engine=ENGINE, progress=False)
    assert plan.training == Training(32, 2400)
    size, steps = plan.searched.batch_size, plan.searched.steps
    assert size is not None
    assert steps is not None
    assert 8 <= size <= 32  # a quarter of it at least
    assert f"runs of {steps} steps on {size} examples" in plan.history[0]
    (length,) = (factor for factor in plan.factors if factor.name == "length")
    assert length.value == pytest.approx(1.6**-0.32)
    assert plan.at(batch_size=512).lr_scale == pytest.approx(2 * plan.lr_scale)
    assert plan.at(batch_size=512).at(batch_size=8192).lr_scale == pytest.approx(4 * plan.lr_scale)
    assert es.Plan.from_json(plan.to_json()) == plan
    with pytest.warns(es.PlanWarning, match="is for 2400 steps, but is used for 5000 steps"):
        plan.optimizer(model, steps=5000)


def test_the_page_says_which_training_a_plan_is_for() -> None:
    model = net()
    plan = planned(model)
    page = render([PlanPart("", plan.at(batch_size=256, steps=6000, batch_rule="sde"))])
    for words in (
        "6000 steps on batches of 256",
        "base searched with 500 steps on batches of 64",
        "from batches of 64 to 256",
        "1 - beta: batch 4",
        "epsilon: batch 0.5",
    ):
        assert words in page
    assert math.isclose(plan.lr_scale, plan.at(batch_size=64).lr_scale)
