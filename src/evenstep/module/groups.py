"""Check that an optimiser steps a module as its plan says."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from evenstep.arguments import shown
from evenstep.errors import InputError, PlanError, PlanWarning, warn
from evenstep.module.apply import require_module_and_plan
from evenstep.optim import Muon
from evenstep.planning import ParameterPlan, Plan
from evenstep.planning.groups import TORCH_EPS, matched, matrices_of
from evenstep.planning.moving import TORCH_BETAS, warn_if_elsewhere
from evenstep.planning.optimizers import require_kind
from evenstep.rules.training import Training

_CLOSE = 1e-6  # schedulers compute rates in their own order
_STEPS_AHEAD = 1000


def check_groups(
    model: nn.Module,
    plan: Plan,
    optimizer: Optimizer,
    scheduler: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
) -> float:
    """Return an optimiser's current base learning rate; raise if its groups are not the plan's.

    Schedules that scale all groups by one factor pass: warm-up, decay, restarts. It raises for an optimiser built
    without the plan or from another copy of the module, if all groups have one rate, if the optimiser trains what the
    plan has frozen, if its kind is not the plan's (Adam, SGD without momentum, SGD with momentum, Muon, Lion), and if
    Muon does not step exactly the plan's hidden matrices. An optimiser class that torch does not have passes. A copy of
    the `scheduler` is run 1000 steps ahead, or to its end, and raises if it will make rates equal, as floors such as
    `eta_min` do once they are reached. `batch_size` and `steps` are those of the training: if the plan is for others, a
    `PlanWarning` says so, as it does if the plan scales weight decay, epsilon or betas and the optimiser has them
    unscaled.

    >>> import torch, evenstep as es
    >>> net = nn.Linear(8, 2)
    >>> planned = es.plan(net, torch.zeros(1, 8), base=0.1, optimizer="sgd")
    >>> check_groups(net, planned, torch.optim.SGD(planned.param_groups(net)))
    0.1
    """
    require_module_and_plan(model, plan)
    if not isinstance(getattr(optimizer, "param_groups", None), list):
        raise InputError(f"the optimizer is {shown(optimizer)}; give a torch optimizer, which has param_groups")
    require_kind(plan, optimizer)
    warn_if_elsewhere(plan, Training(batch_size, steps))
    rates = _rates(optimizer)
    pairs = matched(model, plan)
    if lost := [planned.name for planned, p in pairs if id(p) not in rates and not planned.frozen]:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise PlanError(
            f"the optimizer does not hold '{lost[0]}'{more} of this {type(model).__name__}; build it from "
            "plan.param_groups(model) after the last time that the model is copied, sharded or moved"
        )
    for name, rate, wanted in unlike_rates(model, plan, optimizer):
        raise PlanError(_unlike(name, rate, wanted, len(set(rates.values())) == 1))
    _require_sorted(plan, optimizer, [(planned.name, parameter) for planned, parameter in pairs])
    _warn_if_unscaled(plan, optimizer, pairs)
    if scheduler is not None:
        require_even_schedule(optimizer, scheduler)
    return float(f"{_base(pairs, rates):.12g}")


def unlike_rates(model: nn.Module, plan: Plan, optimizer: Optimizer) -> list[tuple[str, float, float]]:
    """Return the parameters whose rates are not the plan's, each with its rate and the planned one."""
    rates, pairs = _rates(optimizer), matched(model, plan)
    base = _base(pairs, rates)
    held = [(p.name, rates[id(parameter)], base * p.lr_scale) for p, parameter in pairs if id(parameter) in rates]
    return [each for each in held if not math.isclose(each[1], each[2], rel_tol=_CLOSE, abs_tol=1e-30)]


def _rates(optimizer: Optimizer) -> dict[int, float]:
    return {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}


def _base(pairs: list[tuple[ParameterPlan, Any]], rates: dict[int, float]) -> float:
    """Return the base's rate, computed from the parameter that the plan trains fastest."""
    fastest, parameter = max((pair for pair in pairs if id(pair[1]) in rates), key=lambda pair: pair[0].lr_scale)
    return rates[id(parameter)] / fastest.lr_scale


