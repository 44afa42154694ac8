"""The curve of one cell: losses over rates, and what a rate costs above the best."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
BestBy = Literal["parabola", "measured"]


@dataclass(frozen=True)
class Curve:
    """Hold the losses of one network at several rates, all else equal; rates rise."""

    log_rates: tuple[float, ...]
    losses: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> Curve:
        """Return the curve of pairs of rate and loss; of two losses at one rate the lower counts."""
        lowest: dict[float, float] = {}
        for rate, loss in points:
            lowest[rate] = min(loss, lowest.get(rate, math.inf))
        rates = sorted(lowest)
        return cls(tuple(map(math.log, rates)), tuple(lowest[rate] for rate in rates))

    def regrets(self, log_rates: Numbers) -> Numbers:
        """Return the losses at some rates minus the lowest measured one.

        Between measured rates the loss is a straight line in the logarithm of the rate. Beyond them it is that of the
        nearest measured rate, which is too low there: nothing is made up, and `outside` says how often that happens.

        >>> Curve.of([(1.0, 3.0), (4.0, 2.0)]).regrets(np.log([0.5, 2.0, 4.0])).tolist()
        [1.0, 0.5, 0.0]
        """
        answer: Numbers = np.interp(log_rates, self.log_rates, self.losses) - min(self.losses)
        return answer

    def outside(self, log_rates: Numbers) -> NDArray[np.bool_]:
        """Tell which rates are beyond those measured."""
        slack = 1e-9  # a base's own rate comes back through logarithms
        answer: NDArray[np.bool_] = (log_rates < self.log_rates[0] - slack) | (log_rates > self.log_rates[-1] + slack)
        return answer

    @cached_property
    def best_measured(self) -> float:
        """The logarithm of the measured rate with the lowest loss."""
        return self.log_rates[int(np.argmin(self.losses))]

    @cached_property
    def best_of_parabola(self) -> float:
        """The logarithm of the rate at the bottom of the parabola through the lowest loss and its neighbours.

        Where the lowest loss is the first or the last there is no such bottom: the measured rate it is.
        """
        at = int(np.argmin(self.losses))
        if not 0 < at < len(self.losses) - 1:
            return self.best_measured
        left, right = (self.log_rates[i] - self.log_rates[at] for i in (at - 1, at + 1))
        left_slope, right_slope = (
            (self.losses[i] - self.losses[at]) / run for i, run in ((at - 1, left), (at + 1, right))
        )
        curvature = (left_slope - right_slope) / (left - right)
        if curvature <= 0:  # all three losses are the same
            return self.best_measured
        return self.log_rates[at] - (right_slope - curvature * right) / (2 * curvature)

    def best(self, by: BestBy) -> float:
        """Return the logarithm of the best rate."""
        return self.best_measured if by == "measured" else self.best_of_parabola
