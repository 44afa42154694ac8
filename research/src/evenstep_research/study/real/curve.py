"""A curve of losses over octaves: which positions are tried by which seed, and where its minimum is.

The strategy is replayed from nothing on what is known, a whole round at a time. So the answer depends on losses alone,
not on the order in which they came: a study that stopped goes on exactly as an undisturbed one would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from evenstep.search.grid import OCTAVE, parabola_minimum

FIRST = (-2, 0, 2)
REACH = 10
Point = tuple[int, int]  # position in octaves, seed


@dataclass(frozen=True)
class OctaveCurve:
    """Hold the losses of whole rounds by position and seed, infinite where a run diverged, and what is missing."""

    losses: Mapping[Point, float]
    seeds: int
    missing: tuple[Point, ...] = ()

    @cached_property
    def means(self) -> dict[int, float]:
        """Mean losses at the positions that all seeds have."""
        return _means(self.losses, self.seeds)

    @cached_property
    def best(self) -> int | None:
        """The position of the smallest mean loss; None where more is to be measured, or where all diverged."""
        means = self.means
        if self.missing or not means:
            return None
        best = _best(means)
        return best if math.isfinite(means[best]) else None

    @cached_property
    def minimum(self) -> float | None:
        """The minimum of a parabola through the mean losses, in octaves; the best position where there is none."""
        if self.best is None:
            return None
        quarter = parabola_minimum({OCTAVE * position: loss for position, loss in self.means.items()})
        return float(self.best) if quarter is None else quarter / OCTAVE

    def at(self, position: int) -> tuple[float, ...]:
        """Return the losses at a position, in the seeds' order."""
        return tuple(self.losses[position, seed] for seed in range(self.seeds) if (position, seed) in self.losses)


def octave_curve(known: Callable[[Point], float | None], *, seeds: int, centre: bool) -> OctaveCurve:
    """Return a curve as far as it is known, with the points that can be measured now.

    The first seed tries `FIRST`, then neighbours of its best until both are there; all seeds try that best and its
    neighbours, and with `centre` position 0; then neighbours of the smallest mean until both are there.
    """
    losses: dict[Point, float] = {}
    while asked := [point for point in _asked(losses, seeds, centre=centre) if point not in losses]:
        found = {point: known(point) for point in asked}
        if missing := tuple(point for point, loss in found.items() if loss is None):
            return OctaveCurve(losses, seeds, missing)
        losses |= {point: loss for point, loss in found.items() if loss is not None}
    return OctaveCurve(losses, seeds)


def _asked(losses: Mapping[Point, float], seeds: int, *, centre: bool) -> list[Point]:
    """Return the first round of the strategy that is not all there, empty when the minimum is enclosed."""
    first = {position: loss for (position, seed), loss in losses.items() if seed == 0}
    if not first:
        return [*((position, 0) for position in FIRST), *((0, seed) for seed in range(1, seeds) if centre)]
    around = _around(first)
    rounds: list[Collection[Point]] = [
        [(position, 0) for position in around],
        [(position, seed) for position in around for seed in range(seeds)],
    ]
    for points in rounds:
        if any(point not in losses for point in points):
            return list(points)
    means = _means(losses, seeds)
    return [(position, seed) for position in _around(means) for seed in range(seeds)] if means else []


def _around(losses: Mapping[int, float]) -> list[int]:
    """Return the best position and its neighbours; two octaves further down where nothing trains yet."""
    best = _best(losses)
    positions = (best - 1, best, best + 1) if math.isfinite(losses[best]) else (min(losses) - 2,)
    return [position for position in positions if abs(position) <= REACH]


def _best(losses: Mapping[int, float]) -> int:
    return min(losses, key=lambda position: (losses[position], position))


def _means(losses: Mapping[Point, float], seeds: int) -> dict[int, float]:
    positions = sorted({position for position, _ in losses})
    shared = [position for position in positions if all((position, seed) in losses for seed in range(seeds))]
    return {position: sum(losses[position, seed] for seed in range(seeds)) / seeds for position in shared}
