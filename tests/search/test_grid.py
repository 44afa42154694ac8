"""Check the strategy of the grid as a game: a loss that it cannot see, and a minimum that it must corner."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.graph import dag_mlp_graph
from evenstep.search.grid import OCTAVE, REACH, first_positions, left_after, parabola_minimum, rate_at, wanted
from evenstep.search.result import chosen, of_positions

GRAPH = dag_mlp_graph("2", width=8, inputs=4)
LOW, HIGH = -12, 12


def played(loss: Callable[[int], float], *, low: int = LOW, high: int = HIGH) -> dict[int, float]:
    """Answer what the strategy asks until it asks no more; it asks nothing twice and comes to an end."""
    found: dict[int, float] = {}
    for _ in range(200):
        positions = wanted(found, low=low, high=high)
        if not positions:
            return found
        assert len(set(positions)) == len(positions)
        assert not set(positions) & set(found)
        found |= {position: loss(position) for position in positions}
    raise AssertionError("the strategy does not end")


@given(
    minimum=st.floats(-90, 90),
    below=st.floats(0.01, 3.0),
    above=st.floats(0.01, 3.0),
    cliff=st.floats(0.5, 40.0),
)
def test_the_minimum_of_a_valley_is_cornered_to_a_quarter_octave(
    minimum: float, below: float, above: float, cliff: float
) -> None:
    """Any slopes on either side, and divergence from `cliff` positions above the minimum on."""

    def loss(position: int) -> float:
        away = position - minimum
        if away > cliff:
            return math.inf
        return 1.0 + (above * away if away > 0 else -below * away)

    found = played(loss)
    best = min(found, key=lambda p: found[p])
    assert {best - 1, best + 1} <= set(found)
    assert found[best] <= min(found[best - 1], found[best + 1])
    # The lattice's own best position, by trying them all.
    truth = min(range(-REACH, REACH + 1), key=loss)
    assert loss(best) == loss(truth)
    assert abs(best - minimum) <= 1 or math.isinf(loss(math.ceil(minimum)))
    # Octaves and a few more, not the whole lattice.
    assert len(found) <= 7 + 2 * 13 + 10


@given(st.lists(st.floats(0.1, 10) | st.just(math.inf), min_size=2 * REACH + 1, max_size=2 * REACH + 1))
def test_whatever_the_losses_are_the_strategy_ends_within_reach(losses: list[float]) -> None:
    found = played(lambda position: losses[position + REACH] if abs(position) <= REACH else math.inf)
    assert all(abs(position) <= REACH + 2 for position in found)
    assert set(first_positions(LOW, HIGH)) <= set(found)


@pytest.mark.parametrize(
    ("loss", "edge"), [(lambda position: -position, REACH), (lambda position: position, -REACH)], ids=["up", "down"]
)
def test_a_slope_without_end_is_followed_to_the_end_of_reach(loss: Callable[[int], float], edge: int) -> None:
    found = played(lambda position: 1000.0 + loss(position))
    assert min(found, key=lambda p: found[p]) == edge
    assert rate_at(1.0, edge) == 2.0 ** math.copysign(30, edge)  # thirty octaves either side
    search = of_positions({p: (value,) for p, value in found.items()}, 0.1, GRAPH)
    assert search.status == "best_at_edge"


def test_where_everything_diverges_lower_rates_are_tried_and_no_higher() -> None:
    found = played(lambda position: math.inf)
    assert max(found) == HIGH
    assert min(found) == -REACH
    assert of_positions({p: (value,) for p, value in found.items()}, 0.1, GRAPH).status == "all_diverged"


@given(st.floats(1e-6, 1e3), st.integers(-60, 60))
def test_a_position_is_a_quarter_octave(start: float, position: int) -> None:
    assert rate_at(start, position + OCTAVE) == pytest.approx(2 * rate_at(start, position), rel=1e-12)
    assert rate_at(start, position + 1) ** 4 == pytest.approx(2 * rate_at(start, position) ** 4, rel=1e-9)
    assert rate_at(start, 0) == start


# The parabola


@given(st.floats(-20, 20), st.floats(0.01, 2.0), st.floats(-3, 3))
def test_a_parabola_in_logarithms_is_solved_exactly(minimum: float, curvature: float, depth: float) -> None:
    found = {p: math.exp(depth + curvature * (p - minimum) ** 2 / 2) for p in range(-24, 25) if abs(p - minimum) < 12}
    assert parabola_minimum(found) == pytest.approx(minimum, abs=1e-6)
    search = of_positions({p: (value,) for p, value in found.items()}, 0.3, GRAPH)
    assert search.estimate == pytest.approx(0.3 * 2 ** (minimum / 4), rel=1e-6)


@pytest.mark.parametrize(
    "found",
    [
        {0: 1.0},
        {0: 1.0, 1: 2.0},
        {-1: 2.0, 0: 1.0, 1: math.inf},
        {-1: 1.0, 0: 1.0, 1: 1.0},
        {-12: 2.0, 0: 1.0, 12: 2.0},
    ],
)
def test_without_neighbours_that_enclose_a_minimum_there_is_no_parabola(found: dict[int, float]) -> None:
    assert parabola_minimum(found) is None


@pytest.mark.parametrize("shift", [0.0, -1.0, -50.0])
def test_losses_without_logarithms_are_fitted_as_they_are(shift: float) -> None:
    found = {p: 0.02 * (p - 0.7) ** 2 + shift for p in range(-8, 9)}
    assert parabola_minimum(found) == pytest.approx(0.7, abs=0.01 if shift else 0.7)


def test_noise_moves_the_minimum_less_than_three_points_would() -> None:
    draw = random.Random(0)
    steady, of_three = [], []
    for _ in range(200):
        found = {p: math.exp(0.002 * (p - 1.3) ** 2 / 2 + draw.gauss(0, 0.004)) for p in range(-8, 9)}
        minimum = parabola_minimum(found)
        assert minimum is not None
        steady.append(minimum - 1.3)
        best = min(range(-7, 8), key=lambda p: found[p])
        left, middle, right = (math.log(found[best + offset]) for offset in (-1, 0, 1))
        of_three.append(best + 0.5 * (left - right) / (left - 2 * middle + right) - 1.3)
    assert abs(sum(steady)) / 200 < 0.3
    assert sum(e**2 for e in steady) < 0.5 * sum(e**2 for e in of_three)


# Choosing


@given(st.data())
def test_the_choice_is_the_largest_rate_within_a_standard_error(data: st.DataObject) -> None:
    count, seeds = data.draw(st.integers(3, 8)), data.draw(st.integers(2, 4))
    value = st.floats(0.5, 5.0) | st.just(math.inf)
    losses = tuple(
        tuple(row)
        for row in data.draw(st.lists(st.lists(value, min_size=seeds, max_size=seeds), min_size=count, max_size=count))
    )
    grid = tuple(0.1 * 2**i for i in range(count))
    found = chosen(grid, losses, GRAPH)
    means = {rate: sum(row) / seeds for rate, row in zip(grid, losses, strict=True)}
    if all(map(math.isinf, means.values())):
        assert found.status == "all_diverged"
        return
    lowest = min(means, key=lambda rate: means[rate])
    row = losses[grid.index(lowest)]

    def allowed(rate: float) -> float:
        """The smaller of the standard errors of the lowest and of the seeds' differences from it, by numpy."""
        with np.errstate(invalid="ignore"):
            away = np.array(losses[grid.index(rate)]) - np.array(row)
            errors = [np.std(row, ddof=1), np.std(away, ddof=1)]
        return float(np.nan_to_num(min(errors), nan=0.0)) / math.sqrt(seeds)

    assert means[found.best] <= means[lowest] + allowed(found.best) * (1 + 1e-9) + 1e-12
    assert all(means[rate] >= means[lowest] + allowed(rate) * (1 - 1e-9) - 1e-12 for rate in grid if rate > found.best)
    assert found.best >= lowest
    assert found.bracket[0] <= found.best <= found.bracket[1]
    assert (found.status == "ok") == (found.best not in (grid[0], grid[-1]))
    assert found.diverged == sum(math.isinf(x) for row in losses for x in row)


# How many rates are still to come


@given(minimum=st.floats(-20, 20), curvature=st.floats(0.001, 1.0), seed=st.integers(0, 100))
def test_a_search_wants_no_more_than_it_says(minimum: float, curvature: float, seed: int) -> None:
    """From a start within five octaves of a noisy valley's bottom the share that is done never falls."""
    draw = random.Random(seed)
    found: dict[int, float] = {}
    shares = []
    while positions := wanted(found, low=LOW, high=HIGH):
        expected = len(found) + len(positions) + left_after({*found, *positions}, low=LOW, high=HIGH)
        shares.append(len(found) / expected)
        found |= {p: 1 + curvature * (p - minimum) ** 2 + draw.gauss(0, 0.001) for p in positions}
        shares.append(len(found) / expected)
    assert shares == sorted(shares)
    assert shares[-1] <= 1
