"""Which learning rates to try: octaves first, then finer around the minimum, further where the best is at the edge.

Rates stand on one lattice, `start * 2^(position / 4)`: a quarter octave a position. The strategy is a pure function
from what is known to what is wanted next, so a search that resumes asks exactly what an undisturbed one would have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

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


def wanted(losses: Mapping[int, float], *, low: int, high: int) -> list[int]:
    """Return the positions to try next, empty when the minimum is known to a quarter octave.

    `losses` maps positions to mean losses, infinite where trials diverged. The octaves from `low` to `high` come first;
    while the smallest loss is at an end of the known octaves, two more are added there; then halves and quarters
    beside the smallest.
    """
    missing = [p for p in first_positions(low, high) if p not in losses]
    if missing:
        return missing
    octaves = sorted(p for p in losses if (p - low) % OCTAVE == 0)
    best = min(octaves, key=lambda p: (losses[p], p))
    if math.isinf(losses[best]):  # nothing trains yet: look lower
        return _within([octaves[0] - OCTAVE, octaves[0] - 2 * OCTAVE])
    if best == octaves[-1]:
        return _within([best + OCTAVE, best + 2 * OCTAVE])
    if best == octaves[0]:
        return _within([best - OCTAVE, best - 2 * OCTAVE])
    for step in (2, 1):
        best = min(losses, key=lambda p: (losses[p], p))
        missing = [p for p in (best - step, best + step) if p not in losses]
        if missing:
            return missing
    return []


def _within(positions: list[int]) -> list[int]:
    return [position for position in positions if abs(position) <= REACH]


NEAR = 1.02  # times the smallest loss: what the parabola is fitted to


def parabola_minimum(tried: Mapping[float, float] | Mapping[int, float]) -> float | None:
    """Return the position of the minimum of a parabola fitted to the nearly smallest losses, in log-log.

    Losses of a few seeds are noisy and the bottom is flat, so all points within 2% of the smallest on either side, up
    to two octaves away, and those within one octave count: the smallest and its two neighbours alone would give a far
    less steady answer. None where these points do not enclose a minimum.
    """
    losses = {position: loss for position, loss in tried.items() if math.isfinite(loss) and loss > 0}
    if not losses:
        return None
    best = min(losses, key=lambda position: losses[position])
    near = {best}
    for side in (1, -1):
        for position in sorted(tried, key=lambda p: side * p):
            away = side * (position - best)
            if away <= 0:
                continue
            close = away <= OCTAVE
            if position not in losses or away > 2 * OCTAVE or (losses[position] > NEAR * losses[best] and not close):
                break
            near.add(position)
    if not any(position > best for position in near) or not any(position < best for position in near):
        return None
    x = np.array(sorted(near), dtype=float)
    curvature, slope, _ = np.polyfit(x - best, np.log([losses[position] for position in sorted(near)]), 2)
    if curvature <= 0:
        return None
    return float(np.clip(best - slope / (2 * curvature), x[0], x[-1]))
