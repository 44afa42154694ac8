"""torch.compile: plan the plain module or the compiled one, both give the same; initialise either."""

from __future__ import annotations

import torch
from torch.nn import functional

import evenstep as es
from networks import Residual, data


def main(backend: str = "inductor", steps: int = 8) -> list[float]:
    """Train a compiled network, and return its losses."""
    inputs, targets = data()
    model = Residual()
    plan = es.plan(model, inputs[:2], base=0.2, optimizer="momentum")
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(plan.param_groups(model), momentum=0.9, nesterov=True)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(compiled(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


if __name__ == "__main__":
    print(main())
