"""Many copies of one network trained as one program: stacked parameters, a vector of learning rates, shared batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from evenstep.module import initialize_
from evenstep.rules import Plan
from evenstep.search.recipe import Recipe
from evenstep.search.steppers import stepper_for

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Copy:
    """Name one copy: its learning rate (the base's, before the plan's factors) and the seed of its weights."""

    lr: float
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a copy: its loss over the training data at the end, infinite where it diverged, and on the way."""

    copy: Copy
    loss: float
    curve: tuple[float, ...]

    @property
    def diverged(self) -> bool:
        """Whether the loss stopped being finite."""
        return not math.isfinite(self.loss)


class Fleet:
    """K copies of a network as stacked tensors, stepped together."""

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        plan: Plan,
        copies: Sequence[Copy],
        recipe: Recipe,
        device: torch.device,
    ) -> None:
        self.copies, self.recipe, self.device = tuple(copies), recipe, device
        models = [made(make_model, plan, one.seed) for one in copies]
        self.skeleton = copy.deepcopy(models[0]).to("meta")
        scales = {p.name: p.lr_scale for p in plan.parameters}
        self.names = [name for name, p in models[0].named_parameters() if p.requires_grad]
        self.parameters = [_stacked([dict(m.named_parameters())[n] for m in models]).to(device) for n in self.names]
        self.fixed = {
            name: _stacked([dict(m.named_parameters())[name] for m in models]).to(device)
            for name, p in models[0].named_parameters()
            if not p.requires_grad
        }
        self.buffers = {
            name: _stacked([dict(m.named_buffers())[name] for m in models]).to(device)
            for name, _ in models[0].named_buffers()
        }
        rates = torch.tensor([one.lr for one in copies], dtype=torch.float32, device=device)
        self.rates = [
            (rates * scales[name]).reshape(-1, *[1] * (p.dim() - 1))
            for name, p in zip(self.names, self.parameters, strict=True)
        ]
        self.factor = torch.ones((), device=device)
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.stepper = stepper_for(recipe, self.parameters)
        self.dead = torch.zeros(len(copies), dtype=torch.bool, device=device)

    def losses(self, inputs: Tensor, targets: Tensor, *, training: bool) -> Tensor:
        """Return every copy's loss on one batch, [copies]."""
        self.skeleton.train(training)
        values = dict(zip(self.names, self.parameters, strict=True)) | self.fixed

        def one(values: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return self.recipe.loss(functional_call(self.skeleton, (values, buffers), (inputs,)), targets)

        result: Tensor = vmap(one, randomness="different")(values, self.buffers)
        return result

    def step_(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take one step with every copy; return the losses before it, not finite once a copy has diverged."""
        losses = self.losses(inputs, targets, training=True)
        self.dead |= ~losses.detach().isfinite()
        gradients = list(torch.autograd.grad(losses.sum(), self.parameters, allow_unused=True))
        given = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, self.parameters, strict=True)]
        with torch.no_grad():
            rates = [rate * self.factor for rate in self.rates]
            self.stepper.step_([p.detach() for p in self.parameters], given, rates)
        return losses.detach().masked_fill(self.dead, math.inf)

    def final(self, data: Data, *, batch_size: int) -> Tensor:
        """Return every copy's mean loss over a data set, [copies]."""
        total = torch.zeros(len(self.copies), device=self.device, dtype=torch.float64)
        with torch.no_grad():
            for start in range(0, len(data[0]), batch_size):
                part = slice(start, start + batch_size)
                losses = self.losses(data[0][part], data[1][part], training=False)
                total += losses.double() * len(data[0][part])
        total /= len(data[0])
        return total.masked_fill(self.dead | ~total.isfinite(), math.inf)


def made(make_model: Callable[[], nn.Module], plan: Plan, seed: int) -> nn.Module:
    """Return a new model with weights drawn from its plan; the global random state is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model()
    initialize_(model, plan, generator=torch.Generator().manual_seed(seed))
    return model


def _stacked(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.detach() for tensor in tensors])


def order(count: int, recipe: Recipe) -> Iterator[Tensor]:
    """Yield the indices of every step's batch, the incomplete last one of each epoch left out."""
    generator = torch.Generator().manual_seed(recipe.order_seed)
    size = min(recipe.batch_size, count)
    done = 0
    epochs = recipe.epochs if recipe.steps is None else math.ceil(recipe.steps / max(count // size, 1))
    for _ in range(epochs):
        shuffled = torch.randperm(count, generator=generator)
        for start in range(0, count - size + 1, size):
            if recipe.steps is not None and done >= recipe.steps:
                return
            done += 1
            yield shuffled[start : start + size]
