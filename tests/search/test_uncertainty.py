"""Hold the interval of a search's rate against curves whose minimum is known."""

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import stats

from evenstep.graph import dag_mlp_graph
from evenstep.search import LRSearch
from evenstep.search.grid import wanted
from evenstep.search.result import chosen, of_positions
from evenstep.search.uncertainty import minimum_interval, student_quantile

GRAPH = dag_mlp_graph("2", width=8, inputs=4)


def searched(
    curve: Callable[[float], float], *, seeds: int, noise: float, draw: random.Random, level: float = 0.1
) -> LRSearch:
    """Search a curve of the logarithm of the loss over quarter octaves above rate 1, as `search_lr` would."""
    levels = [draw.gauss(0, level) for _ in range(seeds)]
    losses: dict[int, tuple[float, ...]] = {}
    while positions := wanted({p: statistics.fmean(row) for p, row in losses.items()}, low=-12, high=12):
        for p in positions:
            losses[p] = tuple(math.exp(curve(p) + own + draw.gauss(0, noise)) for own in levels)
    return of_positions(losses, 1.0, GRAPH)


def valley(minimum: float, curvature: float) -> Callable[[float], float]:
    return lambda position: curvature * (position - minimum) ** 2 / 2


def holds(search: LRSearch, minimum: float) -> bool:
    assert search.interval is not None
    low, high = (4 * math.log2(rate) for rate in search.interval)
    return low <= minimum <= high


def width(search: LRSearch) -> float:
    """Return the interval's width in octaves."""
    assert search.interval is not None
    return math.log2(search.interval[1] / search.interval[0])


@cache
def many(curvature: float, noise: float, seeds: int) -> tuple[float, float]:
    """Return the share of intervals that hold the minimum, and their median width."""
    draw = random.Random(f"{curvature} {noise} {seeds}")
    held, widths = 0, []
    for _ in range(120):
        minimum = draw.uniform(-6, 6)
        found = searched(valley(minimum, curvature), seeds=seeds, noise=noise, draw=draw)
        held += holds(found, minimum)
        widths.append(width(found))
        assert found.interval is not None
        assert found.interval[0] <= found.rate <= found.interval[1]
        assert width(found) >= 0.125  # half way to a neighbour a quarter octave away, on one side at least
    return held / 120, statistics.median(widths)


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("noise", [0.003, 0.03, 0.3])
@pytest.mark.parametrize("curvature", [0.02, 0.002])
def test_about_95_of_100_intervals_hold_the_minimum(curvature: float, noise: float, seeds: int) -> None:
    """At steep and flat valleys, in much and little noise: 88% is four standard errors of 120 draws below 95%."""
    assert many(curvature, noise, seeds)[0] >= 0.88


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_intervals_widen_with_noise_and_flatness_and_narrow_with_seeds(seeds: int) -> None:
    widths = [many(0.02, noise, seeds)[1] for noise in (0.003, 0.03, 0.3)]
    assert widths == sorted(widths)
    assert widths[0] == pytest.approx(0.25)  # a quarter octave: what the grid can tell
    assert widths[-1] > 2
    assert many(0.002, 0.03, seeds)[1] > 1.5 * many(0.02, 0.03, seeds)[1]
    assert many(0.02, 0.03, 3)[1] <= many(0.02, 0.03, 1)[1]


def test_a_jagged_curve_whose_seeds_agree_is_not_known_exactly() -> None:
    """All seeds have the same jags, and so the same best rate: once that was an interval of zero width."""
    draw = random.Random(4)
    jags = [draw.gauss(0, 0.05) for _ in range(15)]
    grid = tuple(2.0 ** (p / 4) for p in range(-7, 8))
    smooth, jagged = (
        tuple(
            tuple(math.exp(0.002 * p**2 / 2 + size * jag + level) for level in (0.0, 0.1, 0.2))
            for p, jag in zip(range(-7, 8), jags, strict=True)
        )
        for size in (0.0, 1.0)
    )
    known, unknown = (chosen(grid, losses, GRAPH) for losses in (smooth, jagged))
    assert len({min(range(15), key=lambda i: jagged[i][seed]) for seed in range(3)}) == 1
    assert width(known) == pytest.approx(0.25)
    assert width(unknown) > 1


