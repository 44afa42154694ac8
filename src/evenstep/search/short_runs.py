"""Choose short runs that stand in for a network's training: first enough steps, then whole batches, then more steps.

The best rate shows in the number of steps rather than in the number of examples. Compared with trainings of 1,500
steps, the best multiple of a plan is 1.2 octaves off (standard deviation over networks) in runs of 32 steps on whole
batches. In runs of 128 steps on a quarter of the batch, which cost the same, it is 0.6 octaves off, and in runs of 128
steps on whole batches less than half an octave for ten of 14 networks (`results/short-runs`). Adam's best rates match
the training's on either; SGD's are smaller on a quarter of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from evenstep.errors import SearchWarning, warn
from evenstep.rules.batch import BatchPower
from evenstep.rules.length import LENGTH_RULES
from evenstep.search.fields import called, each, loss_of
from evenstep.search.randomness import copied, own_randomness
from evenstep.search.result import LRSearch
from evenstep.search.searching import search_lr
from evenstep.search.tensors import Loaded, runs_on

# From a quarter of the batch to the whole. Measured: power 0.1 for Adam, 0.6 for SGD (results/short-runs).
BATCH_OF_SHORT_RUNS = BatchPower(adam_power=0.0, sgd_power=0.5, sgd_rises=True, name="short runs")  # moves their rates
# Runs of 128 steps on a quarter of the batch like Adam's rates of 1,500 on whole batches (results/short-runs).
LENGTH_OF_SHORT_RUNS = LENGTH_RULES["power"]
STEPS = 128  # of a run: fewer say little, and more say hardly more
LONGEST = 512
COST = 32  # the cheapest run, in steps on whole batches
PART = 4  # a step takes at least the batch divided by this
FEWEST, FEWEST_NORMED = 2, 8  # examples per step, if the batch has them: statistics of fewer are mostly noise
APART = 0.1  # share of a loss: parts of a batch whose mean loss differs more from the whole's are another task
COUNTED = 0.25  # share of the steps, at the end: fewer are noisier
ELSEWHERE = (0, -6, 6, -12)  # octaves from the start to try in turn, while short runs learn little
LITTLE = 0.03  # share of the untrained loss: runs that lose less have to look elsewhere


def examples_of_a_step(batch_size: int, *, normed: bool = False) -> int:
    """Return how many examples a step of a short run takes, if model and loss accept any number.

    >>> [examples_of_a_step(size) for size in (128, 12, 2, 1)]
    [32, 3, 2, 1]
    >>> [examples_of_a_step(size, normed=True) for size in (128, 12, 4)]
    [32, 8, 4]
    """
    return min(max(batch_size // PART, FEWEST_NORMED if normed else FEWEST), batch_size)


def examples_of_batch(size: int, data: Loaded, *, asked: int | None) -> int:
    """Return how many examples a batch has, no more than there are; warn if more were asked for."""
    count = len(data.data[0])
    if asked is not None and asked > count:
        warn(
            f"batch_size is {asked}, but the data has {count} examples, so the plan is for batches of {count}; give "
            f"all of the data, or move the plan: plan.at(batch_size={asked})",
            SearchWarning,
        )
    return min(size, count)


def examples_taken(model: nn.Module, data: Loaded, batch_size: int) -> int:
    """Return how many examples a step of a short run takes: the whole batch if a part is another task.

    A part is another task if the model or the loss does not accept it, or if the losses of parts do not average to that
    of the whole: losses that sum over examples or compare them with each other.
    """
    part = examples_of_a_step(batch_size, normed=any(isinstance(m, _BatchNorm) for m in model.modules()))
    count = min(batch_size, len(data.data[0])) // part * part
    # Two parts at least, or there is nothing to compare.
    if part == batch_size or count < 2 * part or not runs_on(model, data.data[0], part):
        return batch_size
    try:
        whole = _loss(model, data, 0, count)
        mean = sum(_loss(model, data, first, first + part) for first in range(0, count, part)) * part / count
    except Exception:  # the loss needs the size of the batch; any other fault is reported elsewhere
        return batch_size
    # False if either is not a number, which is reported elsewhere.
    return batch_size if abs(mean - whole) > APART * max(abs(whole), abs(mean)) else part


@torch.no_grad()
def _loss(model: nn.Module, data: Loaded, first: int, last: int) -> float:
    """Return the loss of some examples, without dropout and with current statistics."""
    trial = copied(model).eval()
    device = next((parameter.device for parameter in trial.parameters()), None)
    inputs, targets = (each(part[first:last], lambda tensor: tensor.to(device)) for part in data.data)
    with own_randomness(0, device):
        return float(loss_of(data.loss, called(trial, inputs), targets))


@dataclass(frozen=True)
class ShortRun:
    """Say how many steps a short run takes, and how many examples per step."""

    steps: int
    batch_size: int

    @property
    def examples(self) -> int:
        """The number of examples that the run trains on."""
        return self.steps * self.batch_size


def affordable(examples: float, *, fewest: int, batch_size: int, train_steps: int, cheapest: float = COST) -> ShortRun:
    """Return the run that a number of examples pays for: 128 steps, on as much of the batch as possible.

    Once a step takes the whole batch, the rest pays for more steps. A step takes at least `fewest` examples. A run
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


