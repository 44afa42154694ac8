"""One training run: warm-up, cosine to zero, bfloat16 on a GPU, and the mean training loss of the last eighth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenstep.study.real.networks import LENGTH, Data

WARM_UP, COUNTED = 0.08, 1 / 8
BATCH = {"images": 128, "text": 64}
Sample = Callable[[torch.Generator], tuple[Tensor, Tensor]]


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
    return 0.5 * (1 + math.cos(math.pi * (step + 1 - warm) / (steps - warm)))


def train(model: nn.Module, optimizer: Any, batches: Batches, *, steps: int, seed: int) -> float:
    """Train in place and return the mean loss of the last eighth of the steps; infinite if it diverged."""
    device = batches.inputs.device
    generator = torch.Generator(device).manual_seed(seed)
    rates = [group["lr"] for group in optimizer.param_groups]
    model.to(device).train()
    counted = max(1, round(COUNTED * steps))
    total = torch.zeros((), device=device)
    for step in range(steps):
        factor = schedule(step, steps)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        inputs, targets = batches.draw(generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(inputs)
        loss = functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step >= steps - counted:
            total += loss.detach() / counted
        if step % 50 == 49 and not bool(torch.isfinite(loss)):
            return math.inf
    value = float(total)
    return value if math.isfinite(value) else math.inf
