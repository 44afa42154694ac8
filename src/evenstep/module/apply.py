"""Apply a plan: draw the weights, and hand the learning rates over as ordinary optimiser groups."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import nn

from evenstep.errors import InputError, PlanError
from evenstep.module.unwrap import FLATTENED, is_sharded, named_parameters, unwrapped
from evenstep.rules.plan import ParameterPlan, Plan


def initialize_(model: nn.Module, plan: Plan, *, generator: torch.Generator | None = None) -> None:
    """Draw every planned parameter of a module from N(mean, std^2): weights as planned, biases 0, norm gains 1.

    Frozen parameters, buffers and parameters whose plan says `kept` stay as they are. The same generator state gives
    the same weights, on a module that `fully_shard` has sharded too; without a generator torch's default one is used.
    The row of an embedding that stands for padding is left at zero.
    """
    found = matched(model, plan)
    padding = _padding_rows(model)
    with torch.no_grad():
        for planned, parameter in found:
            if planned.kept:
                continue
            if planned.std == 0.0:
                parameter.fill_(planned.mean)
                continue
            if is_sharded(parameter):
                _draw_sharded_(parameter, planned, generator, padding.get(id(parameter)))
            else:
                _draw_(parameter, planned, generator, padding.get(id(parameter)))


def _draw_sharded_(
    parameter: Any, planned: ParameterPlan, generator: torch.Generator | None, padding: int | None
) -> None:
    """Draw a parameter whole and hand out its shards: processes of one seed would fill all shards with the same."""
    from torch.distributed.tensor import distribute_tensor  # not part of every build of torch

    whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    _draw_(whole, planned, generator, padding)
    parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))


def _draw_(
    parameter: torch.Tensor, planned: ParameterPlan, generator: torch.Generator | None, padding: int | None
) -> None:
    _draw_normal_(parameter, planned, generator)
    if padding is not None:
        parameter[padding].zero_()


def _draw_normal_(parameter: torch.Tensor, planned: ParameterPlan, generator: torch.Generator | None) -> None:
    if generator is None or generator.device.type == parameter.device.type:
        parameter.normal_(planned.mean, planned.std, generator=generator)
        return
    # The generator lives elsewhere (as a rule on the CPU): draw there, then move.
    drawn = torch.empty(parameter.shape, dtype=torch.float32, device=generator.device)
    parameter.copy_(drawn.normal_(planned.mean, planned.std, generator=generator))


def _padding_rows(model: nn.Module) -> dict[int, int]:
    return {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }


def param_groups(
    model: nn.Module, plan: Plan, *, lr: float | None = None, even_decay: bool = False, **options: Any
) -> list[dict[str, Any]]:
    """Return optimiser groups, one for each distinct learning rate, in the order of their first parameter.

    A group has `params`, a real `lr`, a `name` and whatever `options` were given (such as `weight_decay`). With
    `even_decay` every group's `weight_decay` is divided by its layers' own factor of the rate.
    """
    require_module_and_plan(model, plan)
    decay = _decay(options) if even_decay else None
    base = plan.base if lr is None else lr
    if base is None:
        raise PlanError("the plan holds factors only; give the base's learning rate: plan.param_groups(model, lr=...)")
    if isinstance(base, bool) or not isinstance(base, Real) or not math.isfinite(base) or base <= 0:
        raise InputError(f"lr is {base!r}; give a finite number above 0")
    rate = float(base)
    for reserved in ("params", "name"):
        if reserved in options:
            raise InputError(f"option '{reserved}' is set by the plan; leave it out")
    groups: dict[float, dict[str, Any]] = {}
    for planned, parameter in matched(model, plan):
        # Twelve digits: rates that differ by rounding alone belong together.
        scale = float(f"{planned.lr_scale:.12g}")
        if scale not in groups:
            groups[scale] = {"params": [], "lr": rate * scale, "name": planned.name, **options}
            if decay is not None:
                groups[scale]["weight_decay"] = decay * plan.decay_scale(planned)
        groups[scale]["params"].append(parameter)
    for group in groups.values():
        if len(group["params"]) > 1:
            group["name"] += f" (+{len(group['params']) - 1})"
    return list(groups.values())


def _decay(options: dict[str, Any]) -> float:
    """Return the weight decay among the options of all groups."""
    decay = options.get("weight_decay")
    if isinstance(decay, bool) or not isinstance(decay, Real) or not math.isfinite(decay) or decay < 0:
        raise InputError(
            f"weight_decay is {decay!r}; even_decay=True divides a weight decay among the groups: give a finite number "
            "from 0 up, or leave even_decay out"
        )
    return float(decay)


def matched(model: nn.Module, plan: Plan) -> list[tuple[ParameterPlan, nn.Parameter]]:
    """Pair every parameter plan with its parameter; a plan for another model raises."""
    require_module_and_plan(model, plan)
    own = {name: p for name, p in named_parameters(model).items() if p.requires_grad}
    planned = {p.name: p for p in plan.parameters}
    kind = type(unwrapped(model)).__name__
    if any(type(module).__name__ == FLATTENED for module in model.modules()):
        raise PlanError(
            f"{FLATTENED} flattens the parameters of {kind}, so that no plan fits; shard the model with "
            "torch.distributed.fsdp.fully_shard, which keeps their shapes"
        )
    missing = [name for name in planned if name not in own]
    unplanned = [name for name in own if name not in planned]
    if missing or unplanned:
        raise PlanError(
            f"the plan does not fit {kind}: {_listed('missing in the model', missing)}"
            f"{' and ' if missing and unplanned else ''}{_listed('not in the plan', unplanned)}; "
            "plan this very model, frozen parameters frozen before the plan is made"
        )
    for name, p in planned.items():
        if tuple(own[name].shape) != p.shape:
            raise PlanError(
                f"the plan does not fit {kind}: '{name}' has shape {tuple(own[name].shape)} in the model and {p.shape} "
                "in the plan; plan this very model"
            )
    return [(planned[name], own[name]) for name in planned]


def require_module_and_plan(model: object, plan: object) -> None:
    """Refuse anything but a module and a plan, in this order."""
    if isinstance(model, Plan) and isinstance(plan, nn.Module):
        raise InputError(
            f"the model is Plan and the plan is {type(plan).__name__}; the two are swapped: give the module first, "
            "then its plan"
        )
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is {type(model).__name__}; give the torch.nn.Module that was planned")
    if not isinstance(plan, Plan):
        raise InputError(f"the plan is {type(plan).__name__}; give what evenstep.plan(model, example_inputs) returns")


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(repr(name) for name in names[:3])}{more} {what}"
