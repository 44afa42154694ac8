"""Check that a plan builds the optimiser it was made for: against one that is built by hand from the plan's groups."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RAdam

import evenstep as es
from evenstep.planning import optimizer_choice, plan_graph

torch.set_num_threads(1)
X = torch.randn(16, 12, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (16,), generator=torch.Generator().manual_seed(1))


def net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))


def planned(optimizer: Any = "sgd", model: nn.Module | None = None) -> es.Plan:
    return es.plan(model or net(), X, base=0.01, optimizer=optimizer)


def trained(model: nn.Module, optimizer: Optimizer, steps: int = 4) -> list[torch.Tensor]:
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def instance(kind: Callable[..., Optimizer], **options: Any) -> Optimizer:
    return kind(net().parameters(), lr=123.0, **options)


# What is given -> the kind of plan, and what one would write by hand.
GIVEN: dict[str, tuple[Any, str, Callable[[Any], Optimizer]]] = {
    "sgd": ("sgd", "sgd", SGD),
    "momentum": ("momentum", "momentum", partial(SGD, momentum=0.9, nesterov=True)),
    "adam": ("adam", "adam", partial(AdamW, weight_decay=0.0)),
    "adamw": ("adamw", "adam", partial(AdamW, weight_decay=0.0)),
    "SGD": (SGD, "sgd", SGD),
    "Adam": (Adam, "adam", Adam),
    "AdamW": (AdamW, "adam", AdamW),  # with torch's own weight decay
    "NAdam": (NAdam, "adam", NAdam),
    "partial": (partial(SGD, lr=9.0, momentum=0.7), "momentum", partial(SGD, momentum=0.7)),
    "partial of a partial": (
        partial(partial(AdamW, eps=1e-3), betas=(0.5, 0.9)),
        "adam",
        partial(AdamW, eps=1e-3, betas=(0.5, 0.9)),
    ),
    "plain instance": (instance(SGD, weight_decay=0.3), "sgd", partial(SGD, weight_decay=0.3)),
    "instance": (
        instance(SGD, momentum=0.8, weight_decay=0.1, dampening=0.2),
        "momentum",
        partial(SGD, momentum=0.8, weight_decay=0.1, dampening=0.2),
    ),
    "instance of AdamW": (
        instance(AdamW, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.2, amsgrad=True, foreach=False),
        "adam",
        partial(AdamW, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.2, amsgrad=True, foreach=False),
    ),
    "instance of NAdam": (
        instance(NAdam, momentum_decay=0.1, weight_decay=0.2, decoupled_weight_decay=True),
        "adam",
        partial(NAdam, momentum_decay=0.1, weight_decay=0.2, decoupled_weight_decay=True),
    ),
    "groups that say it": (
        SGD([{"params": net().parameters(), "momentum": 0.6}], lr=1.0),
        "momentum",
        partial(SGD, momentum=0.6),
    ),
    "tensors": (
        instance(AdamW, betas=(torch.tensor(0.5), torch.tensor(0.75)), foreach=False, capturable=True),
        "adam",
        partial(AdamW, betas=(0.5, 0.75), foreach=False, capturable=True),
    ),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_plan_builds_the_optimizer_it_is_for(name: str) -> None:
    given, kind, by_hand = GIVEN[name]
    ours, theirs = net(), net()
    plan = planned(given, ours)
    again = es.Plan.from_json(plan.to_json())
    assert again == plan
    assert plan.optimizer_name == kind
    built = again.optimizer(ours)
    decay = {"weight_decay": d} if (d := built.defaults["weight_decay"]) and kind == "adam" else {}
    expected = by_hand(plan.param_groups(theirs, **decay))
    assert type(built) is type(expected)
    settings = [[{k: v for k, v in g.items() if k != "params"} for g in o.param_groups] for o in (built, expected)]
    assert settings[0] == settings[1]
    assert es.check_groups(ours, plan, built) == pytest.approx(0.01)
    if name != "tensors":  # capturable steps are a GPU's
        assert same(trained(ours, built), trained(theirs, expected))


@pytest.mark.parametrize("name", ["AdamW", "instance", "sgd"])
def test_the_settings_change_no_rate(name: str) -> None:
    given, kind, _ = GIVEN[name]
    assert [p.lr_scale for p in planned(given)] == [p.lr_scale for p in planned(kind)]


def test_options_override_what_the_plan_remembers() -> None:
    model = net()
    plan = planned(partial(SGD, momentum=0.8, weight_decay=0.1), model)
    built = plan.optimizer(model, momentum=0.5, nesterov=True, lr=0.2, maximize=True)
    for group, planned_group in zip(built.param_groups, plan.param_groups(model, lr=0.2), strict=True):
        assert group["lr"] == planned_group["lr"]
        assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.5, True, 0.1)
        assert group["maximize"]
    even = plan.optimizer(model, even_decay=True, weight_decay=0.4)
    expected = plan.param_groups(model, even_decay=True, weight_decay=0.4)
    assert len({group["weight_decay"] for group in expected}) > 1
    assert [g["weight_decay"] for g in even.param_groups] == [g["weight_decay"] for g in expected]


def test_a_plan_of_factors_needs_the_rate() -> None:
    model = net()
    plan = es.plan(model, X, optimizer="adam")
    with pytest.raises(es.PlanError, match="factors only"):
        plan.optimizer(model)
    assert es.check_groups(model, plan, plan.optimizer(model, lr=0.3)) == pytest.approx(0.3)


class Mine(AdamW):
    """One's own."""


