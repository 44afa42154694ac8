"""How short runs of a network stand in for its training: enough steps first, then whole batches, then more steps.

The best rate shows in the number of steps rather than in the number of examples. In runs of 32 steps on whole batches
the best multiple of a plan is 1.2 octaves off that of trainings of 1,500 steps (standard deviation over networks); in
runs of 128 steps on a quarter of the batch, which cost the same, it is 0.6 octaves off, and in runs of 128 steps on
whole batches less than half an octave for ten of 14 networks (`results/short-runs`). Adam's best rates are those of the
training on either; SGD's are smaller on a quarter of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from evenstep.rules.batch import BatchPower
from evenstep.search.fields import called, each, loss_of
from evenstep.search.randomness import copied, own_randomness
from evenstep.search.result import LRSearch
from evenstep.search.searching import search_lr
from evenstep.search.tensors import Loaded, runs_on

# From a quarter of the batch to all of it; measured: Adam's power 0.1, SGD's 0.6 (results/short-runs).
BATCH_OF_SHORT_RUNS = BatchPower(adam_power=0.0, sgd_power=0.5, name="short runs")  # what their rates are moved by
STEPS = 128  # of a run: fewer say little, and more say little more
LONGEST = 512
COST = 32  # steps on whole batches that the cheapest run of a network costs as much as
PART = 4  # of the batch, the least that a step takes
FEWEST, FEWEST_NORMED = 2, 8  # examples of a step, where the batch has so many: statistics of fewer are mostly noise
APART = 0.1  # of a loss, by which the mean over parts of a batch differs from the whole's where parts are another task
COUNTED = 0.25  # of the steps, the last ones: fewer are noisier
ELSEWHERE = (0, -6, 6, -12)  # octaves from the start where short runs are tried, while they learn little
LITTLE = 0.03  # of the untrained loss that is gone: look elsewhere


def examples_of_a_step(batch_size: int, *, normed: bool = False) -> int:
    """Return how many examples a step of a short run takes, where the model and the loss take any number of them.

    >>> [examples_of_a_step(size) for size in (128, 12, 2, 1)]
    [32, 3, 2, 1]
    >>> [examples_of_a_step(size, normed=True) for size in (128, 12, 4)]
    [32, 8, 4]
    """
    return min(max(batch_size // PART, FEWEST_NORMED if normed else FEWEST), batch_size)


def examples_taken(model: nn.Module, data: Loaded, batch_size: int) -> int:
    """Return how many examples a step of a short run takes: the whole batch where a part is another task.

    That is where the model or the loss takes no part of a batch, and where losses of parts are not on average that of
    the whole: sums over examples, and losses that compare examples with each other.
    """
    part = examples_of_a_step(batch_size, normed=any(isinstance(m, _BatchNorm) for m in model.modules()))
    if part == batch_size or not runs_on(model, data.data[0], part):
        return batch_size
    count = min(batch_size, len(data.data[0])) // part * part
    try:
        whole = _loss(model, data, 0, count)
        mean = sum(_loss(model, data, first, first + part) for first in range(0, count, part)) * part / count
    except Exception:  # the loss has the size of a batch in it, or what else is wrong with it is said elsewhere
        return batch_size
    # Not where either is no number: that is said elsewhere, too.
    return batch_size if abs(mean - whole) > APART * max(abs(whole), abs(mean)) else part


@torch.no_grad()
def _loss(model: nn.Module, data: Loaded, first: int, last: int) -> float:
    """Return the loss of some examples, nothing dropped and with statistics as they are."""
    trial = copied(model).eval()
    device = next((parameter.device for parameter in trial.parameters()), None)
    inputs, targets = (each(part[first:last], lambda tensor: tensor.to(device)) for part in data.data)
    with own_randomness(0, device):
        return float(loss_of(data.loss, called(trial, inputs), targets))


@dataclass(frozen=True)
class ShortRun:
    """Say how many steps a short run takes, and how many examples each."""

    steps: int
    batch_size: int

    @property
    def examples(self) -> int:
        """How many examples the run trains on."""
        return self.steps * self.batch_size


def affordable(examples: float, *, fewest: int, batch_size: int, train_steps: int, cheapest: float = COST) -> ShortRun:
    """Return the run that a number of examples pays for: 128 steps, on as much of the batch as there is for each.

    What is left once a step takes the whole batch pays for more steps. A step takes at least `fewest` examples, a run
    costs at least `cheapest` steps on whole batches, and is no longer than the training unless that costs less.

    >>> [affordable(n, fewest=32, batch_size=128, train_steps=1500) for n in (0, 8192, 32768)]
    [ShortRun(steps=128, batch_size=32), ShortRun(steps=128, batch_size=64), ShortRun(steps=256, batch_size=128)]
    >>> affordable(0, fewest=2, batch_size=2, train_steps=1500)  # no part of this batch can be taken
    ShortRun(steps=32, batch_size=2)
    """
    least = cheapest * batch_size
    size = min(max(round(max(examples, least) / STEPS), fewest), batch_size)
    steps = min(max(examples, least) / size, LONGEST, max(train_steps, least / size))
    return ShortRun(max(round(steps), 1), size)


def searched(
    make_model: Callable[..., nn.Module], data: Loaded, *, start: float, octaves: int, **options: Any
) -> LRSearch:
    """Search a rate to an octave by short runs, elsewhere too while they learn little.

    Where the rates around `start` are all too large, networks die and noise alone makes one of them the best.
    """
    searches: list[LRSearch] = []
    for places in ELSEWHERE:
        found = search_lr(
            make_model,
            replace(data, batch_size=None),
            schedule="cosine",
            start=start * math.pow(2.0, places),
            octaves=octaves,
            finest=1,
            counted=COUNTED,
            on_failure="return",
            **options,
        )
        searches.append(found)
        if has_learnt(found, LITTLE):
            return _joined(searches, found)
    return _joined(searches, searches[0])  # what is a little better elsewhere is so by chance


def has_learnt(found: LRSearch, share: float) -> bool:
    """Say whether a share of the untrained loss is gone in some short run."""
    return found.status != "learnt_nothing" and fall_of(found) > share * abs(found.untrained or 0.0)


def fall_of(found: LRSearch) -> float:
    """Return by how much the loss falls at most."""
    return (found.untrained or 0.0) - min(found.mean_losses)


def _joined(searches: list[LRSearch], chosen: LRSearch) -> LRSearch:
    """Return one of several searches, with the losses of all."""
    losses = {rate: seeds for found in searches for rate, seeds in zip(found.grid, found.losses, strict=True)}
    grid = tuple(sorted(losses))
    return replace(chosen, grid=grid, losses=tuple(losses[rate] for rate in grid))
