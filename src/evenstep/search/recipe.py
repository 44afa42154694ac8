"""How trials are trained: everything but the learning rate and the seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from evenstep.errors import InputError
from evenstep.rules import OPTIMIZERS, Optimizer

Loss = Callable[[Tensor, Tensor], Tensor]
Schedule = Callable[[int], float]


def constant_schedule(step: int) -> float:
    """Return 1 at every step."""
    del step
    return 1.0


@dataclass(frozen=True)
class Recipe:
    """Describe a training run; a trial adds its learning rate and its seed.

    `steps` overrides `epochs`. `schedule` maps the step to a factor of the learning rate. All trials see the same
    batches, in the order that `order_seed` fixes; a trial's own seed draws its weights. `momentum` left out means 0.9
    for the optimizer 'momentum' (Nesterov's) and 0 for 'sgd'; weight decay is decoupled for 'adam' (AdamW), added to
    the gradient otherwise.
    """

    optimizer: Optimizer = "sgd"
    epochs: int = 1
    steps: int | None = None
    batch_size: int = 64
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    schedule: Schedule = constant_schedule
    loss: Loss = functional.cross_entropy
    order_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that no training can run with."""
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"optimizer is '{self.optimizer}'; choose one of {', '.join(OPTIMIZERS)}")
        for name in ("epochs", "batch_size", "steps"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InputError(f"{name} is {value!r}; give a whole number from 1 up")
        for name in ("momentum", "weight_decay", "eps", *()):
            value = getattr(self, name)
            if value is not None and (not math.isfinite(value) or value < 0):
                raise InputError(f"{name} is {value!r}; give a finite number from 0 up")

    @property
    def momentum_used(self) -> float:
        """The momentum that SGD runs with."""
        if self.momentum is not None:
            return self.momentum
        return 0.9 if self.optimizer == "momentum" else 0.0

    @property
    def nesterov_used(self) -> bool:
        """Whether SGD looks ahead."""
        if self.nesterov is not None:
            return self.nesterov
        return self.optimizer == "momentum"
