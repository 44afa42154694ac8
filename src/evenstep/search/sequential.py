"""Search the base's learning rate, one copy after the other."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from evenstep.errors import InputError
from evenstep.module import plan, trace
from evenstep.rules import Init, Optimizer
from evenstep.search.result import LRSearch, chosen
from evenstep.search.training import Data, Loss, mean_loss, train_

Progress = Callable[[float, float], None]
_REACH = 24  # octaves a search may wander before it gives up


def search_lr(
    make_model: Callable[[], nn.Module],
    data: Data,
    *,
    optimizer: Optimizer = "sgd",
    init: Init = "conserve",
    epochs: int = 1,
    batch_size: int = 64,
    seeds: int = 3,
    start: float = 0.1,
    loss: Loss = functional.cross_entropy,
    progress: Progress | None = None,
) -> LRSearch:
    """Return the maximal learning rate of a small network: the largest with the smallest training loss.

    Walks over octaves from `start`, downhill until the minimum is bracketed, then halves the step around it twice.
    `make_model` returns a new module at each call and `data` is a pair of tensors; `progress` is called with the rate
    and the mean loss of every point.
    """
    _check(data, epochs=epochs, batch_size=batch_size, seeds=seeds, start=start)
    example = data[0][: min(2, len(data[0]))]
    graph = trace(_made(make_model, 0), example)
    found: dict[int, tuple[float, ...]] = {}
    untrained: list[float] = []  # the loss before the first step, of every run

    def at(position: int) -> float:
        """Return the mean loss at `start` * 2^(position / 4), trained on first asking."""
        if position not in found:
            rate = start * 2.0 ** (position / 4)
            found[position] = tuple(one(rate, seed) for seed in range(seeds))
            if progress:
                progress(rate, sum(found[position]) / seeds)
        return sum(found[position]) / seeds

    def one(rate: float, seed: int) -> float:
        model = _made(make_model, seed)
        planned = plan(graph, init=init, optimizer=optimizer, base=rate, base_graph=graph)
        steps = train_(
            model,
            data,
            planned,
            lr=rate,
            seed=seed,
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            loss=loss,
        )
        untrained.append(steps[0])
        return mean_loss(model, data, loss=loss) if math.isfinite(steps[-1]) else math.inf

    # Far too large a rate may kill a network instead of blowing it up: finite losses, but worse than untrained.
    lowest = _descend(at, 0, hopeless=lambda value: not value < 2 * untrained[0])
    for step in (2, 1):
        lowest = min((lowest - step, lowest, lowest + step), key=at)
    at(lowest - 1)
    at(lowest + 1)
    positions = sorted(found)
    return chosen(
        tuple(start * 2.0 ** (position / 4) for position in positions),
        tuple(found[position] for position in positions),
        graph,
    )


def _made(make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a new module; modules draw their own weights from the global random state, which is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_model()


def _descend(at: Callable[[int], float], position: int, *, hopeless: Callable[[float], bool]) -> int:
    """Return the position of a minimum over octaves, both neighbours tried, walking down from hopeless rates first."""
    octave, patience = 4, 0
    while hopeless(at(position)) and position > -_REACH * octave:
        position -= octave
        patience = 2  # just below them the ground is uneven: look further than the next octave
    for direction in (octave, -octave):
        ahead, misses = position + direction, 0
        while misses <= patience and abs(ahead) <= _REACH * octave:
            if at(ahead) < at(position):
                position, misses = ahead, 0
            else:
                misses += 1
            ahead += direction
    return position


def _check(data: Data, *, epochs: int, batch_size: int, seeds: int, start: float) -> None:
    if not (isinstance(data, tuple) and len(data) == 2 and len(data[0]) == len(data[1]) and len(data[0])):
        raise InputError("data is no pair of inputs and targets of equal, non-zero length; give (inputs, targets)")
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("seeds", seeds)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}; give a whole number from 1 up")
    if not math.isfinite(start) or start <= 0:
        raise InputError(f"start is {start!r}; give a finite learning rate above 0")
