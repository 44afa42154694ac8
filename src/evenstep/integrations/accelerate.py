"""Accelerate: build a plan's optimiser, let `Accelerator.prepare` move and wrap it, and check the result."""

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
    """Build a plan's optimiser and prepare the model, the optimiser and `others` with `accelerator.prepare`.

    `others` are data loaders. `scheduler` is a function of the optimiser, such as `partial(StepLR, step_size=30)`; the
    scheduler is prepared too and comes last. `options` are those of `plan.optimizer`: `lr`, `weight_decay`, ...

    Raises if a scheduler will make rates equal, or if the prepared optimiser does not step as planned. Weights stay as
    they are: initialise them before the call (`es.initialize_`), and resume after it (`accelerator.load_state`).
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
