"""Accelerate: build a plan's optimiser, let `Accelerator.prepare` move and wrap it, and check what came back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from evenstep.arguments import shown
from evenstep.errors import InputError
from evenstep.integrations.missing import required
from evenstep.module import check_groups
from evenstep.planning import Plan

if TYPE_CHECKING:
    from accelerate import Accelerator
else:
    Accelerator = required("accelerate").Accelerator


def prepare(
    accelerator: Accelerator,
    model: nn.Module,
    plan: Plan,
    *others: Any,
    scheduler: Callable[[Optimizer], Any] | None = None,
    **options: Any,
) -> tuple[Any, ...]:
    """Return model, optimiser and `others` as `accelerator.prepare` does, the optimiser built from a plan.

    `others` are data loaders. `scheduler` is a function of the optimiser, such as `partial(StepLR, step_size=30)`; what
    it makes is prepared too and comes last. `options` are those of `plan.optimizer`: `lr`, `weight_decay`, `decay`, ...
    Raises where a scheduler will make rates alike, or where the prepared optimiser does not step as planned. Weights
    are left as they are: initialise them before (`es.initialize_`), and resume after (`accelerator.load_state`).
    """
    if not isinstance(accelerator, Accelerator):
        raise InputError(f"the accelerator is {shown(accelerator)}; give an accelerate.Accelerator")
    if not isinstance(plan, Plan):
        raise InputError(f"the plan is {shown(plan)}; give what evenstep.plan(model, example_inputs) returns")
    optimizer = plan.optimizer(model, **options)
    schedulers = () if scheduler is None else (scheduler(optimizer),)
    check_groups(model, plan, optimizer, *schedulers)
    prepared: tuple[Any, ...] = accelerator.prepare(model, optimizer, *others, *schedulers)
    check_groups(prepared[0], plan, prepared[1])
    return prepared
