"""timm: a `param_group_fn` for `timm.optim.create_optimizer_v2`, which calls it with the model alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import evenstep as es
from evenstep.integrations.timm import param_group_fn
from networks import Residual, data


def create_optimizer(model: nn.Module, lr: float, param_group_fn: Callable[[nn.Module], Any]) -> torch.optim.Optimizer:
    """Do what `create_optimizer_v2` of timm does with such a function; a group's own rate is stronger than `lr`."""
    return torch.optim.SGD(param_group_fn(model), lr=lr, weight_decay=0.0, momentum=0.9, nesterov=True)


def main() -> tuple[nn.Module, es.Plan, torch.optim.Optimizer]:
    """Build the optimiser of a planned model."""
    model = Residual()
    plan = es.plan(model, data()[0][:2], base=0.2, optimizer="momentum")
    es.initialize_(model, plan)
    groups = param_group_fn(plan, weight_decay=1e-4)
    # With timm: create_optimizer_v2(model, opt="sgd", lr=0.2, param_group_fn=groups)
    return model, plan, create_optimizer(model, lr=0.2, param_group_fn=groups)


if __name__ == "__main__":
    print(main()[2])
