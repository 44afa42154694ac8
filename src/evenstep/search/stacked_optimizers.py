"""Optimisers over stacked trials (SGD, AdamW, Muon and Lion), with a learning rate for each trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from evenstep.optim import Layout, orthogonalized
from evenstep.planning import Plan
from evenstep.planning.decay import decaying
from evenstep.planning.groups import matrices_of
from evenstep.search.recipe import Recipe


class Treatment(NamedTuple):
    """Say how to step a parameter: its factors of decay and epsilon, and the matrices that Muon steps it as."""

    decay_scale: float = 1.0
    eps_scale: float = 1.0
    layout: Layout | None = None


def treatments(recipe: Recipe, plan: Plan, names: Sequence[str]) -> list[Treatment]:
    """Return how a recipe steps a plan's parameters, in the order of their names."""
    spared = recipe.no_decay and recipe.weight_decay > 0
    decays = decaying(plan.graph) if spared else frozenset(names)
    matrices = matrices_of(plan) if recipe.optimizer == "muon" else {}
    plans = {planned.name: planned for planned in plan.parameters}
    return [
        Treatment(plans[name].decay_scale if name in decays else 0.0, plans[name].eps_scale, matrices.get(name))
        for name in names
    ]


class StackedOptimizer(Protocol):
    """Update stacked parameters [trials, ...] in place."""

    def step_(self, parameters: list[Tensor], gradients: list[Tensor], rates: list[Tensor]) -> None:
        """Take one step; `rates` hold each parameter's learning rates, [trials, 1, ...] or single numbers."""

    def state(self) -> list[Tensor]:
        """Return every tensor, besides the parameters, that a step changes."""

    def keep_(self, index: Tensor) -> None:
        """Keep only the state of the trials at these places."""


