"""Choose which learning rates to try: octaves first, then finer steps around the minimum, or further at an edge.

All rates are on one lattice, `start * 2^(position / 4)`: one position is a quarter octave. The strategy is a pure
function from what is known to what to try next, so a resumed search tries exactly what an undisturbed one would.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

OCTAVE = 4
REACH = 30 * OCTAVE  # positions on either side of the start at which a search stops


def rate_at(start: float, position: int) -> float:
    """Return the learning rate at a position of the lattice.

    >>> rate_at(0.1, 4)
    0.2
    """
    return start * math.pow(2.0, position / OCTAVE)


def first_positions(low: int, high: int) -> list[int]:
    """Return one position per octave from `low` to `high`."""
    return list(range(low, high + 1, OCTAVE))


def wanted(losses: Mapping[int, float], *, low: int, high: int, finest: int = 1) -> list[int]:
    """Return the positions to try next; none when the minimum is known to `finest` quarters of an octave.

    `losses` maps positions to mean losses, infinite where trials diverged. The octaves from `low` to `high` come first.
    While the smallest loss is at an end of the known octaves, more are added there, two at a time if the search began
    with many. Then come halves and quarters next to the smallest.
    """
    missing = [p for p in first_positions(low, high) if p not in losses]
    if missing:
        return missing
    octaves = sorted(p for p in losses if (p - low) % OCTAVE == 0)
    more = 2 if high - low > 2 * OCTAVE else 1
    best = min(octaves, key=lambda p: (losses[p], p))
    if math.isinf(losses[best]):  # everything diverged: look lower
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


MORE_OCTAVES = 4  # that most searches add, at most, to the first octaves
FINE = {1: 6, 2: 2, 4: 0}  # positions between octaves, by the finest step


def left_after(tried: Collection[int], *, low: int, high: int, finest: int = 1) -> int:
    """Return how many more positions a search may usually want, at most: a few octaves, halves and quarters.

    A search whose start is many octaves off wants more.
    """
    first = len(first_positions(low, high))
    octaves = sum((position - low) % OCTAVE == 0 for position in tried)
    fine = len(tried) - octaves
    more = 0 if fine else max(first + MORE_OCTAVES - octaves, 0)
    return more + max(FINE[finest] - fine, 0)


def _within(positions: list[int]) -> list[int]:
    return [position for position in positions if abs(position) <= REACH]


NEAR = 0.02  # share of the smallest loss: losses within it are fitted by the parabola


def near_minimum(tried: Mapping[float, float] | Mapping[int, float]) -> list[float]:
    """Return the positions, ascending, that decide where the minimum is: the smallest loss and those near it.

    Losses of a few seeds are noisy and the bottom is flat. So all points within one octave count, and within two
    octaves those whose loss is within 2% of the smallest. If some losses are not above 0, it is 2% of the distance from
    the smallest to the median. If no loss is finite, there are none.
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
    """Return the position of the minimum of a parabola through the nearly smallest losses, in log-log.

    All nearly smallest losses give a far steadier answer than the smallest and its two neighbours. Losses without a
    logarithm are fitted as they are. Returns None if these points do not enclose a minimum.
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
    """Return the logarithms of losses, or the losses themselves if some have none."""
    values: np.ndarray[Any, Any] = np.array(losses, dtype=float)
    return np.log(values) if bool((values > 0).all()) else values


def _finite(tried: Mapping[float, float] | Mapping[int, float]) -> dict[float, float]:
    return {position: loss for position, loss in tried.items() if math.isfinite(loss)}
