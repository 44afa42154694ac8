"""Check which octaves are tried by which seed, on curves whose minimum is known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep_research.study.real.curve import FIRST, REACH, OctaveCurve, Point, octave_curve

Losses = dict[Point, float]


def valley(optimum: float, *, noise: float, seed: int, cliff: float = math.inf) -> Losses:
    """Return losses at every position for three seeds: a parabola in the logarithm, noise, divergence past a cliff."""
    draw = random.Random(seed)
    return {
        (position, number): math.inf
        if position > cliff
        else 2.0 * math.exp(0.05 * (position - optimum) ** 2 + noise * draw.gauss(0, 1))
        for position in range(-REACH, REACH + 1)
        for number in range(3)
    }


def measured(truth: Losses, *, seeds: int, centre: bool, order: random.Random) -> tuple[OctaveCurve, Losses]:
    """Measure one wanted point at a time, in any order, until nothing is wanted."""
    known: Losses = {}
    while (curve := octave_curve(known.get, seeds=seeds, centre=centre)).missing:
        point = order.choice(curve.missing)
        assert point not in known
        known[point] = truth[point]
        assert len(known) <= seeds * (2 * REACH + 1)
    return curve, known


def test_a_seed_alone_tries_as_few_as_it_can() -> None:
    curve, known = measured(valley(0.0, noise=0.0, seed=0), seeds=1, centre=False, order=random.Random(0))
    assert sorted(known) == [(position, 0) for position in (-2, -1, 0, 1, 2)]
    assert curve.best == 0
    further, known = measured(valley(5.2, noise=0.0, seed=0), seeds=1, centre=False, order=random.Random(0))
    assert sorted(position for position, _ in known) == [-2, 0, 1, 2, 3, 4, 5, 6]
    assert further.best == 5
    assert further.minimum == pytest.approx(5.2)


def test_other_seeds_try_the_best_its_neighbours_and_the_centre() -> None:
    truth = valley(4.0, noise=0.0, seed=0)
    for centre in (False, True):
        _, known = measured(truth, seeds=2, centre=centre, order=random.Random(0))
        assert sorted(position for position, seed in known if seed == 1) == [0, 3, 4, 5] if centre else [3, 4, 5]


def test_the_first_round_asks_for_all_that_needs_no_answer() -> None:
    curve = octave_curve(lambda _: None, seeds=3, centre=True)
    assert set(curve.missing) == {(position, 0) for position in FIRST} | {(0, 1), (0, 2)}
    assert curve.best is None
    assert curve.minimum is None


def test_a_seed_that_disagrees_moves_the_minimum() -> None:
    first, second = valley(0.0, noise=0.0, seed=0), valley(6.0, noise=0.0, seed=0)
    truth = {(position, seed): (first, second)[seed][position, seed] for position, seed in first if seed < 2}
    curve, _ = measured(truth, seeds=2, centre=True, order=random.Random(0))
    means = {position: (truth[position, 0] + truth[position, 1]) / 2 for position in range(-REACH, REACH + 1)}
    assert curve.best == min(means, key=lambda position: means[position]) != 0


@given(
    optimum=st.floats(-9, 9),
    noise=st.sampled_from([0.0, 0.01, 0.3]),
    cliff=st.integers(-8, 11),
    seeds=st.integers(1, 3),
    centre=st.booleans(),
    number=st.integers(0, 10**6),
)
def test_every_search_ends_with_its_minimum_enclosed_whatever_the_order(
    optimum: float, noise: float, cliff: int, seeds: int, centre: bool, number: int
) -> None:
    truth = valley(optimum, noise=noise, seed=number, cliff=cliff)
    curve, known = measured(truth, seeds=seeds, centre=centre, order=random.Random(number))
    again, _ = measured(truth, seeds=seeds, centre=centre, order=random.Random(number + 1))
    assert dict(curve.losses) == dict(again.losses) == known
    assert curve.best is not None
    shared = [p for p in range(-REACH, REACH + 1) if all((p, seed) in known for seed in range(seeds))]
    means = {position: sum(truth[position, seed] for seed in range(seeds)) / seeds for position in shared}
    assert means[curve.best] == min(means.values())
    for neighbour in (curve.best - 1, curve.best + 1):
        assert neighbour in shared or abs(neighbour) > REACH
    if centre:
        assert 0 in shared
    if not noise:
        assert curve.best == min(range(-REACH, min(cliff, REACH) + 1), key=lambda position: abs(position - optimum))


def test_where_every_rate_diverges_there_is_no_answer() -> None:
    truth = valley(0.0, noise=0.0, seed=0, cliff=-11)
    for seeds in (1, 2):
        for centre in (False, True):
            curve, known = measured(truth, seeds=seeds, centre=centre, order=random.Random(0))
            assert (-REACH, 0) in known
            assert curve.best is None
            assert curve.minimum is None


def test_what_nobody_asked_for_changes_nothing() -> None:
    truth = valley(3.0, noise=0.3, seed=4)
    curve, known = measured(truth, seeds=2, centre=True, order=random.Random(0))
    assert dict(octave_curve(truth.get, seeds=2, centre=True).losses) == dict(curve.losses)
    assert len(known) < len(truth) / 3
