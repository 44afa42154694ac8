"""Check regrets and best rates of single curves against slow, literal versions."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from evenstep_research.study.external.curves import Curve


def slow_regret(points: list[tuple[float, float]], rate: float) -> float:
    """Return the regret of a rate by walking through the measured ones."""
    points = sorted(points)
    lowest = min(loss for _, loss in points)
    if rate <= points[0][0]:
        return points[0][1] - lowest
    for (low, low_loss), (high, high_loss) in pairwise(points):
        if low <= rate <= high:
            share = math.log(rate / low) / math.log(high / low)
            return (1 - share) * low_loss + share * high_loss - lowest
    return points[-1][1] - lowest


@pytest.mark.parametrize("seed", range(20))
def test_regrets_are_those_of_the_slow_walk(seed: int) -> None:
    draw = random.Random(seed)
    points = [(10 ** draw.uniform(-4, -1), draw.uniform(2, 5)) for _ in range(draw.randint(1, 8))]
    rates = [rate for rate, _ in points] + [10 ** draw.uniform(-5, 0) for _ in range(50)]
    shuffled = draw.sample(points, len(points))
    answers = Curve.of(shuffled).regrets(np.log(rates))
    assert answers.tolist() == pytest.approx([slow_regret(points, rate) for rate in rates], abs=1e-9)


def test_the_best_measured_rate_costs_nothing_and_none_costs_less() -> None:
    curve = Curve.of([(1e-3, 3.0), (2e-3, 2.5), (4e-3, 2.75)])
    assert curve.regrets(np.array([curve.best_measured])).tolist() == [0.0]
    assert (curve.regrets(np.linspace(-20, 5, 1000)) >= 0).all()


@pytest.mark.parametrize("seed", range(20))
def test_the_parabola_is_that_of_polyfit(seed: int) -> None:
    draw = random.Random(seed)
    rates = np.sort([draw.uniform(-8, -2) for _ in range(3)])
    losses = [2 + draw.random(), 2.0, 2 + draw.random()]
    curve = Curve(tuple(rates), tuple(losses))
    square, line, _ = np.polyfit(rates, losses, 2)
    assert curve.best("parabola") == pytest.approx(-line / (2 * square))
    assert rates[0] < curve.best("parabola") < rates[2]
    assert curve.best("measured") == rates[1]


@pytest.mark.parametrize("losses", [(1.0, 2.0, 3.0), (3.0, 2.0, 1.0), (2.0, 2.0, 2.0)])
def test_without_a_bottom_the_measured_rate_is_the_best(losses: tuple[float, ...]) -> None:
    curve = Curve((-3.0, -2.0, -1.0), losses)
    assert curve.best("parabola") == curve.best("measured") == (-3.0, -2.0, -1.0)[losses.index(min(losses))]


def test_what_is_outside_and_twice_measured() -> None:
    curve = Curve.of([(1.0, 3.0), (2.0, 2.5), (2.0, 2.0)])
    assert curve.losses == (3.0, 2.0)
    assert curve.outside(np.log([0.9, 1.0, 1.5, 2.0, 2.1])).tolist() == [True, False, False, False, True]