class StackedSGD:
    """SGD with momentum, Nesterov's or not, and weight decay added to the gradient, as `torch.optim.SGD`."""

    def __init__(self, recipe: Recipe, parameters: list[Tensor]) -> None:
        self.momentum, self.nesterov, self.decay = recipe.momentum_used, recipe.nesterov_used, recipe.weight_decay
        # torch starts the buffer at the first gradient; from zero, momentum * 0 + gradient is the same.
        self.buffers = [torch.zeros_like(p) for p in parameters] if self.momentum else []

    def moves(self, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Take gradients into the momentum, and return what is then subtracted from the parameters, times the rate."""
        if self.decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=self.decay))
        if not self.momentum:
            return gradients
        torch._foreach_mul_(self.buffers, self.momentum)
        torch._foreach_add_(self.buffers, gradients)
        return list(torch._foreach_add(gradients, self.buffers, alpha=self.momentum)) if self.nesterov else self.buffers

    def step_(self, parameters: list[Tensor], gradients: list[Tensor], rates: list[Tensor]) -> None:
        """Take one step."""
        torch._foreach_addcmul_(parameters, self.moves(parameters, gradients), rates, -1.0)

    def state(self) -> list[Tensor]:
        """Return the momentum buffers."""
        return list(self.buffers)

    def keep_(self, index: Tensor) -> None:
        """Keep the buffers of these trials."""
        self.buffers = [buffer[index] for buffer in self.buffers]


class StackedAdamW:
    """AdamW, as `torch.optim.AdamW` (and Adam without weight decay)."""

    def __init__(self, recipe: Recipe, parameters: list[Tensor]) -> None:
        self.beta1, self.beta2 = recipe.betas_used
        self.eps, self.decay = recipe.eps, recipe.weight_decay
        self.means = [torch.zeros_like(p) for p in parameters]
        self.squares = [torch.zeros_like(p) for p in parameters]
        # On the device, so that a captured step advances it; in double, because 1 - beta^count loses digits.
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


class StackedLion:
    """Lion, as `evenstep.optim.Lion`."""

    def __init__(self, recipe: Recipe, parameters: list[Tensor]) -> None:
        self.beta1, self.beta2 = recipe.betas_used
        self.decay = recipe.weight_decay
        self.buffers = [torch.zeros_like(p) for p in parameters]

    def step_(self, parameters: list[Tensor], gradients: list[Tensor], rates: list[Tensor]) -> None:
        """Take one step."""
        if self.decay:
            kept = torch._foreach_mul(rates, -self.decay)
            torch._foreach_add_(kept, 1.0)
            torch._foreach_mul_(parameters, kept)
        moves = torch._foreach_mul(self.buffers, self.beta1)
        torch._foreach_add_(moves, gradients, alpha=1 - self.beta1)
        torch._foreach_addcmul_(parameters, [move.sign_() for move in moves], rates, -1.0)
        torch._foreach_mul_(self.buffers, self.beta2)
        torch._foreach_add_(self.buffers, gradients, alpha=1 - self.beta2)

    def state(self) -> list[Tensor]:
        """Return the momenta."""
        return list(self.buffers)

    def keep_(self, index: Tensor) -> None:
        """Keep the momenta of these trials."""
        self.buffers = [buffer[index] for buffer in self.buffers]


class StackedMatrices:
    """Muon on matrices, as `evenstep.optim.Muon`, with trials as one more batch axis."""

    def __init__(self, recipe: Recipe, parameters: list[Tensor], layouts: list[Layout]) -> None:
        self.momentum, self.nesterov, self.decay = recipe.momentum_used, recipe.nesterov_used, recipe.weight_decay
        self.layouts = layouts
        self.buffers = [torch.zeros_like(p) for p in parameters]

    def step_(self, parameters: list[Tensor], gradients: list[Tensor], rates: list[Tensor]) -> None:
        """Take one step."""
        torch._foreach_lerp_(self.buffers, gradients, 1 - self.momentum)
        updates = self.buffers
        if self.nesterov:
            updates = list(torch._foreach_lerp(gradients, self.buffers, self.momentum))
        for parameter, update, rate, layout in zip(parameters, updates, rates, self.layouts, strict=True):
            orthogonal, factor = orthogonalized(update, layout)
            if self.decay:
                parameter.mul_(1 - rate * self.decay)
            parameter.addcmul_(orthogonal.to(parameter.dtype), rate * factor, value=-1.0)

    def state(self) -> list[Tensor]:
        """Return the momenta."""
        return list(self.buffers)

    def keep_(self, index: Tensor) -> None:
        """Keep the momenta of these trials."""
        self.buffers = [buffer[index] for buffer in self.buffers]


class StackedParts:
    """Several optimisers as one, each for some of the parameters."""

    def __init__(self, parts: list[tuple[list[int], StackedOptimizer]]) -> None:
        self.parts = parts

    def step_(self, parameters: list[Tensor], gradients: list[Tensor], rates: list[Tensor]) -> None:
        """Take one step."""
        for places, optimizer in self.parts:
            optimizer.step_(*([values[place] for place in places] for values in (parameters, gradients, rates)))

    def state(self) -> list[Tensor]:
        """Return every part's state."""
        return [tensor for _, optimizer in self.parts for tensor in optimizer.state()]

    def keep_(self, index: Tensor) -> None:
        """Keep every part's state for these trials."""
        for _, optimizer in self.parts:
            optimizer.keep_(index)


def stacked_optimizer(
    recipe: Recipe, parameters: list[Tensor], treated: Sequence[Treatment] | None = None
) -> StackedOptimizer:
    """Return a recipe's stacked optimiser, which steps parameters with equal treatment together."""
    given = treated or [Treatment()] * len(parameters)
    places: dict[tuple[float, float, bool], list[int]] = {}
    for place, treatment in enumerate(given):
        decay = recipe.weight_decay * treatment.decay_scale
        places.setdefault((decay, recipe.eps * treatment.eps_scale, treatment.layout is not None), []).append(place)
    parts = [
        (where, _one(replace(recipe, weight_decay=decay, eps=eps), parameters, given, where))
        for (decay, eps, _), where in places.items()
    ]
    return parts[0][1] if len(parts) == 1 else StackedParts(parts)


def _one(recipe: Recipe, parameters: list[Tensor], treated: Sequence[Treatment], places: list[int]) -> StackedOptimizer:
    """Return the optimiser for parameters with equal treatment."""
    held = [parameters[place] for place in places]
    layouts = [layout for place in places if (layout := treated[place].layout) is not None]
    if layouts:
        return StackedMatrices(recipe, held, layouts)
    if recipe.optimizer == "lion":
        return StackedLion(recipe, held)
    return StackedAdamW(recipe, held) if recipe.optimizer in ("adam", "muon") else StackedSGD(recipe, held)
