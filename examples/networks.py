"""A network and data that all examples share: a small residual network on made-up data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

INPUTS, CLASSES = 16, 4


class Residual(nn.Module):
    """Four residual blocks of matrices between a stem and a readout."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Linear(INPUTS, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.readout = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(torch.relu(x))
        logits: Tensor = self.readout(torch.relu(x))
        return logits


def small_net() -> nn.Module:
    """Return the base: a stem, one hidden matrix, a readout."""
    return nn.Sequential(nn.Linear(INPUTS, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def data(examples: int = 256) -> tuple[Tensor, Tensor]:
    """Return inputs and labels: which of four directions an input points to most."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(examples, INPUTS, generator=generator)
    return inputs, (inputs @ torch.randn(INPUTS, CLASSES, generator=generator)).argmax(1)
