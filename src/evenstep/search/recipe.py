"""How trials train: everything except the learning rate and the seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

from evenstep.arguments import require_choice, require_function, require_number, require_whole, shown
from evenstep.errors import InputError
from evenstep.planning import OptimizerChoice
from evenstep.rules import OPTIMIZERS, Optimizer

Loss = Callable[..., Tensor]  # of output and targets, or of the output alone
Schedule = Callable[[int], float]


def constant_schedule(step: int) -> float:
    """Return 1 at every step."""
    del step
    return 1.0


def half_cosine(way: float) -> float:
    """Return what is left of a rate that falls along half a cosine, once a share of the way is done.

    >>> [round(half_cosine(way), 2) for way in (0, 0.25, 0.5, 1, 2)]
    [1.0, 0.85, 0.5, 0.0, 0.0]
    """
    return 0.5 * (1 + math.cos(math.pi * min(way, 1.0)))


@dataclass(frozen=True)
class CosineSchedule:
    """Warm up in equal steps to the full rate, then fall to zero along half a cosine.

    >>> [round(CosineSchedule(8, warm_up=0.25)(step), 2) for step in range(8)]
    [0.33, 0.67, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
    """

    steps: int
    warm_up: float = 0.08

    def __post_init__(self) -> None:
        """Refuse an impossible length or share."""
        require_whole("steps", self.steps)
        require_number("warm_up", self.warm_up, least=0, below=1)

    def __call__(self, step: int) -> float:
        """Return the factor of a step."""
        warm = int(self.warm_up * self.steps)
        if step < warm:
            return (step + 1) / (warm + 1)
        return half_cosine((step - warm) / (self.steps - warm))


def cosine_schedule(steps: int, warm_up: float = 0.08) -> CosineSchedule:
    """Return a schedule of `steps` steps that rises over the share `warm_up` and falls along a cosine over the rest."""
    return CosineSchedule(steps, warm_up)


SCHEDULES = ("constant", "cosine")


def schedule_of(given: Schedule | str, steps: int) -> Schedule:
    """Return the schedule of `steps` steps with this name; a function is returned unchanged."""
    if not isinstance(given, str):
        return given
    require_choice("schedule", given, SCHEDULES)
    return cosine_schedule(steps) if given == "cosine" else constant_schedule


LEAST_STEPS, MOST_STEPS = 300, 1000


def default_steps(examples: int, batch_size: int) -> int:
    """Return how many steps a trial takes by default: one epoch, but at least 300 and at most 1000.

    With fewer steps the best rate depends on their number: it is the rate that starts a network best, not the one that
    trains it best. With more it hardly changes, and the search costs more. `benchmarks/search_steps.py` measures both.

    >>> [default_steps(examples, 64) for examples in (1437, 50_000, 1_281_167)]
    [300, 781, 1000]
    """
    return min(max(examples // min(batch_size, examples), LEAST_STEPS), MOST_STEPS)


@dataclass(frozen=True)
class Recipe:
    """Describe a training run; a trial adds its learning rate and its seed.

    - `steps`: overrides `epochs`.
    - `schedule`: maps the step to a factor of the learning rate.
    - `order_seed`: fixes the order of the batches, which is the same for all trials; a trial's seed draws its weights.
    - `momentum`: the default is 0.9 for "momentum" and 0.95 for "muon", both Nesterov's, and 0 for "sgd".
    - `betas`: the default is (0.9, 0.99) for "lion" and (0.9, 0.999) otherwise.
    - `weight_decay`: added to the gradient for "sgd" and "momentum", and decoupled for the others.
    - `no_decay`: spares norms, biases, gates and embeddings weight decay.
    - `counted`: a share of the steps. A trial's loss is then its mean training loss over that share, at its end,
      without an evaluation, which would take longer than a short run. A trial that is clearly worse half way than at
      its start is stopped there, and counts with the losses it had. Without `counted` a trial's loss is that over all
      the data after the last step.
    """

    optimizer: Optimizer = "sgd"
    epochs: int = 1
    steps: int | None = None
    batch_size: int = 64
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float = 0.0
    betas: tuple[float, float] | None = None
    eps: float = 1e-8
    schedule: Schedule = constant_schedule
    loss: Loss = functional.cross_entropy
    order_seed: int = 0
    counted: float | None = None
    no_decay: bool = False

    def __post_init__(self) -> None:
        """Refuse values that training cannot run with."""
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("epochs", "batch_size", "steps"):
            value = getattr(self, name)
            if value is not None or name != "steps":
                require_whole(name, value)
        if self.counted is not None:
            require_number("counted", self.counted, above=0)
            if self.counted > 1:
                raise InputError(f"counted is {self.counted!r}; give a share of the steps, such as 0.125")
        for name in ("weight_decay", "eps"):
            require_number(name, getattr(self, name), least=0)
        if not isinstance(self.betas_used, tuple) or len(self.betas_used) != 2:
            raise InputError(f"betas is {shown(self.betas)}; give a pair of numbers, such as (0.9, 0.999)")
        for value in self.betas_used:
            require_number("a number of betas", value, least=0, below=1)
        if not isinstance(self.no_decay, bool):
            raise InputError(f"no_decay is {shown(self.no_decay)}; give True or False")
        require_function("schedule", self.schedule, what="a function of the step that returns a factor of the rate")
        require_function("loss", self.loss, what="a function of outputs and targets, such as cross_entropy")
        self._require_momentum()

    def _require_momentum(self) -> None:
        """Refuse momentum that is out of range, or that belongs to another optimiser, whose rates differ."""
        if self.nesterov is not None and not isinstance(self.nesterov, bool):
            raise InputError(f"nesterov is {shown(self.nesterov)}; give True or False, or leave it out")
        if self.momentum is not None:
            require_number("momentum", self.momentum, least=0, below=1)
        if self.optimizer == "muon":
            return
        if self.optimizer in ("adam", "lion") and (self.momentum is not None or self.nesterov):
            raise InputError(f"momentum and nesterov are for SGD, but optimizer is '{self.optimizer}'; leave them out")
        if (self.optimizer == "momentum") != (self.momentum_used > 0) or (self.nesterov and not self.momentum_used):
            raise InputError(
                f"momentum is {self.momentum_used:g} and nesterov {self.nesterov_used}, but optimizer is "
                f"'{self.optimizer}'; use 'momentum' for SGD with momentum, and 'sgd' for SGD without"
            )

    @property
    def momentum_used(self) -> float:
        """The momentum that SGD and Muon use."""
        if self.momentum is not None:
            return self.momentum
        return {"momentum": 0.9, "muon": 0.95}.get(self.optimizer, 0.0)

    @property
    def nesterov_used(self) -> bool:
        """Whether SGD and Muon look ahead."""
        if self.nesterov is not None:
            return self.nesterov
        return self.optimizer in ("momentum", "muon")

    @property
    def betas_used(self) -> tuple[float, float]:
        """The betas that AdamW and Lion use."""
        if self.betas is not None:
            return self.betas
        return (0.9, 0.99) if self.optimizer == "lion" else (0.9, 0.999)


_SETTINGS = ("momentum", "nesterov", "weight_decay", "betas", "eps")
_NOT_TRAINED = ("dampening", "maximize", "ns_steps", "ns_coefficients", "ns_eps")


def recipe_settings(choice: OptimizerChoice) -> dict[str, Any]:
    """Return the recipe's fields that an optimiser sets, or raise if trials cannot do what it does.

    Other kinds of Adam are searched as AdamW, which needs the same rates, unless they decay weights differently. Trials
    with Muon and Lion spare norms, biases, gates and embeddings weight decay, as `plan.optimizer` does.
    """
    options = choice.options
    if odd := [name for name in _NOT_TRAINED if options.get(name)]:
        raise InputError(
            f"the optimizer has {odd[0]}={options[odd[0]]}, which a search cannot train with; search without it, and "
            "give it to plan.optimizer(model)"
        )
    decoupled = choice.class_name == "AdamW" or options.get("decoupled_weight_decay", False)
    if choice.name == "adam" and options.get("weight_decay") and not decoupled:
        raise InputError(
            f"the optimizer is {choice.class_name} with weight_decay={shown(options['weight_decay'])}, which it adds "
            "to the gradient, but trials train with AdamW's; give optimizer=torch.optim.AdamW, or weight_decay=0"
        )
    spared = {"no_decay": True} if choice.name in ("muon", "lion") and options.get("weight_decay") else {}
    return {"optimizer": choice.name, **spared} | {
        name: options[name] for name in _SETTINGS if options.get(name) is not None
    }
