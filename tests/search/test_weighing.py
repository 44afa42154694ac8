"""What short runs say, weighed against what a plan expects: known answers and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evenstep.search.weighing import Expectation, weigh

SHARP = 1e-3  # as if short runs liked what trainings like
OCTAVES = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)


def parabola(minimum: float, curvature: float = 1.0, octaves: tuple[float, ...] = OCTAVES) -> dict[float, float]:
    return {octave: 1.0 + curvature * (octave - minimum) ** 2 for octave in octaves}


@pytest.mark.parametrize("minimum", [-1.3, -0.5, 0.0, 0.2, 1.1])
def test_clear_losses_decide(minimum: float) -> None:
    weighed = weigh(parabola(minimum), Expectation(), noise=1e-3, blur=SHARP)
    assert weighed.octave == pytest.approx(minimum, abs=0.04)
    assert weighed.interval[0] <= minimum <= weighed.interval[1]
    assert weighed.interval[1] - weighed.interval[0] < 0.4


def test_losses_that_are_all_alike_leave_the_expectation() -> None:
    weighed = weigh(dict.fromkeys(OCTAVES, 1.0), Expectation(), noise=0.01, blur=SHARP)
    assert weighed.octave == pytest.approx(0.0, abs=1e-9)
    assert weighed.interval[0] < -1.5
    assert weighed.interval[1] > 1.5


def test_the_answer_lies_between_evidence_and_expectation_and_nearer_to_the_surer() -> None:
    answers = [weigh(parabola(1.0), Expectation(), noise=noise, blur=SHARP).octave for noise in (0.01, 0.1, 0.5, 2.0)]
    assert answers == sorted(answers, reverse=True)
    assert 0 < answers[-1] < answers[0] < 1.02
    widths = [weigh(parabola(0.0), Expectation(), noise=noise, blur=SHARP).interval for noise in (0.01, 0.1, 0.5, 2.0)]
    assert [high - low for low, high in widths] == sorted(high - low for low, high in widths)


def test_clear_evidence_moves_a_plan_by_octaves_and_noise_does_not() -> None:
    far = tuple(octave - 3 for octave in OCTAVES)
    assert weigh(parabola(-3, octaves=far), Expectation(), noise=0.02, blur=SHARP).octave == pytest.approx(-3, abs=0.1)
    rng = np.random.default_rng(0)
    moved = [
        weigh(
            {octave: 1.0 + float(rng.normal(0, 0.01)) for octave in OCTAVES}, Expectation(), noise=0.02, blur=SHARP
        ).octave
        for _ in range(200)
    ]
    assert float(np.abs(moved).max()) < 1.5 * Expectation().spread  # no further than a plan may be off anyway
    assert float(np.mean(np.abs(moved))) < 0.25


def test_runs_that_diverged_count_as_the_worst() -> None:
    losses = parabola(0.0) | {1.0: math.inf, 2.0: math.inf}
    weighed = weigh(losses, Expectation(), noise=0.02, blur=SHARP)
    assert -0.2 < weighed.octave < 0.1
    assert weighed.interval[1] < 0.75


def test_outside_what_was_tried_the_expectation_decides() -> None:
    falling = {-1.0: 1.2, 0.0: 1.1, 1.0: 1.0}
    weighed = weigh(falling, Expectation(spread=0.5), noise=0.02, blur=SHARP)
    assert 0.5 < weighed.octave <= 1.5


def test_intervals_hold_the_best_multiple_as_often_as_they_say() -> None:
    """Draw best multiples by the expectation and losses with noise; the interval holds the truth in about 95 of 100."""
    rng, expected = np.random.default_rng(1), Expectation()
    held = 0
    for _ in range(400):
        truth = float(np.clip(expected.spread * rng.standard_t(expected.tail), -4, 4))
        start = round(truth)
        octaves = tuple(start + octave for octave in OCTAVES)
        noise = 0.02
        losses = {
            octave: loss + float(rng.normal(0, noise / 2)) for octave, loss in parabola(truth, 0.1, octaves).items()
        }
        low, high = weigh(losses, expected, noise=noise, blur=SHARP).interval
        held += low <= truth <= high
    assert 0.88 <= held / 400 <= 1.0


def test_what_is_clear_of_short_runs_is_known_of_trainings_to_within_the_blur() -> None:
    near = Expectation(spread=0.5)
    clear = {blur: weigh(parabola(1.0), near, noise=1e-3, blur=blur) for blur in (SHARP, 0.25, 0.5, 1.0)}
    assert [w.octave for w in clear.values()] == sorted((w.octave for w in clear.values()), reverse=True)
    assert 0.3 < clear[0.5].octave < 0.8
    assert clear[0.5].interval[0] < 0 < 1 < clear[0.5].interval[1]
    far = weigh(parabola(-3, octaves=tuple(octave - 3 for octave in OCTAVES)), Expectation(), noise=1e-3, blur=0.5)
    assert far.octave == pytest.approx(-3, abs=0.5)
    even = weigh(dict.fromkeys(OCTAVES, 1.0), Expectation(), noise=0.01, blur=0.5)
    assert even.octave == pytest.approx(0.0, abs=1e-9)


def test_intervals_hold_the_best_multiple_where_short_runs_prefer_others() -> None:
    rng, expected = np.random.default_rng(2), Expectation()
    held = []
    for _ in range(400):
        truth = float(np.clip(expected.spread * rng.standard_t(expected.tail), -4, 4))
        preferred = truth + float(rng.normal(0, 0.5))
        octaves = tuple(round(preferred) + octave for octave in OCTAVES)
        low, high = weigh(parabola(preferred, 0.1, octaves), expected, noise=0.01, blur=0.5).interval
        held.append(low <= truth <= high)
    assert 0.91 < sum(held) / 400 < 0.99
