"""Turn a plan's learning rates into ordinary optimiser groups of a module."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from evenstep.arguments import require_number, shown
from evenstep.errors import InputError, PlanError
from evenstep.graph.matrices import Matrices, hidden_matrices
from evenstep.graph.roles import roles
from evenstep.planning.decay import decay_kind, decay_rate, decaying, group_decay, is_decoupled
from evenstep.planning.moving import moved_betas
from evenstep.planning.unwrap import FLATTENED, is_module, named_parameters, unwrapped
from evenstep.rules import steps_by_rate

if TYPE_CHECKING:
    from evenstep.planning.plan import ParameterPlan, Plan

TORCH_EPS = 1e-8  # of torch's Adam, AdamW and NAdam


def param_groups(
    model: Any,
    plan: Plan,
    *,
    lr: float | None = None,
    decay: str | None = None,
    even_decay: bool = False,
    no_decay: bool | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return optimiser groups, one for each distinct learning rate, in the order of their first parameter.

    A group has `params`, a real `lr`, a `name` and whatever `options` were given (such as `weight_decay`). `decay` says
    how weight decay depends on the rates, `no_decay` whether some parameters have none (see `evenstep.planning.decay`);
    those get groups of their own, as do Muon's matrices (`muon=True`, with their `layouts`). Parameters that the plan
    has frozen are in no group. If the rule scales them, groups have their own `eps` and `weight_decay`, and `betas` if
    a batch rule has moved them.
    """
    kind = decay_kind(decay, even_decay=even_decay)
    weight_decay = decay_rate(kind, options)
    spared = spares_some(plan, no_decay, options.get("weight_decay"))
    base = plan.base if lr is None else lr
    if base is None:
        raise PlanError("the plan holds factors only; give the base's learning rate: plan.param_groups(model, lr=...)")
    rate = require_number("lr", base, above=0)
    reserved = ("params", "name", "muon", "layouts") if plan.optimizer_name == "muon" else ("params", "name")
    for name in reserved:
        if name in options:
            raise InputError(f"option '{name}' is set by the plan; leave it out")
    usual = _usual(plan, options)
    if plan.scales("betas"):
        options["betas"] = moved_betas(plan, options.get("betas", plan.optimizer_options.get("betas")))
    decays = decaying(plan.graph) if spared else frozenset(p.name for p in plan.parameters)
    matrices = matrices_of(plan)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for planned, parameter in matched(model, plan):
        if planned.frozen:
            continue
        scales = {"eps": planned.eps_scale, "weight_decay": planned.decay_scale}
        scaled = {name: value * scales[name] for name, value in usual.items()}
        if planned.name not in decays:
            scaled["weight_decay"] = 0.0
        elif weight_decay is not None:  # decay then depends on the rate only
            scaled["weight_decay"] = group_decay(
                kind, weight_decay, rate=rate * planned.lr_scale, decay_scale=plan.decay_scale(planned)
            )
        # Twelve digits: groups that differ only by rounding are one.
        scale, *others = (float(f"{value:.12g}") for value in (planned.lr_scale, *scaled.values()))
        settings = () if weight_decay is not None and planned.name in decays else tuple(others)
        key = (scale, planned.name in decays, planned.name in matrices, settings)
        if key not in groups:
            groups[key] = {"params": [], "lr": rate * scale, "name": planned.name, **options, **scaled}
            if plan.optimizer_name == "muon":
                groups[key] |= {"muon": planned.name in matrices, "layouts": []}
        groups[key]["params"].append(parameter)
        if planned.name in matrices:
            groups[key]["layouts"].append(tuple(matrices[planned.name]))
    for group in groups.values():
        if len(group["params"]) > 1:
            group["name"] += f" (+{len(group['params']) - 1})"
    return list(groups.values())


def spares_some(plan: Plan, no_decay: bool | None, weight_decay: Any) -> bool:
    """Return whether norms, biases, gates and embeddings have no decay: `no_decay`, else whether decay is decoupled."""
    if no_decay is not None and not isinstance(no_decay, bool):
        raise InputError(f"no_decay is {shown(no_decay)}; give True, False, or leave it out")
    decays = _is_number(weight_decay) and weight_decay > 0
    if no_decay and not decays:
        raise InputError(f"no_decay is True but weight_decay is {shown(weight_decay)}; give a weight_decay above 0")
    if no_decay is None:
        class_name = str(plan.optimizer_options.get("class", "AdamW"))
        return decays and steps_by_rate(plan.optimizer_name) and is_decoupled(class_name, plan.optimizer_options)
    return no_decay


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def matrices_of(plan: Plan) -> Mapping[str, Matrices]:
    """Return the matrices that Muon steps, by name; none if the plan is for another optimiser."""
    if plan.optimizer_name != "muon":
        return {}
    live = plan.graph.live()
    return hidden_matrices(live, roles(live))


def _usual(plan: Plan, options: dict[str, Any]) -> dict[str, float]:
    """Return the unscaled values of the options that the plan scales; weight decay only if it is known."""
    known = {"eps": TORCH_EPS, **plan.optimizer_options, **options}
    return {
        name: require_number(name, known[name], least=0)
        for name in ("eps", "weight_decay")
        if plan.scales(name) and name in known
    }


def matched(model: Any, plan: Plan) -> list[tuple[ParameterPlan, Any]]:
    """Pair every parameter plan with its parameter; raise if the plan is for another model."""
    if not is_module(model):
        raise InputError(f"the model is {type(model).__name__}; give the torch.nn.Module that was planned")
    planned = {p.name: p for p in plan.parameters}
    # A parameter that the plan does not train may require gradients or not: that is the user's choice.
    in_model = {
        name: p
        for name, p in named_parameters(model).items()
        if p.requires_grad or (name in planned and planned[name].frozen)
    }
    kind = type(unwrapped(model)).__name__
    if any(type(module).__name__ == FLATTENED for module in model.modules()):
        raise PlanError(
            f"{FLATTENED} flattens the parameters of {kind}, so no plan fits; shard the model with "
            "torch.distributed.fsdp.fully_shard, which keeps their shapes"
        )
    missing = [name for name in planned if name not in in_model]
    unplanned = [name for name in in_model if name not in planned]
    if missing or unplanned:
        raise PlanError(
            f"the plan does not fit {kind}: {_listed('missing in the model', missing)}"
            f"{' and ' if missing and unplanned else ''}{_listed('not in the plan', unplanned)}; "
            "plan this very model, and freeze parameters before planning, not after"
        )
    for name, p in planned.items():
        shape = tuple(in_model[name].shape)
        if shape != p.shape:
            raise PlanError(
                f"the plan does not fit {kind}: '{name}' has shape {shape} in the model and {p.shape} in the plan; "
                "plan this very model"
            )
    return [(planned[name], in_model[name]) for name in planned]


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(repr(name) for name in names[:3])}{more} {what}"
