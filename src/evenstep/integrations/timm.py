"""timm: a plan's groups for `timm.optim.create_optimizer_v2`. Needs no timm, and is not tested against it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from evenstep.arguments import require_number, shown
from evenstep.errors import InputError
from evenstep.planning import Plan
from evenstep.planning.groups import param_groups


def param_group_fn(plan: Plan, *, weight_decay: float = 0.0, **options: Any) -> Callable[[nn.Module], Any]:
    """Return a `param_group_fn` for `create_optimizer_v2`: a function from a model to the plan's groups.

    Give `weight_decay` here: timm applies its own only to groups that have none, and these have one. `options` are
    those of `plan.param_groups`: `lr`, `decay`, `no_decay`. Norms, biases and embeddings do not decay, for SGD too, as
    in timm; `no_decay=False` lets them decay. A group's rate overrides timm's `lr`.

    >>> import torch, evenstep as es
    >>> net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> planned = es.plan(net, torch.zeros(1, 8), base=0.1, optimizer="momentum")
    >>> groups = param_group_fn(planned, weight_decay=1e-4)(net)
    >>> sorted({group["weight_decay"] for group in groups})
    [0.0, 0.0001]
    """
    if not isinstance(plan, Plan):
        raise InputError(f"the plan is {shown(plan)}; give what evenstep.plan(model, example_inputs) returns")
    if plan.optimizer_name == "muon":
        raise InputError(
            "the plan is for 'muon', but timm's Muon sorts parameters and scales steps its own way; build it "
            "with plan.optimizer(model)"
        )
    decay = require_number("weight_decay", weight_decay, least=0)
    options = {"no_decay": True, **options} if decay else options

    def groups(model: nn.Module) -> list[dict[str, Any]]:
        return param_groups(model, plan, weight_decay=decay, **options)

    return groups
