"""Optimisers over stacked trials: torch's SGD and AdamW with a learning rate for each trial."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from evenstep.search.recipe import Recipe


class StackedOptimizer(Protocol):
    """Update stacked parameters [trials, ...] in place."""

    def step_(self, parameters: list[Tensor], gradients: list[Tensor], rates: list[Tensor]) -> None:
        """Take one step; `rates` hold each parameter's learning rates, [trials, 1, ...] or single numbers."""

    def state(self) -> list[Tensor]:
        """Return every tensor that a step changes beside the parameters."""

    def keep_(self, index: Tensor) -> None:
        """Keep the state of the trials at these places alone."""


class StackedSGD:
    """SGD with momentum, Nesterov's or not, and weight decay added to the gradient, as `torch.optim.SGD`."""

    def __init__(self, recipe: Recipe, parameters: list[Tensor]) -> None:
        self.momentum, self.nesterov, self.decay = recipe.momentum_used, recipe.nesterov_used, recipe.weight_decay
        # torch starts the buffer at the first gradient: with zero buffers that is momentum * 0 + gradient.
        self.buffers = [torch.zeros_like(p) for p in parameters] if self.momentum else []

    def step_(self, parameters: list[Tensor], gradients: list[Tensor], rates: list[Tensor]) -> None:
        """Take one step."""
        if self.decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=self.decay))
        if self.momentum:
            torch._foreach_mul_(self.buffers, self.momentum)
            torch._foreach_add_(self.buffers, gradients)
            if self.nesterov:
                gradients = list(torch._foreach_add(gradients, self.buffers, alpha=self.momentum))
            else:
                gradients = self.buffers
        torch._foreach_addcmul_(parameters, gradients, rates, -1.0)

    def state(self) -> list[Tensor]:
        """Return the momentum buffers."""
        return list(self.buffers)

    def keep_(self, index: Tensor) -> None:
        """Keep the buffers of these trials."""
        self.buffers = [buffer[index] for buffer in self.buffers]


class StackedAdamW:
    """AdamW, as `torch.optim.AdamW` (and Adam without weight decay)."""

    def __init__(self, recipe: Recipe, parameters: list[Tensor]) -> None:
        self.beta1, self.beta2 = recipe.betas
        self.eps, self.decay = recipe.eps, recipe.weight_decay
        self.means = [torch.zeros_like(p) for p in parameters]
        self.squares = [torch.zeros_like(p) for p in parameters]
        # Counted on the device, so that a captured step advances it; in double, for 1 - beta^count loses digits.
        self.count = torch.zeros((), dtype=torch.float64, device=parameters[0].device)

    def step_(self, parameters: list[Tensor], gradients: list[Tensor], rates: list[Tensor]) -> None:
        """Take one step."""
        self.count += 1
        if self.decay:
            kept = torch._foreach_mul(rates, -self.decay)
            torch._foreach_add_(kept, 1.0)
            torch._foreach_mul_(parameters, kept)
        torch._foreach_lerp_(self.means, gradients, 1 - self.beta1)
        torch._foreach_mul_(self.squares, self.beta2)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - self.beta2)
        dtype = parameters[0].dtype
        first = (1 - self.beta1**self.count).to(dtype)
        second = (1 - self.beta2**self.count).sqrt().to(dtype)
        bottoms = torch._foreach_sqrt(self.squares)
        torch._foreach_div_(bottoms, second)
        torch._foreach_add_(bottoms, self.eps)
        moves = torch._foreach_div(self.means, bottoms)
        torch._foreach_addcmul_(parameters, moves, torch._foreach_div(rates, first), -1.0)

    def state(self) -> list[Tensor]:
        """Return both moments and the count of steps."""
        return [*self.means, *self.squares, self.count]

    def keep_(self, index: Tensor) -> None:
        """Keep the moments of these trials."""
        self.means = [mean[index] for mean in self.means]
        self.squares = [square[index] for square in self.squares]


def stacked_optimizer(recipe: Recipe, parameters: list[Tensor]) -> StackedOptimizer:
    """Return the stacked optimiser of a recipe."""
    return StackedAdamW(recipe, parameters) if recipe.optimizer == "adam" else StackedSGD(recipe, parameters)
