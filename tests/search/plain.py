"""The slow, literal version: trials trained one after the other by `torch.optim`, and the networks they are made of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import evenstep as es
from evenstep import optim
from evenstep.planning import Plan
from evenstep.search.job import Job
from evenstep.search.recipe import Recipe

Data = tuple[Tensor, Tensor]
Make = Callable[[], nn.Module]


@dataclass(frozen=True)
class Trained:
    """A trial trained plainly: its final loss, every step's loss, and its module."""

    loss: float
    curve: tuple[float, ...]
    model: nn.Module


def trained(
    make: Make,
    data: Data,
    *,
    lr: float,
    seed: int,
    optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
    scales: Mapping[str, float] | None = None,
    steps: int,
    batch_size: int,
    schedule: Callable[[int], float] = lambda step: 1.0,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    order_seed: int = 0,
) -> Trained:
    """Train one trial as anybody would: `make` under the seed, shuffled epochs, a torch optimiser."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
    rates = scales or {}
    groups: list[dict[str, Any]] = [
        {"params": [p], "lr": lr * rates.get(name, 1.0)} for name, p in model.named_parameters() if p.requires_grad
    ]
    base_rates = [group["lr"] for group in groups]
    stepper = optimizer(groups)
    shuffle = torch.Generator().manual_seed(order_seed)
    indices: list[Tensor] = []
    while len(indices) < steps:
        epoch = torch.randperm(len(data[0]), generator=shuffle)
        starts = range(0, len(epoch) - batch_size + 1, batch_size)
        indices += [epoch[start : start + batch_size] for start in starts]
    model.train()
    curve: list[float] = []
    for step in range(steps):
        for group, rate in zip(stepper.param_groups, base_rates, strict=True):
            group["lr"] = rate * schedule(step)
        stepper.zero_grad()
        value = loss(model(data[0][indices[step]]), data[1][indices[step]])
        curve.append(float(value.detach()))
        if not math.isfinite(curve[-1]):
            return Trained(math.inf, tuple(curve), model)
        value.backward()  # type: ignore[no-untyped-call]
        # A parameter that the loss does not use still decays: a zero gradient, not none.
        for p in model.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
        stepper.step()
    epoch = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(order_seed))
    starts = range(0, len(epoch) - batch_size + 1, batch_size)
    update_bn([data[0][epoch[start : start + batch_size]] for start in starts], model)
    model.eval()
    with torch.no_grad():
        final = float(loss(model(data[0]), data[1]))
    return Trained(final if math.isfinite(final) else math.inf, tuple(curve), model)


def job_of(make: Make, data: Data, recipe: Recipe, *, seeds: int = 2, scales: Mapping[str, float] | None = None) -> Job:
    """Return a job whose trials start as `make` makes them, at one rate or with rates of the parameters' own."""
    planned = es.plan(make(), data[0][:2], init="keep")
    return Job.of(make, _at(planned, scales or {}), recipe, range(seeds))


def _at(plan: Plan, scales: Mapping[str, float]) -> Plan:
    own = tuple(
        dataclasses.replace(p, factors=(es.Factor("given", scales.get(p.name, 1.0), "by the test"),))
        for p in plan.parameters
    )
    return dataclasses.replace(plan, parameters=own)


def images(count: int = 48, *, dtype: torch.dtype = torch.float64) -> Data:
    """Return small images of three kinds and their labels."""
    generator = torch.Generator().manual_seed(11)
    labels = torch.randint(0, 3, (count,), generator=generator)
    pixels = torch.randn(count, 2, 6, 6, generator=generator, dtype=torch.float64)
    return (pixels + labels[:, None, None, None] * 0.5).to(dtype), labels


def mlp() -> nn.Module:
    """Return a perceptron."""
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 16), nn.ReLU(), nn.Linear(16, 3)).double()


def gelu() -> nn.Module:
    """Return a perceptron with GELU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 16), nn.GELU(), nn.Linear(16, 3)).double()


def cnn() -> nn.Module:
    """Return a convolutional network."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    ).double()


