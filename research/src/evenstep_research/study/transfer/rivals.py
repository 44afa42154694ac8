"""What one might do instead of transferring a rate: tests and optimisers that are run on the target itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from evenstep.errors import InputError
from evenstep.search.fields import TensorPair
from evenstep.search.job import Job
from evenstep.search.replicas import order

TEST_STEPS = 100
SMOOTHING = 0.98
_EVALUATION_BATCH = 4096


@dataclass(frozen=True)
class Attempt:
    """What a rival ends with on a target: its rate where it has one, the seeds' losses, and its cost in steps."""

    lr: float | None
    losses: tuple[float, ...]
    steps: int

    @property
    def loss(self) -> float:
        """The mean loss over seeds."""
        return sum(self.losses) / len(self.losses)


def range_test(job: Job, data: TensorPair) -> float:
    """Return the rate at which a run with exponentially growing rate improves fastest.

    Losses are smoothed, and the rate is read off where the smoothed loss falls most steeply over the logarithm of
    the rate, the first ten steps and the last left out, as Lightning's finder does; the run stops once the loss is
    four times the smallest.
    """
    model = job.start(0).to(data[0].device).train()
    groups = job.plan.param_groups(model, lr=1.0)
    optimizer = _own_optimizer(job, groups)
    scales = [group["lr"] for group in optimizer.param_groups]
    low, high = (1e-7, 1.0) if job.recipe.optimizer == "adam" else (1e-5, 10.0)
    rates: list[float] = []
    smoothed: list[float] = []
    average, lowest = 0.0, math.inf
    batches = itertools.cycle(order(len(data[0]), replace(job.recipe, steps=TEST_STEPS)))
    for step, index in zip(range(TEST_STEPS), batches, strict=False):
        rate = low * (high / low) ** (step / (TEST_STEPS - 1))
        for group, scale in zip(optimizer.param_groups, scales, strict=True):
            group["lr"] = rate * scale
        value = _step(model, optimizer, job, data, index)
        average = SMOOTHING * average + (1 - SMOOTHING) * value
        loss = average / (1 - SMOOTHING ** (step + 1))
        if not math.isfinite(loss) or loss > 4 * lowest:
            break
        lowest = min(lowest, loss)
        rates.append(rate)
        smoothed.append(loss)
    if len(smoothed) < 2:  # diverged at once
        return low
    slopes = np.gradient(np.array(smoothed))[10:-1]
    return rates[10 + int(slopes.argmin())] if len(slopes) else rates[-1]


def prodigy(job: Job, data: TensorPair, seeds: int) -> Attempt:
    """Train the target with Prodigy at its defaults, from the plan's initialisation."""
    try:
        from prodigyopt import Prodigy
    except ImportError:
        raise InputError("Prodigy is not installed; install it with pip install prodigyopt, or leave it out") from None
    losses = tuple(_trained(job, data, seed, lambda model: Prodigy(model.parameters())) for seed in range(seeds))
    return Attempt(None, losses, 0)


def adamw(job: Job, data: TensorPair, seeds: int) -> Attempt:
    """Train the target with AdamW at PyTorch's defaults, from the plan's initialisation."""
    losses = tuple(
        _trained(job, data, seed, lambda model: torch.optim.AdamW(model.parameters())) for seed in range(seeds)
    )
    return Attempt(1e-3, losses, 0)


# Rivals that train the target in their own way; the range test only picks a rate.
OPTIMISERS: Mapping[str, Callable[[Job, TensorPair, int], Attempt]] = {"prodigy": prodigy, "adamw": adamw}


def _trained(job: Job, data: TensorPair, seed: int, make: Callable[[nn.Module], torch.optim.Optimizer]) -> float:
    """Return the loss of one trial, trained by an optimiser of its own, over all the data; infinite if it diverged."""
    model = job.start(seed).to(data[0].device).train()
    optimizer = make(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    for step, index in enumerate(order(len(data[0]), job.recipe)):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * job.recipe.schedule(step)
        _step(model, optimizer, job, data, index)
    shown = order(len(data[0]), replace(job.recipe, epochs=1, steps=None))
    update_bn((data[0][index.to(data[0].device)] for index in shown), model)  # as the search does, where there are any
    model.eval()
    with torch.no_grad():
        parts = zip(*(torch.split(part, _EVALUATION_BATCH) for part in data), strict=True)
        total = sum(float(job.recipe.loss(model(x), y)) * len(x) for x, y in parts)
    loss = total / len(data[0])
    return loss if math.isfinite(loss) else math.inf


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, job: Job, data: TensorPair, index: torch.Tensor) -> float:
    place = index.to(data[0].device)
    optimizer.zero_grad()
    loss = job.recipe.loss(model(data[0][place]), data[1][place])
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


def _own_optimizer(job: Job, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    if job.recipe.optimizer == "adam":
        return torch.optim.AdamW(groups, betas=job.recipe.betas_used, weight_decay=job.recipe.weight_decay)
    return torch.optim.SGD(groups, momentum=job.recipe.momentum_used, nesterov=job.recipe.nesterov_used)
