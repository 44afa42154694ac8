"""The Hugging Face Trainer: the optimiser comes from a plan, and schedulers must keep the ratios of its rates."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from evenstep.arguments import shown
from evenstep.errors import InputError, PlanWarning, warn
from evenstep.integrations.missing import required
from evenstep.module import check_groups
from evenstep.planning import Plan

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback, TrainingArguments
else:
    _transformers = required("transformers")
    Trainer, TrainerCallback = _transformers.Trainer, _transformers.TrainerCallback
    TrainingArguments = _transformers.TrainingArguments

# Training arguments that the plan replaces.
_NOT_READ = ("learning_rate", "optim", "adam_beta1", "adam_beta2", "adam_epsilon")


class PlannedTrainer(Trainer):
    """A `transformers.Trainer` with a plan's optimiser, and a mixin: `class Mine(PlannedTrainer, Seq2SeqTrainer)`.

    The plan sets the rates and says which parameters decay. Of the training arguments, `weight_decay` is read if it is
    above 0, and `learning_rate` if the plan holds factors only. Other arguments for the optimiser (`adam_beta1`,
    `optim`, ...) are ignored with a warning: plan for `partial(torch.optim.AdamW, betas=...)` instead.

    Weights stay as they are, whether trained or from a checkpoint: to draw them, call `es.initialize_(model, plan)`
    first. Groups and scheduler are checked before the first step, after loading a checkpoint, and at every epoch.
    """

    def __init__(self, *arguments: Any, plan: Plan, **options: Any) -> None:
        if not isinstance(plan, Plan):
            raise InputError(f"the plan is {shown(plan)}; give what evenstep.plan(model, example_inputs) returns")
        self.plan = plan
        self._planned_rates: list[float] = []
        super().__init__(*arguments, **options)
        self.add_callback(_Guard(self))

    def create_optimizer(self, model: Any = None) -> Optimizer:
        """Return the plan's optimiser, unless the Trainer was given another."""
        if self.optimizer is None:
            if self.optimizer_cls_and_kwargs is not None:
                raise InputError(
                    f"optimizer_cls_and_kwargs is {shown(self.optimizer_cls_and_kwargs)}, but the optimizer is the "
                    "plan's; leave it out, and plan with optimizer=that class"
                )
            _warn_of_unread(self.args, self.plan)
            settings: dict[str, Any] = {"weight_decay": self.args.weight_decay} if self.args.weight_decay else {}
            rate = self.args.learning_rate if self.plan.base is None else None
            optimizer = self.plan.optimizer(self.model if model is None else model, lr=rate, **settings)
            self._planned_rates = [group["lr"] for group in optimizer.param_groups]
            self.optimizer = optimizer
        return self.optimizer

    def _require_planned(self, scheduler: Any = None) -> None:
        """Raise if the optimiser does not step as planned, or will not because of its scheduler."""
        assert self.model is not None
        assert self.optimizer is not None
        check_groups(self.model, self.plan, self.optimizer, scheduler if isinstance(scheduler, LRScheduler) else None)

    def _warn_of_other_rates(self) -> None:
        """Warn if a checkpoint's rates, at which training continues, are not the plan's."""
        assert self.optimizer is not None
        started = [group.get("initial_lr", group["lr"]) for group in self.optimizer.param_groups]
        for rate, planned in zip(started, self._planned_rates, strict=False):
            if not math.isclose(rate, planned, rel_tol=1e-6):
                warn(
                    f"the checkpoint was trained at {rate / planned:.4g} times the plan's rates and continues at them; "
                    "resume with the plan that it was trained with, or start again",
                    PlanWarning,
                )
                return


class _Guard(TrainerCallback):
    """Check the groups before the first step, after loading a checkpoint, and at every epoch."""

    def __init__(self, trainer: PlannedTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._trainer._require_planned(self._trainer.lr_scheduler)
        if self._trainer.state.global_step:
            self._trainer._warn_of_other_rates()

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self._trainer._require_planned()


def _warn_of_unread(arguments: TrainingArguments, plan: Plan) -> None:
    """Warn of arguments that were set but that the plan's optimiser does not use."""
    usual = {field.name: field.default for field in dataclasses.fields(arguments)}
    unread = {name: getattr(arguments, name) for name in _NOT_READ if usual[name] is not dataclasses.MISSING}
    unread = {name: value for name, value in unread.items() if value != usual[name]}
    if plan.base is None or unread.get("learning_rate") == plan.base:
        unread.pop("learning_rate", None)
    if unread:
        words = ", ".join(f"{name}={shown(value)}" for name, value in unread.items())
        warn(
            f"the training arguments {words} are ignored: the plan sets rates and options; give them to "
            "evenstep.plan as base=... and optimizer=functools.partial(torch.optim.AdamW, ...)",
            PlanWarning,
        )