def short_runs(make_model: Callable[..., nn.Module], data: Loaded, **options: Any) -> LRSearch:
    """Train short runs at the rates that the options of `search_lr` ask for."""
    return search_lr(
        make_model,
        replace(data, batch_size=None),
        schedule="cosine",
        finest=1,
        counted=COUNTED,
        on_failure="return",
        **options,
    )


def searched(
    make_model: Callable[..., nn.Module], data: Loaded, *, start: float, octaves: int, **options: Any
) -> LRSearch:
    """Search a rate to an octave by short runs, looking elsewhere while they learn little.

    If all rates around `start` are too large, networks die, and noise decides which rate is best.
    """
    searches: list[LRSearch] = []
    for places in ELSEWHERE:
        found = short_runs(make_model, data, start=start * math.pow(2.0, places), octaves=octaves, **options)
        searches.append(found)
        if has_learnt(found, LITTLE):
            return _joined(searches, found)
    return _joined(searches, searches[0])  # a rate elsewhere that is only a little better is so by chance


def survivable(rate: float, found: LRSearch, run_at: Callable[[float], LRSearch]) -> tuple[float, LRSearch]:
    """Return a rate, lowered by half octaves until a short run survives it, and the search with the runs it took.

    Rules translate rates of short runs to trainings, but what diverges in a few steps diverges in many. Noise of
    smaller batches only makes that likelier. `run_at` trains one short run; rates up to one that survived need none.
    """
    searches = [found]
    while rate > max((r for one in searches for r in _survived(one, found)), default=0.0):
        if rate <= min(found.grid):
            break
        if rate not in found.grid:
            searches.append(run_at(rate))
            if _survived(searches[-1], found):
                break
        rate /= math.sqrt(2.0)
    return rate, _joined(searches, found)


def _survived(one: LRSearch, found: LRSearch) -> list[float]:
    """Return the rates of a search at which no run diverged, as far as `found` tells."""
    limit = diverged_above(found)
    return [rate for rate, loss in zip(one.grid, one.mean_losses, strict=True) if loss <= limit]


def diverged_above(found: LRSearch) -> float:
    """Return the loss above which a run has diverged: further above its start than the best run fell."""
    return (found.untrained or 0.0) + abs(fall_of(found))


def has_learnt(found: LRSearch, share: float) -> bool:
    """Say whether some short run loses this share of the untrained loss."""
    return found.status != "learnt_nothing" and fall_of(found) > share * abs(found.untrained or 0.0)


def fall_of(found: LRSearch) -> float:
    """Return the largest fall of the loss."""
    return (found.untrained or 0.0) - min(found.mean_losses)


def _joined(searches: list[LRSearch], chosen: LRSearch) -> LRSearch:
    """Return one of several searches with the losses of all."""
    losses = {rate: seeds for found in searches for rate, seeds in zip(found.grid, found.losses, strict=True)}
    grid = tuple(sorted(losses))
    return replace(chosen, grid=grid, losses=tuple(losses[rate] for rate in grid))
