"""Accelerate: plan and initialise; `prepare` builds the optimiser, and moves and wraps everything."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import evenstep as es
from evenstep.integrations.accelerate import prepare
from networks import Residual, data


def main(epochs: int = 3) -> list[float]:
    """Train, and return the loss of every epoch's last batch."""
    accelerator = Accelerator(cpu=True)
    inputs, targets = data()
    model: nn.Module = Residual()
    plan = es.plan(model, inputs[:2], base=0.2, optimizer="momentum")
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    batches = DataLoader(TensorDataset(inputs, targets), batch_size=32)
    model, optimizer, batches = prepare(accelerator, model, plan, batches)
    losses = []
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
        losses.append(float(loss.detach()))
    return losses


if __name__ == "__main__":
    print(main())
