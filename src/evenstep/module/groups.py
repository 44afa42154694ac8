"""Check that an optimiser steps a module as its plan says."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam

from evenstep.arguments import shown
from evenstep.errors import InputError, PlanError
from evenstep.module.apply import require_module_and_plan
from evenstep.planning import Plan
from evenstep.planning.groups import matched

_ADAMS = (Adam, AdamW, NAdam, RAdam, Adamax)
_CLOSE = 1e-6  # schedulers compute rates in their own order


def check_groups(model: nn.Module, plan: Plan, optimizer: Optimizer) -> float:
    """Return the base's learning rate that an optimiser is at now; raise where its groups are not the plan's.

    Whatever scales all groups by one factor passes: warm-up, decay, restarts. What raises: an optimiser built without
    the plan, or from another copy of the module, schedulers that give all groups one rate, and an optimiser of another
    kind than the plan's: Adam, SGD without momentum, or SGD with it. One of a class that torch does not have passes.

    >>> import torch, evenstep as es
    >>> net = nn.Linear(8, 2)
    >>> planned = es.plan(net, torch.zeros(1, 8), base=0.1, optimizer="sgd")
    >>> check_groups(net, planned, torch.optim.SGD(planned.param_groups(net)))
    0.1
    """
    require_module_and_plan(model, plan)
    if not isinstance(getattr(optimizer, "param_groups", None), list):
        raise InputError(f"the optimizer is {shown(optimizer)}; give a torch optimizer, which has param_groups")
    _require_kind(plan, optimizer)
    rates = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
    pairs = [(planned, rates.get(id(parameter))) for planned, parameter in matched(model, plan)]
    if lost := [planned.name for planned, rate in pairs if rate is None]:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise PlanError(
            f"the optimizer does not hold '{lost[0]}'{more} of this {type(model).__name__}; build it from "
            "plan.param_groups(model) after the model was copied, sharded or moved for the last time"
        )
    found = [(planned, rate) for planned, rate in pairs if rate is not None]
    first, first_rate = max(found, key=lambda pair: pair[0].lr_scale)
    base = first_rate / first.lr_scale
    for planned, rate in found:
        wanted = base * planned.lr_scale
        if not math.isclose(rate, wanted, rel_tol=_CLOSE, abs_tol=1e-30):
            raise PlanError(_unlike(planned.name, rate, wanted, len(set(rates.values())) == 1))
    return float(f"{base:.12g}")


def _require_kind(plan: Plan, optimizer: Optimizer) -> None:
    """Refuse an optimiser whose steps the plan's rates are not made for; one that torch does not have passes."""
    kind, words = _kind(optimizer)
    if kind is not None and kind != plan.optimizer:
        raise PlanError(
            f"the optimizer is {words}, and the plan is for '{plan.optimizer}', whose rates are of another size; plan, "
            f"and search the base, with optimizer='{kind}'"
        )


def _kind(optimizer: Optimizer) -> tuple[str | None, str]:
    """Return what an optimiser is called in a plan, None where that cannot be told, and the same in words."""
    name = type(optimizer).__name__
    if isinstance(optimizer, _ADAMS):
        return "adam", name
    if not isinstance(optimizer, SGD):
        return None, name
    momenta = {float(group.get("momentum", 0.0)) for group in optimizer.param_groups}
    if len({momentum > 0 for momentum in momenta}) > 1:
        return None, name
    return (
        ("momentum", f"{name} with momentum {max(momenta):g}")
        if max(momenta) > 0
        else ("sgd", f"{name} without momentum")
    )


def _unlike(name: str, rate: float, wanted: float, one_rate: bool) -> str:
    what = "all parameters have the one learning rate" if one_rate else f"'{name}' has the learning rate"
    planned = f"'{name}'" if one_rate else "it"
    return (
        f"the optimizer's groups are not the plan's: {what} {rate:.4g}, where the plan has {wanted:.4g} for {planned}; "
        "build the optimizer from plan.param_groups(model), and scale all groups by one factor: OneCycleLR takes a "
        "list, max_lr=[g['lr'] for g in optimizer.param_groups], and floors such as eta_min or min_lr have to be 0 or "
        "a list"
    )
