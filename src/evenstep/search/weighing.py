"""Weigh short runs against a plan's expectation, in octaves: one distribution over multiples of the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

_STEP = 1 / 16  # octaves between the multiples that are weighed
_BEYOND = 3  # octaves beyond those tried


@dataclass(frozen=True)
class Expectation:
    """Say where the best multiple is expected, in octaves, before any run.

    Student's t distribution around `octave`: `spread` is how far plans are usually off, and the heavy tails let clear
    evidence move a plan by several octaves. `tail` is the number of degrees of freedom.
    """

    octave: float = 0.0
    spread: float = 1.0
    tail: float = 2.0

    def log_density(self, octaves: np.ndarray) -> np.ndarray:
        """Return the logarithm of the density, up to a constant."""
        distance = (octaves - self.octave) / self.spread
        density: np.ndarray = -(self.tail + 1) / 2 * np.log1p(distance**2 / self.tail)
        return density


@dataclass(frozen=True)
class Weighed:
    """Hold the octave on which evidence and expectation agree, and its 95% interval."""

    octave: float
    interval: tuple[float, float]


def weigh(losses: Mapping[float, float], expected: Expectation, *, noise: float, blur: float) -> Weighed:
    """Return the mean and the 95% interval of the best octave.

    `losses` maps octaves to the losses of short runs, infinite where they diverged. Differences of `noise` between
    losses say little: an octave weighs exp(-(its loss - the smallest) / noise), with losses interpolated between those
    tried. However clear the evidence, the best octave of a short run is that of the training only to within a Gaussian
    of `blur` octaves. If all losses are alike the expectation decides; if they differ clearly, they do.
    """
    tried = sorted(losses)
    worst = max((loss for loss in losses.values() if math.isfinite(loss)), default=0.0)
    heights = [losses[octave] if math.isfinite(losses[octave]) else worst + 10 * noise for octave in tried]
    low, high = min(tried[0], expected.octave) - _BEYOND, max(tried[-1], expected.octave) + _BEYOND
    octaves = np.arange(low, high + _STEP / 2, _STEP)
    curve = _extended(octaves, np.array(tried), np.array(heights))
    density = np.exp(expected.log_density(octaves))
    weights = density * _blurred(np.exp(-(curve - curve.min()) / noise), blur / _STEP)
    weights /= weights.sum()
    reached = np.cumsum(weights)
    low, high = (float(octaves[np.searchsorted(reached, share)]) for share in (0.025, 0.975))
    return Weighed(float((weights * octaves).sum()), (low - _STEP / 2, high + _STEP / 2))


def _blurred(evidence: np.ndarray, steps: float) -> np.ndarray:
    """Return evidence blurred by a Gaussian of `steps` steps; even evidence stays even, up to the ends."""
    away = np.arange(len(evidence))
    kernel = np.exp(-(((away[:, None] - away[None, :]) / steps) ** 2) / 2)
    blurred: np.ndarray = kernel @ evidence / kernel.sum(axis=1)
    return blurred


def _extended(octaves: np.ndarray, tried: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Return losses between those tried, by parabolas through neighbours; outside, they rise as at the edge.

    Of the two parabolas through an interval's ends and a point on either side, the higher counts: next to a rate that
    diverged, the other would dip far below all losses.
    """
    curve: np.ndarray = np.interp(octaves, tried, heights)
    for left in range(len(tried) - 1 if len(tried) > 2 else 0):
        inside = (octaves >= tried[left]) & (octaves <= tried[left + 1])
        triples = [slice(first, first + 3) for first in (left - 1, left) if 0 <= first <= len(tried) - 3]
        curve[inside] = np.max([_parabola(tried[t], heights[t], octaves[inside]) for t in triples], axis=0)
    for edge, inner in ((0, 1), (-1, -2)) if len(tried) > 1 else ():
        beyond = octaves < tried[0] if edge == 0 else octaves > tried[-1]
        rise = max((heights[edge] - heights[inner]) / abs(tried[edge] - tried[inner]), 0.0)
        curve[beyond] = heights[edge] + rise * np.abs(octaves[beyond] - tried[edge])
    return curve


def _parabola(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return values of the parabola through three points."""
    values: np.ndarray = np.polyval(np.polyfit(x - x[1], y, 2), at - x[1])
    return values
