"""Train one network from a plan: the plain loop against which everything faster is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR

from evenstep.module import initialize_
from evenstep.optim import Lion, Muon
from evenstep.planning import Plan
from evenstep.rules import Optimizer
from evenstep.search.fields import TensorPair
from evenstep.search.recipe import Loss


def train_(
    model: nn.Module,
    data: TensorPair,
    plan: Plan,
    *,
    lr: float,
    seed: int,
    epochs: int = 1,
    batch_size: int = 64,
    optimizer: Optimizer = "sgd",
    loss: Loss = functional.cross_entropy,
    cosine: bool = False,
) -> list[float]:
    """Initialise a model by its plan, train it at `lr` times the planned factors, and return every step's loss.

    Training stops at the first loss that is not finite. The seed fixes the weights and the order of the batches. With
    `cosine` all rates fall to zero along half a cosine.
    """
    generator = torch.Generator().manual_seed(seed)
    initialize_(model, plan, generator=generator)
    torch_optimizer = _optimizer(plan.param_groups(model, lr=lr), optimizer)
    steps = epochs * (len(data[0]) // min(batch_size, len(data[0])))
    decay = CosineAnnealingLR(torch_optimizer, steps) if cosine else None
    model.train()
    losses = []
    for inputs, targets in batches(data, epochs, batch_size, generator):
        torch_optimizer.zero_grad()
        value = loss(model(inputs), targets)
        losses.append(float(value.detach()))
        if not math.isfinite(losses[-1]):
            break
        value.backward()  # type: ignore[no-untyped-call]
        torch_optimizer.step()
        if decay:
            decay.step()
    return losses


def batches(data: TensorPair, epochs: int, batch_size: int, generator: torch.Generator) -> Iterator[TensorPair]:
    """Yield shuffled batches, without the incomplete last batch of each epoch."""
    inputs, targets = data
    count = len(inputs)
    size = min(batch_size, count)
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator)
        for start in range(0, count - size + 1, size):
            index = order[start : start + size]
            yield inputs[index], targets[index]


def mean_loss(model: nn.Module, data: TensorPair, *, loss: Loss = functional.cross_entropy) -> float:
    """Return the loss over a whole data set, infinite if it is not finite."""
    model.eval()
    with torch.no_grad():
        value = float(loss(model(data[0]), data[1]))
    return value if math.isfinite(value) else math.inf


def _optimizer(groups: list[dict[str, object]], optimizer: Optimizer) -> torch.optim.Optimizer:
    if optimizer == "adam":
        return torch.optim.Adam(groups)
    if optimizer in ("muon", "lion"):
        return Muon(groups) if optimizer == "muon" else Lion(groups)
    return torch.optim.SGD(groups, momentum=0.9 if optimizer == "momentum" else 0.0, nesterov=optimizer == "momentum")