def batch_norm() -> nn.Module:
    """Return a convolutional network with batch norm."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    ).double()


def dropout_off() -> nn.Module:
    """Return a network with dropout that drops nothing."""
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3)).double()


class Partial(nn.Module):
    """A network with a frozen layer, a buffer that a step changes, and a parameter that the loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(72, 8)
        with torch.no_grad():
            self.first.weight.copy_(torch.linspace(-0.2, 0.2, 576).sin().reshape(8, 72))
            self.first.bias.fill_(0.1)
        for p in self.first.parameters():
            p.requires_grad_(False)
        self.norm = nn.BatchNorm1d(8, affine=False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))
        self.last = nn.Linear(8, 3)
        self.unused = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(torch.relu(self.first(x.flatten(1))))
        result: Tensor = self.last(hidden * self.get_buffer("scale"))
        return result


def partial() -> nn.Module:
    """Return `Partial` in double precision."""
    return Partial().double()


class RandomFeatures(nn.Module):
    """A network that reads random features: a frozen projection and random phases, another draw for every seed."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(72, 12).requires_grad_(False)
        self.register_buffer("phases", 6.0 * torch.rand(12))
        self.norm = nn.BatchNorm1d(12)
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.norm(torch.cos(self.project(x.flatten(1)) + self.get_buffer("phases"))))
        return result


def random_features() -> nn.Module:
    """Return `RandomFeatures` in double precision."""
    return RandomFeatures().double()


class Lion(torch.optim.Optimizer):
    """Lion, parameter by parameter as its paper has it."""

    def __init__(self, params: Any, lr: float = 1.0, *, betas: tuple[float, float], weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr})
        self.betas, self.decay = betas, weight_decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        one, two = self.betas
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].get("momentum", torch.zeros_like(p))
                p.copy_(p - group["lr"] * (torch.sign(one * momentum + (1 - one) * p.grad) + self.decay * p))
                self.state[p]["momentum"] = two * momentum + (1 - two) * p.grad


class MuonOrAdamW(torch.optim.Optimizer):
    """Muon on the parameters named by their places, cut along the first axis, and torch's AdamW on all others.

    `matrices` maps a place to the number of blocks; `spared` are the places without decay.
    """

    def __init__(
        self,
        params: list[dict[str, Any]],
        *,
        matrices: Mapping[int, int],
        spared: frozenset[int] = frozenset(),
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        **adamw: Any,
    ) -> None:
        super().__init__(params, {"lr": 1.0})
        self.matrices, self.momentum, self.nesterov = matrices, momentum, nesterov
        self.decays = [0.0 if i in spared else weight_decay for i in range(len(params))]
        self.others = {
            i: torch.optim.AdamW(group["params"], lr=group["lr"], weight_decay=self.decays[i], **adamw)
            for i, group in enumerate(self.param_groups)
            if i not in matrices
        }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        for i, group in enumerate(self.param_groups):
            if i in self.others:
                self.others[i].param_groups[0]["lr"] = group["lr"]
                self.others[i].step()
                continue
            (p,) = group["params"]
            m = self.state[p].get("momentum", torch.zeros_like(p))
            self.state[p]["momentum"] = m = self.momentum * m + (1 - self.momentum) * p.grad
            update = self.momentum * m + (1 - self.momentum) * p.grad if self.nesterov else m
            moved = []
            for block in update.flatten(1).chunk(self.matrices[i]):
                x = block.to(optim.PRECISION)
                x = x if block.shape[0] <= block.shape[1] else x.T
                x = x / x.norm().clamp(min=1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = torch.addmm(x, torch.addmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
                x = x if block.shape[0] <= block.shape[1] else x.T
                moved.append(0.2 * max(block.shape) ** 0.5 * x.double())
            p.copy_(p - group["lr"] * (torch.cat(moved).reshape(p.shape) + self.decays[i] * p))


def three_layers() -> nn.Module:
    """Return a convolutional network with hidden kernels, groups, a norm, and a hidden matrix."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=2),
        nn.Flatten(),
        nn.Tanh(),
        nn.Linear(24, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    ).double()