def test_fiellers_interval_is_where_a_slope_of_zero_is_not_refused() -> None:
    """Against a t test of the slope at every place, from a regression with dummy variables for the seeds."""
    draw = np.random.default_rng(0)
    positions = np.arange(-4, 5)
    heights = 0.01 * (positions[:, None] - 0.7) ** 2 + draw.normal(0, 0.02, (9, 2)) + [0.0, 0.3]
    interval = minimum_interval(positions.tolist(), np.exp(heights).tolist())
    assert interval is not None

    def is_flat(place: float) -> bool:
        away = np.repeat(positions, 2) - place
        columns = np.stack([away, away**2, np.tile([1.0, 0.0], 9), np.tile([0.0, 1.0], 9)], axis=1)
        fitted, squares, *_ = np.linalg.lstsq(columns, heights.ravel())
        error = math.sqrt(squares[0] / 14 * np.linalg.inv(columns.T @ columns)[0, 0])
        return bool(abs(fitted[0] / error) <= stats.t.ppf(0.975, 14))

    for end, outwards in zip(interval, (-1, 1), strict=True):
        assert is_flat(end - 1e-6 * outwards)
        assert not is_flat(end + 1e-6 * outwards)


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 30, 101])
def test_students_quantiles_are_scipys(freedom: int) -> None:
    assert student_quantile(freedom) == pytest.approx(float(stats.t.ppf(0.975, freedom)), rel=1e-12)


def test_without_noise_to_go_by_the_interval_reaches_to_the_neighbours() -> None:
    found = chosen((0.1, 0.2, 0.4), ((1.0,), (0.5,), (0.9,)), GRAPH)
    assert found.interval == pytest.approx((0.1, 0.4))
    assert chosen((0.1,), ((1.0,),), GRAPH).interval is None  # one rate has no neighbours
    lost = chosen((0.1, 0.2), ((math.inf,), (math.inf,)), GRAPH)
    assert (lost.interval, math.isnan(lost.rate)) == (None, True)


def test_losses_below_zero_have_an_interval_too() -> None:
    grid = tuple(2.0**p for p in range(-3, 4))
    losses = tuple((-5.0 + 0.5 * p**2, -5.1 + 0.5 * p**2) for p in range(-3, 4))
    found = chosen(grid, losses, GRAPH)
    assert found.estimate == pytest.approx(1.0)  # fitted as they are: there is no logarithm
    assert found.interval is not None
    assert found.interval[0] < 1.0 < found.interval[1]


@pytest.mark.parametrize("shift", [-3.0, -30.0])
def test_an_interval_says_as_much_of_losses_below_zero(shift: float) -> None:
    """Noisy and jagged losses that are moved below zero know their minimum about as well as before."""
    draw = np.random.default_rng(3)
    places = range(-6, 7)
    grid = tuple(2.0 ** (p / 2) for p in places)
    losses = [1.0 + 0.004 * p**2 + float(draw.normal(0, 0.02)) for p in places]
    whole, moved = (chosen(grid, tuple((loss + by,) for loss in losses), GRAPH) for by in (0.0, shift))
    assert width(whole) > 1
    assert width(moved) == pytest.approx(width(whole), rel=0.5)
    assert moved.is_vague == whole.is_vague


# One rate


def test_the_rate_is_the_estimate_or_the_best() -> None:
    grid, losses = (0.1, 0.2, 0.4, 0.8), ((1.0, 1.1), (0.5, 0.6), (0.7, 0.8), (math.inf, 0.9))
    found = chosen(grid, losses, GRAPH)
    assert found.rate == found.estimate != found.best
    assert replace(found, estimate=None).rate == found.best
    assert found.to_dict()["rate"] == found.rate


def test_seeds_of_other_levels_that_agree_on_the_rate_are_no_noise() -> None:
    """Once the best was the last rate of the grid here, and the search without an answer."""
    grid = tuple(2.0 ** (p / 4) for p in range(-8, 9))
    losses = tuple(tuple(math.exp(0.01 * p**2 / 2 + level) for level in (0.0, 0.2, 0.4)) for p in range(-8, 9))
    found = chosen(grid, losses, GRAPH)
    assert (found.best, found.status, found.remark) == (1.0, "ok", "")
    assert found.rate == pytest.approx(1.0)
    assert str(found).startswith("learning rate 1, between 0.917 and 1.091")


def test_a_best_outside_the_interval_is_said() -> None:
    grid = tuple(2.0 ** (p / 4) for p in range(-8, 9))
    losses = tuple((math.exp(0.01 * p**2 / 2),) for p in range(-8, 9))
    found = replace(chosen(grid, losses, GRAPH), best=2.0)
    assert "is 2, outside this interval" in str(found)
    assert str(found).startswith("learning rate 1, between ")


def test_an_interval_that_says_little_is_said() -> None:
    draw = random.Random(0)
    flat = searched(lambda p: 0.0, seeds=2, noise=0.05, draw=draw)
    assert "train longer, or search with more seeds" in flat.remark or "outside this interval" in flat.remark
