"""One training run: warm-up, cosine to zero, bfloat16 on a GPU, and the mean training loss of the last eighth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenstep.search.cuda import put_back, recorded, warm_up
from evenstep.search.recipe import half_cosine
from evenstep_research.study.real.networks import LENGTH, Data

WARM_UP, COUNTED = 0.08, 1 / 8
BATCH = {"images": 128, "text": 64}
_LOOK = 50  # steps between two looks at whether the loss is still finite


@dataclass(frozen=True)
class Batches:
    """Hold images [n, 3, s, s] with labels [n], or a text [n], on a device, and draw batches from them."""

    data: Data
    inputs: Tensor
    targets: Tensor | None = None
    size: int | None = None
    length: int = LENGTH

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a batch and its targets; the generator lives on the data's device."""
        count = self.size or BATCH[self.data]
        device = self.inputs.device
        if self.targets is not None:
            chosen = torch.randint(len(self.inputs), (count,), generator=generator, device=device)
            return self.inputs[chosen], self.targets[chosen]
        starts = torch.randint(len(self.inputs) - self.length, (count, 1), generator=generator, device=device)
        windows = self.inputs[starts + torch.arange(self.length + 1, device=device)].long()
        return windows[:, :-1], windows[:, 1:]


def schedule(step: int, steps: int) -> float:
    """Return the factor of the rate at a step: linear warm-up, then cosine to zero.

    >>> [round(schedule(step, 100), 3) for step in (0, 7, 54, 99)]
    [0.125, 1.0, 0.483, 0.0]
    """
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return half_cosine((step + 1 - warm) / (steps - warm))


def train(model: nn.Module, optimizer: Any, batches: Batches, *, steps: int, seed: int) -> float:
    """Train in place and return the mean loss of the last eighth of the steps; infinite if it diverged.

    The optimiser is new: it has not taken a step.
    """
    device = batches.inputs.device
    generator = torch.Generator(device).manual_seed(seed)
    on_gpu = device.type == "cuda"
    inputs, targets = batches.draw(torch.Generator(device))
    model.to(device).train()
    if on_gpu and inputs.ndim == 4:  # convolutions are fastest with channels last
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = inputs.to(memory_format=torch.channels_last)
    training = _Training(model, optimizer, inputs, targets)
    step_ = _recorded(training) if on_gpu and inputs.ndim == 4 and _recordable(optimizer) else training.step_
    torch.manual_seed(seed)
    counted = max(1, round(COUNTED * steps))
    total = torch.zeros((), device=device)
    for step in range(steps):
        training.take_(schedule(step, steps), *batches.draw(generator))
        step_()
        if step >= steps - counted:
            total += training.loss / counted
        if step % _LOOK == _LOOK - 1 and not bool(torch.isfinite(training.loss)):
            return math.inf
    value = float(total)
    return value if math.isfinite(value) else math.inf


class _Training:
    """A model under way: what a step reads and writes stays where it is, so that a step can be recorded."""

    def __init__(self, model: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor) -> None:
        self.model, self.optimizer = model, optimizer
        self.inputs, self.targets = inputs.clone(), targets.clone()
        self.loss = torch.zeros((), device=inputs.device)
        self.factor = torch.ones((), device=inputs.device)
        self.rates = [float(group["lr"]) for group in optimizer.param_groups]

    def take_(self, factor: float, inputs: Tensor, targets: Tensor) -> None:
        """Set the batch of the next step, and the factor of its rates."""
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        self.factor.fill_(factor)
        if not isinstance(self.optimizer.param_groups[0]["lr"], Tensor):
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * factor

    def step_(self) -> None:
        """Take one step."""
        kind = self.inputs.device.type
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            logits = self.model(self.inputs)
        loss = functional.cross_entropy(logits.float().flatten(0, -2), self.targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.loss.copy_(loss.detach())


def _recordable(optimizer: Any) -> bool:
    return isinstance(optimizer, torch.optim.SGD | torch.optim.Adam)


def _recorded(training: _Training) -> Callable[[], None]:
    """Record a step on CUDA, put everything back as it was, and return how to take the step again.

    All kernels of a step are then launched at once, which is twice as fast for convolutions. Language models are no
    faster, and a recorded Llama computed what is not a number: they take plain steps.
    """
    model, optimizer = training.model, training.optimizer
    base = torch.tensor(training.rates, device=training.inputs.device)
    now = base.clone()
    for group, rate in zip(optimizer.param_groups, now, strict=True):
        group["lr"] = rate
        group["capturable"] = True

    def step_() -> None:
        torch.mul(base, training.factor, out=now)
        training.step_()

    with put_back(lambda: list(model.state_dict().values())):
        warm_up(step_, training.inputs.device)
        replay_, _ = recorded(step_)
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.zero_()
    return replay_
