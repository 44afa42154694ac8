"""Check that a search trains with the optimiser that was handed to it: against torch's own, one trial at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, NAdam

import evenstep as es
from evenstep import optim
from evenstep.optim import Lion, Muon
from evenstep.search.recipe import Recipe
from tests.search import plain

torch.set_num_threads(1)
RATES = [0.004, 0.02]


def searched(given: Any = None, *, plan: es.Plan | None = None, **options: Any) -> es.LRSearch:
    pair = plain.images()
    made = plan or plain.job_of(plain.mlp, pair, Recipe()).plan  # starts as torch draws it, at one rate
    if given is not None and plan is None:
        made = replace(made, optimizer_name=es.plan(made.graph, optimizer=given, init="keep").optimizer_name)
    usual: dict[str, Any] = {"grid": RATES, "seeds": 1, "batch_size": 12, "epochs": 1, "on_failure": "return"}
    return es.search_lr(plain.mlp, pair, plan=made, optimizer=given, **usual | options)


def by_torch(optimizer: Callable[..., Any], make: Callable[[], nn.Module] = plain.mlp) -> list[float]:
    pair = plain.images()
    return [
        plain.trained(make, pair, lr=rate, seed=0, optimizer=optimizer, steps=4, batch_size=12).loss for rate in RATES
    ]


def instance(kind: Callable[..., Any], **options: Any) -> Any:
    return kind([torch.zeros(1, requires_grad=True)], lr=77.0, **options)


GIVEN: dict[str, tuple[Any, dict[str, Any], Callable[..., Any]]] = {
    "AdamW": (AdamW, {}, AdamW),
    "adamw": ("adamw", {}, partial(AdamW, weight_decay=0.0)),
    "AdamW, decay given": (AdamW, {"weight_decay": 0.3}, partial(AdamW, weight_decay=0.3)),
    "SGD": (SGD, {}, SGD),
    "instance": (
        instance(SGD, momentum=0.7, weight_decay=0.1),
        {},
        partial(SGD, momentum=0.7, weight_decay=0.1),
    ),
    "instance, momentum given": (
        instance(SGD, momentum=0.7, nesterov=True),
        {"momentum": 0.5},
        partial(SGD, momentum=0.5, nesterov=True),
    ),
    "instance of AdamW": (
        instance(AdamW, betas=(0.5, 0.8), eps=1e-3, weight_decay=0.2),
        {},
        partial(AdamW, betas=(0.5, 0.8), eps=1e-3, weight_decay=0.2),
    ),
    "decoupled": (
        partial(NAdam, betas=(0.5, 0.8), weight_decay=0.2, decoupled_weight_decay=True),
        {},
        partial(AdamW, betas=(0.5, 0.8), weight_decay=0.2),
    ),
}


@pytest.mark.parametrize("name", GIVEN)
def test_trials_train_with_what_was_given(name: str) -> None:
    given, options, optimizer = GIVEN[name]
    found = searched(given, **options)
    assert [loss for (loss,) in found.losses] == pytest.approx(by_torch(optimizer), rel=1e-6)
    assert es.LRSearch.from_dict(found.to_dict()) == found


def deep(width: int = 8) -> nn.Module:
    hidden = [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), nn.Linear(72, width), nn.ReLU(), *hidden, nn.Linear(width, 3)).double()


BY_NAME: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "lion": ("lion", {}, {}),
    "lion, decay": ("lion", {"weight_decay": 0.2}, {"weight_decay": 0.2}),
    "Lion": (partial(Lion, betas=(0.5, 0.8), weight_decay=0.3), {}, {"betas": (0.5, 0.8), "weight_decay": 0.3}),
    "muon": ("muon", {}, {}),
    "Muon": (
        partial(Muon, momentum=0.8, nesterov=False, betas=(0.8, 0.9), eps=1e-4),
        {"weight_decay": 0.3},
        {"momentum": 0.8, "nesterov": False, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.3},
    ),
    "instance": (instance(Lion, weight_decay=0.1), {"weight_decay": 0.0}, {"weight_decay": 0.0}),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_search_trains_with_what_the_plan_builds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim, "PRECISION", torch.float64)  # coarser products round by how many there are
    given, options, settings = BY_NAME[name]
    pair = plain.images()
    plan = es.plan(deep(), pair[0][:4], optimizer=given, init="keep")
    found = es.search_lr(
        deep,
        pair,
        plan=plan,
        optimizer=given,
        grid=RATES,
        seeds=1,
        batch_size=12,
        epochs=1,
        on_failure="return",
        **options,
    )
    assert es.LRSearch.from_dict(found.to_dict()) == found
    for rate, (loss,) in zip(RATES, found.losses, strict=True):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = deep()
        optimizer = plan.optimizer(model, lr=rate, **settings)
        index = torch.randperm(48, generator=torch.Generator().manual_seed(0))
        for batch in torch.split(index, 12):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pair[0][batch]), pair[1][batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert loss == pytest.approx(float(nn.functional.cross_entropy(model(pair[0]), pair[1]).detach()), rel=1e-7)


@pytest.mark.parametrize("no_decay", [None, True])
def test_trials_by_adamw_spare_what_does_not_decay_where_that_is_asked(no_decay: bool | None) -> None:
    pair = plain.images()
    plan = es.plan(deep(), pair[0][:4], optimizer="adam", init="keep")
    found = es.search_lr(
        *(deep, pair),
        plan=plan,
        grid=[0.01],
        seeds=1,
        batch_size=12,
        epochs=1,
        weight_decay=3.0,
        no_decay=no_decay,
        on_failure="return",
    )
    scales = {p.name: p.lr_scale for p in plan}
    spared = [name.endswith("bias") or name == "4.weight" for name, _ in deep().named_parameters()]

    def optimizer(groups: list[dict[str, Any]]) -> AdamW:
        decays = [0.0 if no_decay and spares else 3.0 for spares in spared]
        return AdamW([group | {"weight_decay": d} for group, d in zip(groups, decays, strict=True)])

    expected = plain.trained(deep, pair, lr=0.01, seed=0, optimizer=optimizer, scales=scales, steps=4, batch_size=12)
    assert found.losses[0][0] == pytest.approx(expected.loss, rel=1e-9)


@pytest.mark.parametrize("kind", ["muon", "lion"])
def test_plans_are_corrected_with_the_steps_they_are_for(kind: Any) -> None:
    pair = plain.images()
    plan = es.plan(deep(), pair[0][:4], base=0.01, optimizer=kind)
    refined = es.refine(deep(), plan, pair, train_steps=200, batch_size=12)
    assert refined.plan.optimizer_name == kind
    assert refined.search.optimizer == kind


def test_settings_of_muon_that_trials_do_not_have_are_said() -> None:
    with pytest.raises(es.InputError, match=r"ns_steps=3.*plan\.optimizer\(model\)"):
        es.search_lr(deep, plain.images(), optimizer=partial(Muon, ns_steps=3))


@pytest.mark.parametrize("kind", ["muon", "lion"])
def test_from_a_base_to_steps_on_a_wider_network(kind: Any) -> None:
    pair = plain.images()
    found = es.search_lr(deep, pair, optimizer=kind, grid=RATES, seeds=1, batch_size=12, epochs=1, on_failure="return")
    again = replace(es.LRSearch.from_dict(found.to_dict()), status="ok")
    wide = deep(32)
    plan = es.plan(wide, pair[0][:4], base=again)
    assert plan.optimizer_name == kind
    assert type(plan.optimizer(wide)) is {"muon": Muon, "lion": Lion}[kind]
    with pytest.raises(es.InputError, match=f"searched for optimizer '{kind}', but the plan is for 'adam'"):
        es.plan(wide, pair[0][:4], base=again, optimizer="adam")
    networks = {width: (partial(deep, width), es.plan(deep(width), pair[0][:4], base=again)) for width in (16, 64)}
    checked = es.check(networks, pair, batch_size=12, seeds=2)
    assert es.Check.from_dict(checked.to_dict()).optimizer == kind


def test_a_plan_builds_what_its_base_was_searched_with() -> None:
    model = plain.mlp()
    given = instance(SGD, momentum=0.7, weight_decay=0.1)
    found = replace(searched(given, momentum=0.6), status="ok")
    again = es.LRSearch.from_dict(found.to_dict())
    plan = es.plan(model, plain.images()[0][:2], base=again)
    assert plan.optimizer_name == "momentum"
    group = plan.optimizer(model).param_groups[0]
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.6, False, 0.1)
    named = es.plan(model, plain.images()[0][:2], base=again, optimizer="momentum")  # says no more
    assert named.parameters == plan.parameters
    group = named.optimizer(model).param_groups[0]
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.6, False, 0.1)


def test_a_plan_s_own_settings_are_searched_with() -> None:
    given = partial(SGD, momentum=0.7)
    graph = plain.job_of(plain.mlp, plain.images(), Recipe()).plan
    plan = replace(graph, optimizer_name="momentum", optimizer_options={"class": "SGD", "momentum": 0.7})
    plan = replace(plan, optimizer_options={**plan.optimizer_options, "nesterov": False})
    assert [loss for (loss,) in searched(plan=plan).losses] == pytest.approx(by_torch(given), rel=1e-6)


def test_frozen_parameters_are_not_trained_by_trials() -> None:
    names = [name for name, _ in plain.mlp().named_parameters()]

    def partly() -> nn.Module:
        model = plain.mlp()
        dict(model.named_parameters())[names[0]].requires_grad_(False)
        return model

    plan = plain.job_of(plain.mlp, plain.images(), Recipe()).plan.freeze(names[0])
    found = searched(plan=plan, weight_decay=0.2)
    expected = by_torch(partial(SGD, weight_decay=0.2), partly)
    assert [loss for (loss,) in found.losses] == pytest.approx(expected, rel=1e-6)
    assert by_torch(partial(SGD, weight_decay=0.2)) != pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (instance(Adam, weight_decay=0.1), ("Adam with weight_decay=0.1", "torch.optim.AdamW")),
        (instance(SGD, momentum=0.9, dampening=0.1), ("dampening=0.1", "search without it")),
        (instance(SGD, maximize=True), ("maximize=True",)),
        (torch.optim.LBFGS, ("optimizer is LBFGS", "optimizer='adam'")),
    ],
)
def test_what_trials_cannot_train_with_is_said(given: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(es.InputError) as caught:
        es.search_lr(plain.mlp, plain.images(), optimizer=given)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_without_its_decay_an_optimizer_is_searched_with() -> None:
    found = searched(instance(Adam, weight_decay=0.1), weight_decay=0.0)
    assert [loss for (loss,) in found.losses] == pytest.approx(by_torch(Adam), rel=1e-6)