def _warn_if_unscaled(plan: Plan, optimizer: Optimizer, pairs: list[tuple[ParameterPlan, Any]]) -> None:
    """Warn if an optimiser has the plan's rates but not the decay, epsilon or betas that belong to them."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    held = [(planned, groups[id(parameter)]) for planned, parameter in pairs if id(parameter) in groups]
    usual = {"eps": TORCH_EPS, **plan.optimizer_options}
    for option, field in (("weight_decay", "decay_scale"), ("eps", "eps_scale")):
        if not plan.scales(option):
            continue
        # Parameters without decay do not show whether it is scaled.
        scales = {group[option]: set[float]() for _, group in held if group.get(option)}
        for planned, group in held:
            if group.get(option):
                scales[group[option]].add(float(f"{getattr(planned, field):.12g}"))
        for value, of_value in scales.items():
            if len(scales) == 1 and (len(of_value) > 1 or (value == usual.get(option) and of_value != {1.0})):
                _warn_of_one(plan, option, value)
    if plan.scales("betas"):
        unmoved = tuple(usual.get("betas", TORCH_BETAS))
        if any(tuple(group.get("betas", ())) == unmoved for _, group in held):
            _warn_of_one(plan, "betas", unmoved)


def _warn_of_one(plan: Plan, option: str, value: object) -> None:
    warn(
        f"the plan by rule '{plan.rule}' scales {option} together with the rates, but the optimizer has {option} "
        f"{value} for all of them; build it with plan.optimizer(model, {option}=...), or give {option} to "
        "plan.param_groups(model, ...) and not to the optimizer",
        PlanWarning,
    )


def _require_sorted(plan: Plan, optimizer: Optimizer, named: list[tuple[str, Any]]) -> None:
    """Refuse a Muon that does not step exactly the plan's matrices."""
    if plan.optimizer_name != "muon" or not isinstance(optimizer, Muon):
        return
    matrices = matrices_of(plan)
    by_muon = {id(p): group["muon"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in named:
        stepped = by_muon.get(id(parameter), name in matrices)
        if stepped != (name in matrices):
            does = "steps" if stepped else "does not step"
            raise PlanError(
                f"the optimizer's Muon {does} '{name}', which {'is not' if stepped else 'is'} a hidden matrix of the "
                "plan; build it with plan.optimizer(model), or from unchanged plan.param_groups(model)"
            )


def require_even_schedule(optimizer: Optimizer, scheduler: Any) -> None:
    """Refuse a scheduler that will scale groups by different factors, which running a copy of it ahead shows."""
    if getattr(scheduler, "optimizer", None) is not optimizer:
        raise InputError(f"the scheduler is {shown(scheduler)}; give one of this optimizer, such as CosineAnnealingLR")
    settings = [{n: v for n, v in group.items() if n != "params"} for group in optimizer.param_groups]
    stand_in = SGD([{**group, "params": [torch.zeros(1)]} for group in settings], lr=1.0)
    # A warm-up begins at zero, which has no factors: the rates that it rises to count instead.
    start = [float(group["lr"]) or float(group.get("initial_lr", 0.0)) for group in settings]
    ahead = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    arguments = (1.0,) if isinstance(scheduler, ReduceLROnPlateau) else ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's, on the order of steps
        for step in range(1, _STEPS_AHEAD + 1):
            try:
                ahead.step(*arguments)
            except ValueError:  # OneCycleLR has an end
                return
            factors = [float(g["lr"]) / rate for g, rate in zip(stand_in.param_groups, start, strict=True) if rate]
            if max(factors, default=0.0) - min(factors, default=0.0) > _CLOSE * max(1.0, *factors):
                raise PlanError(
                    f"{type(scheduler).__name__} changes the ratios of rates: {step} steps ahead one group is at "
                    f"{min(factors):.4g} of its rate and another at {max(factors):.4g}; scale all groups by one "
                    "factor: floors such as eta_min or min_lr have to be 0, or a list with one for each group"
                )


def _unlike(name: str, rate: float, wanted: float, one_rate: bool) -> str:
    what = "all parameters have the same learning rate" if one_rate else f"'{name}' has the learning rate"
    planned = f"'{name}'" if one_rate else "it"
    return (
        f"the optimizer's groups are not the plan's: {what} {rate:.4g}, but the plan has {wanted:.4g} for {planned}; "
        "build the optimizer from plan.param_groups(model), and scale all groups by one factor: OneCycleLR takes a "
        "list, max_lr=[g['lr'] for g in optimizer.param_groups], and floors such as eta_min or min_lr have to be 0 or "
        "a list"
    )
