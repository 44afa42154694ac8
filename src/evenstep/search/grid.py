"""Which learning rates to try: octaves first, then finer around the minimum, further where the best is at the edge.

Rates stand on one lattice, `start * 2^(position / 4)`: a quarter octave a position. The strategy is a pure function
from what is known to what is wanted next, so a search that resumes asks exactly what an undisturbed one would have.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

OCTAVE = 4
REACH = 30 * OCTAVE  # positions either side of the start after which a search gives up


def rate_at(start: float, position: int) -> float:
    """Return the learning rate at a position of the lattice.

    >>> rate_at(0.1, 4)
    0.2
    """
    return start * math.pow(2.0, position / OCTAVE)


def first_positions(low: int, high: int) -> list[int]:
    """Return one position an octave from `low` to `high`."""
    return list(range(low, high + 1, OCTAVE))


def wanted(losses: Mapping[int, float], *, low: int, high: int, finest: int = 1) -> list[int]:
    """Return the positions to try next, empty when the minimum is known to `finest` quarters of an octave.

    `losses` maps positions to mean losses, infinite where trials diverged. The octaves from `low` to `high` come first;
    while the smallest loss is at an end of the known octaves, more are added there, two at a time where the search
    began with many; then halves and quarters next to the smallest.
    """
    missing = [p for p in first_positions(low, high) if p not in losses]
    if missing:
        return missing
    octaves = sorted(p for p in losses if (p - low) % OCTAVE == 0)
    more = 2 if high - low > 2 * OCTAVE else 1
    best = min(octaves, key=lambda p: (losses[p], p))
    if math.isinf(losses[best]):  # nothing trains yet: look lower
        return _within([octaves[0] - OCTAVE, octaves[0] - 2 * OCTAVE])
    if best == octaves[-1]:
        return _within([best + OCTAVE * k for k in range(1, more + 1)])
    if best == octaves[0]:
        return _within([best - OCTAVE * k for k in range(1, more + 1)])
    for step in (step for step in (2, 1) if step >= finest):
        best = min(losses, key=lambda p: (losses[p], p))
        missing = [p for p in (best - step, best + step) if p not in losses]
        if missing:
            return missing
    return []


MORE_OCTAVES = 4  # that most searches want, at most, after the first octaves
FINE = {1: 6, 2: 2, 4: 0}  # and positions between octaves, by the finest step


def left_after(tried: Collection[int], *, low: int, high: int, finest: int = 1) -> int:
    """Return how many positions a search may want after these, at most: a few octaves more, halves and quarters.

    Rarely it wants yet more: from a start that is many octaves off.
    """
    first = len(first_positions(low, high))
    octaves = sum((position - low) % OCTAVE == 0 for position in tried)
    fine = len(tried) - octaves
    more = 0 if fine else max(first + MORE_OCTAVES - octaves, 0)
    return more + max(FINE[finest] - fine, 0)


def _within(positions: list[int]) -> list[int]:
    return [position for position in positions if abs(position) <= REACH]


NEAR = 0.02  # of the smallest loss: what is no more above it, the parabola is fitted to


def near_minimum(tried: Mapping[float, float] | Mapping[int, float]) -> list[float]:
    """Return the positions, ascending, that say where the minimum is: the smallest loss and those near it.

    Losses of a few seeds are noisy and the bottom is flat, so all points within 2% of the smallest on either side, up
    to two octaves away, and those within one octave count. Where some losses are not above 0, it is 2% of how far the
    smallest is below the median. None are near where no loss is finite.
    """
    losses = _finite(tried)
    if not losses:
        return []
    best = min(losses, key=lambda position: losses[position])
    lowest = losses[best]
    limit = lowest + NEAR * (lowest if lowest > 0 else float(np.median(list(losses.values()))) - lowest)
    near = {best}
    for side in (1, -1):
        for position in sorted(tried, key=lambda p: side * p):
            away = side * (position - best)
            if away <= 0:
                continue
            close = away <= OCTAVE
            if position not in losses or away > 2 * OCTAVE or (losses[position] > limit and not close):
                break
            near.add(position)
    return sorted(near)


def parabola_minimum(tried: Mapping[float, float] | Mapping[int, float]) -> float | None:
    """Return the position of the minimum of a parabola fitted to the nearly smallest losses, in log-log.

    The smallest loss and its two neighbours alone would give a far less steady answer than all that are near. Losses
    that have no logarithm are fitted as they are. None where these points do not enclose a minimum.
    """
    losses, near = _finite(tried), near_minimum(tried)
    if not near:
        return None
    best = min(near, key=lambda position: losses[position])
    if not near[0] < best < near[-1]:
        return None
    x = np.array(near, dtype=float)
    curvature, slope, _ = np.polyfit(x - best, heights([losses[position] for position in near]), 2)
    if curvature <= 0:
        return None
    return float(np.clip(best - slope / (2 * curvature), x[0], x[-1]))


def heights(losses: ArrayLike) -> np.ndarray[Any, Any]:
    """Return the logarithms of losses; the losses themselves where some have none."""
    values: np.ndarray[Any, Any] = np.array(losses, dtype=float)
    return np.log(values) if bool((values > 0).all()) else values


def _finite(tried: Mapping[float, float] | Mapping[int, float]) -> dict[float, float]:
    return {position: loss for position, loss in tried.items() if math.isfinite(loss)}
