"""Apply a plan: draw the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from evenstep.arguments import shown
from evenstep.errors import InputError
from evenstep.planning import ParameterPlan, Plan
from evenstep.planning.groups import matched
from evenstep.planning.unwrap import is_sharded


def initialize_(model: nn.Module, plan: Plan, *, generator: torch.Generator | None = None) -> None:
    """Draw every planned parameter of a module from N(mean, std^2): weights as planned, biases 0, norm gains 1.

    Frozen parameters, buffers and parameters whose plan says `kept` stay as they are. The same generator state gives
    the same weights, also if `fully_shard` has sharded the module; the default is torch's default generator. An
    embedding's padding row stays at zero.
    """
    require_module_and_plan(model, plan)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(f"generator is {shown(generator)}; give a torch.Generator, or leave it out")
    padding = _padding_rows(model)
    with torch.no_grad():
        for planned, parameter in matched(model, plan):
            if planned.kept:
                continue
            if is_sharded(parameter) and planned.std:
                _draw_sharded_(parameter, planned, generator, padding.get(id(parameter)))
            else:
                draw_(parameter, planned.mean, planned.std, generator, padding.get(id(parameter)))


def _draw_sharded_(
    parameter: Any, planned: ParameterPlan, generator: torch.Generator | None, padding: int | None
) -> None:
    """Draw a whole parameter and distribute its shards: drawn separately, all shards would hold the same numbers."""
    from torch.distributed.tensor import distribute_tensor  # not part of every build of torch

    whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    draw_(whole, planned.mean, planned.std, generator, padding)
    parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))


def draw_(
    parameter: torch.Tensor, mean: float, std: float, generator: torch.Generator | None, padding: int | None = None
) -> None:
    """Draw one tensor from N(mean, std^2), except for the padding row."""
    if std == 0.0:
        parameter.fill_(mean)
        return
    _draw_normal_(parameter, mean, std, generator)
    if padding is not None:
        parameter[padding].zero_()


def _draw_normal_(parameter: torch.Tensor, mean: float, std: float, generator: torch.Generator | None) -> None:
    if generator is None or generator.device.type == parameter.device.type:
        parameter.normal_(mean, std, generator=generator)
        return
    # The generator is on another device (usually the CPU), so draw there and then move.
    drawn = torch.empty(parameter.shape, dtype=torch.float32, device=generator.device)
    parameter.copy_(drawn.normal_(mean, std, generator=generator))


def _padding_rows(model: nn.Module) -> dict[int, int]:
    return {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }


def require_module_and_plan(model: object, plan: object) -> None:
    """Refuse anything but a module and a plan, in this order."""
    if isinstance(model, Plan) and isinstance(plan, nn.Module):
        raise InputError(
            f"the model is a Plan and the plan is {type(plan).__name__}; the two are swapped: give the module first, "
            "then its plan"
        )
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is {type(model).__name__}; give the torch.nn.Module that was planned")
    if not isinstance(plan, Plan):
        raise InputError(f"the plan is {type(plan).__name__}; give what evenstep.plan(model, example_inputs) returns")
