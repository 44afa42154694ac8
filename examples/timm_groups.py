"""timm: a `param_group_fn` for `timm.optim.create_optimizer_v2`, which calls it with the model alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import evenstep as es
from networks import Residual, data


def planned_groups(plan: es.Plan, *, weight_decay: float = 0.0) -> Callable[[nn.Module], list[dict[str, Any]]]:
    """Return a function from a model to groups: matrices and kernels decay, biases and norms do not."""

    def groups(model: nn.Module) -> list[dict[str, Any]]:
        split = []
        for group in plan.param_groups(model):
            for decayed in (True, False):
                params = [p for p in group["params"] if (p.ndim > 1) == decayed]
                if params:
                    split.append({**group, "params": params, "weight_decay": weight_decay if decayed else 0.0})
        return split

    return groups


def create_optimizer(model: nn.Module, param_group_fn: Callable[[nn.Module], Any], lr: float) -> torch.optim.Optimizer:
    """Do what timm does with such a function; a group's own rate is stronger than `lr`."""
    return torch.optim.SGD(param_group_fn(model), lr=lr, momentum=0.9, nesterov=True)


def main() -> tuple[nn.Module, es.Plan, torch.optim.Optimizer]:
    """Build the optimiser of a planned model."""
    model = Residual()
    plan = es.plan(model, data()[0][:2], base=0.2, optimizer="momentum")
    es.initialize_(model, plan)
    # With timm: create_optimizer_v2(model, opt="sgd", lr=0.2, param_group_fn=planned_groups(plan, weight_decay=1e-4))
    return model, plan, create_optimizer(model, planned_groups(plan, weight_decay=1e-4), lr=0.2)


if __name__ == "__main__":
    print(main()[2])
