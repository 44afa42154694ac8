"""A `param_group_fn` for timm, called as timm documents that it calls one; timm itself is not at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import evenstep as es
from evenstep.integrations.timm import param_group_fn

INPUTS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    features = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def create_optimizer_v2(
    model_or_params: nn.Module,
    opt: str = "sgd",
    lr: float | None = None,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    foreach: bool | None = None,
    filter_bias_and_bn: bool = True,
    layer_decay: float | None = None,
    param_group_fn: Callable[[nn.Module], Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Do what timm documents of the function of this name where it is given a `param_group_fn`.

    Its own `weight_decay` and `lr` are defaults of the optimiser, which act on groups that have none.
    """
    assert param_group_fn is not None
    known: dict[str, Any] = {
        "sgd": (torch.optim.SGD, {"momentum": momentum, "nesterov": True}),
        "adamw": (torch.optim.AdamW, {}),
    }
    kind, usual = known[opt]
    settings = {"weight_decay": weight_decay, **({} if lr is None else {"lr": lr}), **usual, "foreach": foreach}
    return kind(param_group_fn(model_or_params), **settings, **kwargs)


@pytest.mark.parametrize(("opt", "optimizer"), [("sgd", "momentum"), ("adamw", "adam")])
@pytest.mark.parametrize("lr", [None, 0.5])
def test_the_groups_are_the_plans_whatever_timm_is_given_besides(opt: str, optimizer: Any, lr: float | None) -> None:
    model = network()
    plan = es.plan(model, INPUTS, base=0.1, optimizer=optimizer)
    groups = param_group_fn(plan, weight_decay=1e-3)
    built = create_optimizer_v2(model, opt=opt, lr=lr, weight_decay=0.05, param_group_fn=groups)
    assert es.check_groups(model, plan, built) == pytest.approx(0.1)
    decays = {id(p): group["weight_decay"] for group in built.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert decays[id(parameter)] == (1e-3 if parameter.ndim > 1 else 0.0), name
    plain = create_optimizer_v2(model, opt=opt, weight_decay=0.05, param_group_fn=param_group_fn(plan))
    assert {group["weight_decay"] for group in plain.param_groups} == {0.0}


def test_options_go_to_the_groups() -> None:
    model = network()
    plan = es.plan(model, INPUTS, optimizer="adam")
    built = create_optimizer_v2(
        model, opt="adamw", param_group_fn=param_group_fn(plan, lr=0.2, weight_decay=1e-3, no_decay=False)
    )
    assert es.check_groups(model, plan, built) == pytest.approx(0.2)
    assert {group["weight_decay"] for group in built.param_groups} == {1e-3}


def test_bad_input_is_named() -> None:
    with pytest.raises(es.InputError, match="the plan is 3; give what"):
        param_group_fn(3)  # type: ignore[arg-type]
    plan = es.plan(network(), INPUTS, base=0.1, optimizer="muon")
    with pytest.raises(es.InputError, match=r"timm's Muon .* plan\.optimizer"):
        param_group_fn(plan)
    with pytest.raises(es.InputError, match="weight_decay is -1"):
        param_group_fn(es.plan(network(), INPUTS, base=0.1, optimizer="adam"), weight_decay=-1)
