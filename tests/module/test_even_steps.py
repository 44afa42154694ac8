"""Steps that are really taken: what a layer makes moves as far where the field it reads has grown."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import evenstep as es
from evenstep.rules import Optimizer

WIDTH = 64


class Grown(nn.Module):
    """A field that skips add up to so many copies, read by a layer that a norm follows, beside a branch or alone."""

    def __init__(self, copies: int, *, branch: bool, normed: bool = True) -> None:
        super().__init__()
        self.copies = copies
        self.stem, self.layer, self.readout = nn.Linear(32, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.branch = nn.Linear(32, WIDTH) if branch else None
        self.norm = nn.LayerNorm(WIDTH) if normed else nn.Identity()

    def made(self, x: Tensor) -> Tensor:
        """Return what the norm makes of the layer's output."""
        field = self.stem(x)
        total = field
        for _ in range(self.copies - 1):
            total = total + field
        found = self.layer(total)
        normed: Tensor = self.norm(found + self.branch(x) if self.branch is not None else found)
        return normed

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.readout(functional.relu(self.made(x)))
        return logits


def moved(copies: int, optimizer: Optimizer, *, branch: bool, seeds: int = 8) -> float:
    """Return how far a step of the layer alone moves what it makes, root mean square, at the planned rate."""
    total = 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        model, inputs, labels = Grown(copies, branch=branch), torch.randn(128, 32), torch.randint(10, (128,))
        planned = es.plan(model, inputs, base=1e-3, optimizer=optimizer)
        es.initialize_(model, planned)
        nn.init.normal_(model.readout.weight, std=WIDTH**-0.5)  # a mean-field readout hands back next to no gradient
        (rate,) = [1e-3 * p.lr_scale for p in planned.parameters if p.name == "layer.weight"]
        kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
        step = kind([model.layer.weight], lr=rate)
        before = model.made(inputs).detach()
        functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        step.step()
        total += float((model.made(inputs).detach() - before).square().mean()) / seeds
    return math.sqrt(total)


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_layer_behind_a_field_that_grew_steps_as_far_as_one_behind_a_plain_field(
    optimizer: Optimizer, branch: bool
) -> None:
    plain, grown = (moved(copies, optimizer, branch=branch) for copies in (1, 30))
    ratio = grown / plain
    topology = [
        es.plan(Grown(copies, branch=branch), torch.zeros(2, 32), optimizer=optimizer).lr_scale for copies in (1, 30)
    ]
    assert ratio / (topology[1] / topology[0]) == pytest.approx(1.0, rel=0.15)


class Beside(Grown):
    """The same, and what the norm reads is an output too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        made = self.layer(self.copies * self.stem(x))
        return self.readout(functional.relu(self.norm(made))), made


@pytest.mark.parametrize(
    "make",
    [lambda copies: Grown(copies, branch=False, normed=False), lambda copies: Beside(copies, branch=False)],
    ids=["no norm", "a norm beside"],
)
def test_without_a_norm_on_every_way_a_field_that_grew_counts_for_the_network_alone(
    make: Callable[[int], nn.Module],
) -> None:
    scales = {}
    for copies in (1, 30):
        planned = es.plan(make(copies), torch.zeros(2, 32))
        scales[copies] = {p.name: p.lr_scale / planned.lr_scale for p in planned.parameters}
    assert scales[30] == pytest.approx(scales[1])


class Pooled(nn.Module):
    """Feature maps, normalised or not, averaged over all positions and read."""

    def __init__(self, *, norm: bool, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm2d(WIDTH) if norm else nn.Identity()
        self.readout = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.readout(functional.relu(self.norm(self.stem(x))).mean((2, 3)))
        return logits


@pytest.mark.parametrize(
    ("side", "classes", "optimizer", "expected"),
    [
        (16, 10, "sgd", 10.0),
        (16, 10, "momentum", 10.0),
        (2, 10, "sgd", 4.0),  # no less is left than by the average of independent positions
        (16, 32, "sgd", 4.0),  # twice the network's rate at most
        (16, 128, "sgd", 1.0),  # and never slower for it
        (2, 10, "adam", 2.0),
    ],
)
def test_a_readout_of_averages_of_a_normalised_field_is_faster_by_what_they_have_lost(
    side: int, classes: int, optimizer: Optimizer, expected: float
) -> None:
    def own(norm: bool) -> float:
        plan = es.plan(Pooled(norm=norm, classes=classes), torch.zeros(2, 3, side, side), optimizer=optimizer)
        return plan["readout.weight"].lr_scale / plan.lr_scale

    assert own(norm=True) / own(norm=False) == pytest.approx(expected)
