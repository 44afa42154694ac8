"""PyTorch Lightning: a callback that plans, initialises, builds the optimiser and checks its groups."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evenstep.arguments import shown
from evenstep.errors import InputError, PlanError, PlanWarning, warn
from evenstep.integrations.missing import required
from evenstep.module import check_groups, initialize_
from evenstep.planning import Plan
from evenstep.planning.groups import matched
from evenstep.planning.unwrap import unwrapped

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = required("lightning.pytorch", "pytorch_lightning").Callback

_SEEDS = 2**62
# Modules whose weights were drawn or resumed, by any callback: a later fit continues from them.
_DRAWN: weakref.WeakSet[Any] = weakref.WeakSet()


class EvenSteps(Callback):
    """Plan a `LightningModule` before it trains, draw its weights, and check that it steps as planned.

    `plan` is a plan of the module, or of the only part of it that trains, or a function of the module that returns such
    a plan: `lambda module: es.plan(module.model, batch, base=0.1, optimizer="momentum")`. In the module,
    `configure_optimizers` returns `EvenSteps.optimizer(self)`, alone or with schedulers. Groups that are not those of
    the plan, and schedulers that will make rates equal, raise before the first step.

    Weights are drawn once per module: not when it is fitted again, nor when training resumes from a checkpoint, which
    brings its plan with it. `initialize=False` never draws. On several devices all use the weights of the first. The
    base's current learning rate is logged as `base_lr` every epoch.
    """

    def __init__(self, plan: Plan | Callable[[Any], Plan], *, initialize: bool = True) -> None:
        if not isinstance(plan, Plan) and not callable(plan):
            raise InputError(f"the plan is {shown(plan)}; give a plan, or a function of the module that returns one")
        self._given, self._initialize = plan, initialize
        self._plan: Plan | None = None
        self._module: weakref.ref[Any] | None = None  # the module that the plan was made for

    @property
    def plan(self) -> Plan:
        """The plan of the module that trains."""
        if self._plan is None:
            raise PlanError("the plan is not made yet; trainer.fit makes it when it begins")
        return self._plan

    @staticmethod
    def optimizer(module: LightningModule, **options: Any) -> Any:
        """Return the plan's optimiser for `configure_optimizers`; `options` are those of `plan.optimizer`."""
        for callback in getattr(getattr(module, "_trainer", None), "callbacks", ()):
            if isinstance(callback, EvenSteps):
                return callback.plan.optimizer(_planned_part(module, callback.plan), **options)
        raise PlanError(
            f"the trainer of {type(module).__name__} has no plan; give it one: Trainer(callbacks=[EvenSteps(plan)])"
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Plan the module and draw its weights, unless they are trained already."""
        if stage != "fit" or (self._module is not None and self._module() is pl_module):
            return
        plan = self._given if isinstance(self._given, Plan) else self._given(pl_module)
        if not isinstance(plan, Plan):
            raise InputError(f"the function of the module returned {shown(plan)}; return a plan, such as es.plan(...)")
        if trainer.world_size > 1:  # every device plans, and kept weights may differ
            plan = Plan.from_json(trainer.strategy.broadcast(plan.to_json()))
        part = _planned_part(pl_module, plan)
        if self._initialize:
            _require_lasting_processes(trainer)
            if trainer.ckpt_path is None and pl_module not in _DRAWN:
                seed = trainer.strategy.broadcast(int(torch.randint(_SEEDS, ())))
                initialize_(part, plan, generator=torch.Generator().manual_seed(seed))
            _DRAWN.add(pl_module)
        self._plan, self._module = plan, weakref.ref(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise if the groups are not those of the plan, or if a scheduler will change their ratios."""
        self._rate(trainer, pl_module)
        for config in trainer.lr_scheduler_configs:
            check_groups(_planned_part(pl_module, self.plan), self.plan, trainer.optimizers[0], config.scheduler)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the base's learning rate; raise if the ratios of rates have changed."""
        pl_module.log("base_lr", self._rate(trainer, pl_module))

    def state_dict(self) -> dict[str, Any]:
        """Return the plan, so that training resumes with it."""
        return {} if self._plan is None else {"plan": self._plan.to_json()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue with the plan of a checkpoint."""
        if "plan" not in state_dict:
            return
        plan = Plan.from_json(state_dict["plan"])
        if isinstance(self._given, Plan) and self._given != plan:
            warn(
                "the plan is not the checkpoint's; training resumes with the checkpoint's plan, whose rates its "
                "optimizer has; start again to train with the other plan",
                PlanWarning,
            )
        self._plan = plan

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the planned module: in another process it is another object."""
        return {**self.__dict__, "_module": None}

    def _rate(self, trainer: Trainer, module: LightningModule) -> float:
        if len(trainer.optimizers) != 1:
            raise PlanError(
                f"{type(module).__name__} has {len(trainer.optimizers)} optimizers, but a plan is for one; return only "
                "EvenSteps.optimizer(self), from configure_optimizers"
            )
        return check_groups(_planned_part(module, self.plan), self.plan, trainer.optimizers[0])


def _planned_part(module: nn.Module, plan: Plan) -> nn.Module:
    """Return the part of a module that a plan fits: the module itself, or one inside it if nothing outside trains."""
    fitting: dict[int, nn.Module] = {}
    for part in module.modules():
        inner = unwrapped(part)
        if sum(1 for _ in inner.parameters()) < len(plan.parameters):
            continue
        try:
            matched(inner, plan)
        except PlanError:
            continue
        fitting[id(inner)] = inner
    if not fitting:
        matched(module, plan)  # raises an error that names what does not fit
        raise AssertionError
    if len(fitting) > 1:
        raise PlanError(
            f"the plan fits {len(fitting)} parts of {type(module).__name__}; plan the {type(module).__name__} itself"
        )
    (part,) = fitting.values()
    inside = {id(parameter) for parameter in part.parameters()}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in inside:
            raise PlanError(
                f"'{name}' of {type(module).__name__} trains but is not in the plan, which is for its "
                f"{type(part).__name__}; plan the {type(module).__name__} itself, or freeze '{name}'"
            )
    return part


def _require_lasting_processes(trainer: Trainer) -> None:
    """Refuse to draw in processes that end with the fit: the next fit could not know that the weights are trained."""
    method = getattr(trainer.strategy.launcher, "_start_method", None)
    if method is not None:
        raise InputError(
            f"the strategy starts processes at every fit (by {method}), which cannot know whether weights are trained; "
            "call es.initialize_(module, plan) first, and give EvenSteps(plan, initialize=False)"
        )