class Foreign(Optimizer):
    """Of another package."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})


UNFIT: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a name": ("lamb", ("optimizer is 'lamb'", "sgd, momentum, adam, adamw, muon, lion")),
    "LBFGS": (torch.optim.LBFGS, ("optimizer is LBFGS", "which no rule has rates for", "optimizer='adam'")),
    "Adagrad": (
        instance(torch.optim.Adagrad),
        ("optimizer is Adagrad", "which no rule has rates for", "SGD, Adam, AdamW, NAdam, Muon"),
    ),
    "RAdam": (RAdam, ("optimizer is RAdam", "which no rule has rates for")),
    "derived": (
        Mine,
        ("optimizer is Mine, which derives from torch's AdamW", "optimizer='adam'", "plan.param_groups(model)"),
    ),
    "derived, of the same name": (
        type("AdamW", (AdamW,), {}),
        ("optimizer is AdamW, which derives from torch's AdamW",),
    ),
    "foreign": (Foreign(net().parameters()), ("optimizer is Foreign", "which no rule has rates for")),
    "a class of anything": (int, ("optimizer is int",)),
    "a number": (5, ("optimizer is 5", "torch.optim.AdamW")),
    "a function": (lambda params: SGD(params), ("optimizer is <function", "torch.optim.AdamW")),
    "nothing in a partial": (partial(print), ("give one of sgd",)),
    "a partial with parameters": (
        partial(SGD, [1]),  # type: ignore[arg-type]
        ("partial SGD with [1]", "only options by name"),
    ),
    "a partial with a typing error": (
        partial(SGD, momentun=0.9),  # type: ignore[call-arg]
        ("partial SGD with 'momentun'", "momentum,"),
    ),
    "groups that differ": (
        AdamW([{"params": [p], "weight_decay": d} for p, d in zip(net()[0].parameters(), (0.0, 0.1), strict=True)]),
        ("differ in weight_decay: 0.0 and 0.1", "optimizer=torch.optim.AdamW", "plan.param_groups(model)"),
    ),
    "no number": (partial(SGD, weight_decay=float("nan")), ("weight_decay of the optimizer is nan",)),
    "no momentum": (
        partial(SGD, momentum="much"),  # type: ignore[arg-type]
        ("momentum is 'much'", "finite number"),
    ),
    "a list of lists": (
        partial(AdamW, betas=[[0.9], 0.9]),  # type: ignore[arg-type]
        ("betas of the optimizer is [0.9]", "pair"),
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_no_plan_is_for_is_said_with_the_remedy(name: str) -> None:
    given, words = UNFIT[name]
    graph = es.trace(net(), X)
    for make in (lambda: planned(given), lambda: plan_graph(graph, optimizer=given), lambda: optimizer_choice(given)):
        with pytest.raises(es.InputError) as caught:
            make()
        assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "options", "error", "words"),
    [
        ("sgd", {"betas": (0.9, 0.9)}, es.InputError, ("SGD has no option 'betas'", "momentum")),
        ("adam", {"params": []}, es.InputError, ("option 'params'",)),
        ("adam", {"betas": (2.0, 0.9)}, es.InputError, ("torch.optim.AdamW refuses", "2.0")),
        ("adam", {"lr": -1.0}, es.InputError, ("lr is -1.0",)),
        ("adam", {"lr": "much"}, es.InputError, ("lr is 'much'",)),
        ("momentum", {"momentum": 0.0, "nesterov": False}, es.PlanError, ("SGD without momentum", "'momentum'")),
        ("sgd", {"momentum": 0.9}, es.PlanError, ("SGD with momentum 0.9", "'sgd'", "optimizer='momentum'")),
        ("sgd", {"even_decay": 3}, es.InputError, ("even_decay is 3",)),
    ],
)
def test_bad_options_of_an_optimizer_are_said_in_one_line(
    given: Any, options: dict[str, Any], error: type[Exception], words: tuple[str, ...]
) -> None:
    model = net()
    plan = planned(given, model)
    with pytest.raises(error) as caught:
        plan.optimizer(model, **options)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert "\n" not in str(caught.value)


# Changed by hand


def test_scaled_rates_are_what_the_optimizer_steps_by() -> None:
    start, whole, halved = net(), net(), net()
    plan = planned("sgd")
    made = plan.scale("*", 0.25).scale("3.*", 4.0)
    after = [trained(model, p.optimizer(model), 1) for model, p in ((whole, plan), (halved, made))]
    for (name, before), one, two in zip(start.named_parameters(), *after, strict=True):
        ratio = 1.0 if name.startswith("3.") else 0.25
        torch.testing.assert_close(two - before, ratio * (one - before), rtol=1e-3, atol=1e-7)
    assert es.check_groups(halved, made, made.optimizer(halved)) == pytest.approx(0.01)
    with pytest.raises(es.PlanError, match="groups are not the plan's"):
        es.check_groups(halved, plan, made.optimizer(halved))


@pytest.mark.parametrize("asks", [True, False])
def test_frozen_parameters_stay_as_they_are(asks: bool) -> None:
    model = net()
    made = planned("adam", model).freeze("0.*")
    before = copy.deepcopy(model.state_dict())
    for name, p in model.named_parameters():
        p.requires_grad_(asks or not name.startswith("0."))
    es.initialize_(model, made)
    optimizer = made.optimizer(model, weight_decay=0.1)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for name, p in model.named_parameters() if not name.startswith("0.")}
    assert es.check_groups(model, made, optimizer) == pytest.approx(0.01)
    trained(model, optimizer)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name]) == name.startswith("0."), name
        assert p.requires_grad == (asks or not name.startswith("0."))


def test_an_optimizer_that_trains_what_is_frozen_is_found() -> None:
    model = net()
    plan = planned("adam", model)
    made = plan.freeze("0.weight")
    with pytest.raises(es.PlanError, match=r"'0\.weight' has the learning rate .* but the plan has 0"):
        es.check_groups(model, made, plan.optimizer(model))
    still = made.optimizer(model)
    still.add_param_group({"params": [model[0].weight], "lr": 0.0})
    assert es.check_groups(model, made, still) == pytest.approx(0.01)


def test_a_model_without_what_is_frozen_does_not_fit() -> None:
    made = planned("sgd").freeze("3.*")
    with pytest.raises(es.PlanError, match=r"'3\.weight', '3\.bias' missing in the model"):
        made.param_groups(net()[:3])
