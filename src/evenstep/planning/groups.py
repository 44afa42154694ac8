"""Hand a plan's learning rates over as ordinary optimiser groups of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenstep.arguments import require_number, shown
from evenstep.errors import InputError, PlanError
from evenstep.planning.unwrap import FLATTENED, is_module, named_parameters, unwrapped

if TYPE_CHECKING:
    from evenstep.planning.plan import ParameterPlan, Plan


def param_groups(model: Any, plan: Plan, *, lr: float | None, even_decay: bool, **options: Any) -> list[dict[str, Any]]:
    """Return optimiser groups, one for each distinct learning rate, in the order of their first parameter.

    A group has `params`, a real `lr`, a `name` and whatever `options` were given (such as `weight_decay`). With
    `even_decay` every group's `weight_decay` is divided by its layers' own factor of the rate.
    """
    if not isinstance(even_decay, bool):
        raise InputError(f"even_decay is {shown(even_decay)}; give True or False")
    decay = _decay(options) if even_decay else None
    base = plan.base if lr is None else lr
    if base is None:
        raise PlanError("the plan holds factors only; give the base's learning rate: plan.param_groups(model, lr=...)")
    rate = require_number("lr", base, above=0)
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
    remedy = ", which even_decay=True divides among the groups, or leave even_decay out"
    return require_number("weight_decay", options.get("weight_decay"), least=0, remedy=remedy)


def matched(model: Any, plan: Plan) -> list[tuple[ParameterPlan, Any]]:
    """Pair every parameter plan with its parameter; a plan for another model raises."""
    if not is_module(model):
        raise InputError(f"the model is {type(model).__name__}; give the torch.nn.Module that was planned")
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


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(repr(name) for name in names[:3])}{more} {what}"
