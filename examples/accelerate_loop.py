"""Accelerate: plan and build the optimiser first, then let `prepare` move and wrap everything."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import evenstep as es
from networks import Residual, data


def main(epochs: int = 3) -> list[float]:
    """Train, and return the loss of every epoch's last batch."""
    accelerator = Accelerator(cpu=True)
    inputs, targets = data()
    model = Residual()
    plan = es.plan(model, inputs[:2], base=0.2, optimizer="momentum")
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(plan.param_groups(model), momentum=0.9, nesterov=True)
    batches = DataLoader(TensorDataset(inputs, targets), batch_size=32)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    es.check_groups(model, plan, optimizer)  # nothing was lost on the way
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
