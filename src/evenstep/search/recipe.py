"""How trials are trained: everything but the learning rate and the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from evenstep.arguments import require_choice, require_function, require_number, require_whole, shown
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
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("epochs", "batch_size", "steps"):
            value = getattr(self, name)
            if value is not None or name != "steps":
                require_whole(name, value)
        for name in ("weight_decay", "eps"):
            require_number(name, getattr(self, name), least=0)
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise InputError(f"betas is {shown(self.betas)}; give a pair of numbers, such as (0.9, 0.999)")
        for value in self.betas:
            require_number("a number of betas", value, least=0, below=1)
        require_function("schedule", self.schedule, what="a function of the step that returns a factor of the rate")
        require_function("loss", self.loss, what="a function of outputs and targets, such as cross_entropy")
        self._require_momentum()

    def _require_momentum(self) -> None:
        """Refuse momentum out of range, and one that is not the named optimiser's: its rates are of another size."""
        if self.nesterov is not None and not isinstance(self.nesterov, bool):
            raise InputError(f"nesterov is {shown(self.nesterov)}; give True or False, or leave it out")
        if self.momentum is not None:
            require_number("momentum", self.momentum, least=0, below=1)
        if self.optimizer == "adam" and (self.momentum is not None or self.nesterov):
            raise InputError("momentum and nesterov are SGD's, and optimizer is 'adam'; leave them out")
        if (self.optimizer == "momentum") != (self.momentum_used > 0) or (self.nesterov and not self.momentum_used):
            raise InputError(
                f"momentum is {self.momentum_used:g} and nesterov {self.nesterov_used}, and optimizer is "
                f"'{self.optimizer}'; name SGD with momentum 'momentum', and SGD without it 'sgd'"
            )

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
