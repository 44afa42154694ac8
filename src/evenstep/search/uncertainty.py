"""Compute how well a search knows its rate: a confidence interval for where the loss is smallest.

Near its minimum the logarithm of the loss is a parabola of the logarithm of the rate, with a separate level for each
seed. The residuals, including the jags of the curve, count as noise. The minimum is where the slope is zero; the rates
at which Student's t-test cannot reject a slope of zero are Fieller's interval for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.search.grid import heights, near_minimum

CONFIDENCE = 0.95
Interval = tuple[float, float]


def minimum_interval(positions: Sequence[float], losses: Sequence[Sequence[float]]) -> Interval | None:
    """Return the interval that holds the position of the smallest loss, at 95% confidence.

    `positions` ascend, and `losses` holds every seed's loss at each. Fieller's interval of the parabola extends no
    further than where losses are clearly larger than the smallest and stay so, or than the grid: a flat or jagged curve
    says no more. Losses that are not clearly larger belong to the parabola too. Without a repetition or a fourth
    position the noise is unknown, and the interval reaches to the neighbours of the smallest. Returns None if all
    diverged or if there is only one position.
    """
    means = [sum(seeds) / len(seeds) for seeds in losses]
    finite = [place for place, mean in enumerate(means) if math.isfinite(mean)]
    if not finite or len(positions) < 2:
        return None
    lowest = min(finite, key=lambda place: means[place])
    height_at = dict(zip(finite, heights([losses[place] for place in finite]), strict=True))
    near = near_minimum(dict(zip(positions, means, strict=True)))
    window = {place for place in finite if positions[place] in near} | {lowest}
    while True:
        fitted = _Parabola.through(
            [positions[place] - positions[lowest] for place in sorted(window)],
            np.array([height_at[place] for place in sorted(window)]),
        )
        if fitted is None:
            return positions[max(lowest - 1, 0)], positions[min(lowest + 1, len(positions) - 1)]
        limit = height_at[lowest].mean() + fitted.clear_difference
        like = [place for place in finite if height_at[place].mean() <= limit]
        inside = {place for place in finite if min(like) <= place <= max(like)}
        if inside <= window:
            break
        window |= inside
    low, high = fitted.where_flat()
    first, last = max(min(like) - 1, 0), min(max(like) + 1, len(positions) - 1)
    return max(low + positions[lowest], positions[first]), min(high + positions[lowest], positions[last])


@dataclass(frozen=True)
class _Parabola:
    """A parabola with a level for each seed: its slope at 0, its curvature, and how well both are known."""

    slope: float
    curvature: float
    covariance: np.ndarray[Any, Any]
    quantile: float
    clear_difference: float

    @classmethod
    def through(cls, positions: Sequence[float], heights: np.ndarray[Any, Any]) -> _Parabola | None:
        """Fit a parabola by least squares; None if there are too few points to fit it and to see their noise."""
        seeds = heights.shape[1]
        freedom = heights.size - seeds - 2
        if len(positions) < 3 or freedom < 1:
            return None
        x = np.array(positions, dtype=float)
        columns = np.stack([x, x**2], axis=1)
        columns -= columns.mean(axis=0)
        inverse = np.linalg.inv(columns.T @ columns)
        mean = heights.mean(axis=1)
        slope, square = inverse @ columns.T @ (mean - mean.mean())
        fitted = columns @ np.array([slope, square])
        residuals = heights - heights.mean(axis=0) - fitted[:, None]
        variance = float((residuals**2).sum()) / freedom
        quantile = student_quantile(freedom)
        scale = np.array([[1.0, 2.0], [2.0, 4.0]])  # a curvature is twice the square's coefficient
        clear = quantile * math.sqrt(2 * variance / seeds)
        return cls(float(slope), 2 * float(square), scale * inverse * variance / seeds, quantile, clear)

    def where_flat(self) -> Interval:
        """Return Fieller's interval, between the m with (slope + curvature m)^2 = t^2 Var(slope + curvature m).

        It has no ends if the curvature is not clearly above zero.
        """
        known = self.quantile**2 * self.covariance
        square = self.curvature**2 - known[1, 1]
        half = self.slope * self.curvature - known[0, 1]
        rest = self.slope**2 - known[0, 0]
        if self.curvature <= 0 or square <= 0:
            return -math.inf, math.inf
        root = math.sqrt(max(half**2 - square * rest, 0.0))
        return float((-half - root) / square), float((-half + root) / square)


def student_quantile(freedom: int) -> float:
    """Return how many standard errors on either side hold 95% of Student's t, by bisecting its exact distribution.

    >>> round(student_quantile(2), 4)
    4.3027
    """
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(freedom)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, freedom) < CONFIDENCE else (low, middle)
    return math.sqrt(freedom) * math.tan(high)


def _share_within(angle: float, freedom: int) -> float:
    """Return the share of Student's t within this angle of zero (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for order in range(2 + odd, freedom - 1, 2):
        term *= (order - 1) / order * math.cos(angle) ** 2
        total += term
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if odd else within
