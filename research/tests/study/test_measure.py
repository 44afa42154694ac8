"""Check the search's strategy on made-up loss curves, the truth it reads off them, and how losses are counted."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.search.grid import OCTAVE, rate_at
from evenstep.search.recipe import CosineSchedule
from evenstep_research.study.transfer.families import Architecture
from evenstep_research.study.transfer.measure import (
    DIVERGED,
    REACH,
    Choice,
    Curve,
    Measured,
    TransferTraining,
    best_rate,
    curve_from_list,
    curve_to_list,
    loss_between,
    next_positions,
)

Loss = Callable[[float], float]
GUESSING = math.log(10)


def searched(loss: Loss, centre: int = 0) -> tuple[Curve, str, int]:
    """Search a made-up loss, a function of the position, to the end; the last number counts the rounds."""
    curve: Curve = {}
    for rounds in range(1, 50):
        positions, status = next_positions(curve, centre)
        assert len(set(positions)) == len(positions)
        new = {rate_at(1.0, p): (loss(p),) for p in positions if rate_at(1.0, p) not in curve}
        if status == "unknown":
            assert len(new) == len(positions), "asked for again"
        curve |= new
        if not new:
            return curve, status, rounds - 1
    raise AssertionError("no end")


def position(rate: float) -> float:
    return OCTAVE * math.log2(rate)


@given(st.floats(-30, 30), st.floats(0.0005, 0.05), st.integers(-2, 2))
@settings(max_examples=80, deadline=None)
def test_a_minimum_is_found_wherever_it_is(minimum: float, curvature: float, octaves: int) -> None:
    """The loss is a parabola at the bottom and flattens out towards guessing, as real ones do at small rates."""

    def loss(p: float) -> float:
        above = curvature * (p - minimum) ** 2
        return 1.5 + 2 * above / (1 + above)

    curve, status, _ = searched(loss, OCTAVE * octaves)
    assert status == "ok"
    assert position(best_rate(curve)) == pytest.approx(minimum, abs=0.3)
    tried = {round(position(rate)) for rate in curve}
    best = min(curve, key=lambda rate: curve[rate])
    assert {round(position(best)) + step for step in range(-OCTAVE, OCTAVE + 1)} <= tried


def test_the_first_round_is_seven_octaves_and_a_search_is_short() -> None:
    positions, status = next_positions({}, 8)
    assert positions == [-4, 0, 4, 8, 12, 16, 20]
    assert status == "unknown"
    _, _, rounds = searched(lambda p: 1 + 0.01 * p**2)
    assert rounds == 2


@pytest.mark.parametrize("way", [1, -1])
def test_a_best_at_the_edge_moves_the_edge_and_gives_up_in_the_end(way: int) -> None:
    far = way * 7 * OCTAVE
    curve, status, _ = searched(lambda p: 1 + 0.002 * (p - far) ** 2)
    assert status == "ok"
    assert position(best_rate(curve)) == pytest.approx(far, abs=0.05)
    curve, status, _ = searched(lambda p: 2 - way * 0.001 * p)
    assert status == "best_at_edge"
    reached = max(way * position(rate) for rate in curve)
    assert (3 + REACH) * OCTAVE < reached <= (3 + REACH + 2) * OCTAVE


def test_where_all_diverge_it_looks_lower_and_says_so() -> None:
    for loss in (math.inf, 7.0):  # far above guessing is no minimum either
        curve, status, _ = searched(lambda _, loss=loss: loss)  # type: ignore[misc]
        assert status == "all_diverged"
        assert min(position(rate) for rate in curve) < -(3 + REACH) * OCTAVE
        assert max(position(rate) for rate in curve) == 3 * OCTAVE


def test_with_many_classes_guessing_is_no_divergence() -> None:
    curve: Curve = {}
    for _ in range(3):
        positions, status = next_positions(curve, 0, 1000)
        curve |= {rate_at(1.0, p): (6.5 + 0.01 * p**2,) for p in positions}
    assert status == "ok"
    many = Measured(Architecture("a", "2"), "ok", 1.0, {1.0: (6.0,)}, {}, {}, classes=1000)
    assert many.regret(math.inf) == pytest.approx(math.log(1000) - 6.0)


def test_a_cliff_beside_the_best_is_no_hindrance() -> None:
    curve, status, _ = searched(lambda p: 2 - 0.05 * p if p <= 3 else math.inf)
    assert status == "ok"
    assert 1 <= position(best_rate(curve)) <= 3


def test_a_minimum_beside_diverged_neighbours_is_the_best_rate() -> None:
    curve: Curve = {rate_at(1.0, p): ((1.0,) if p == 0 else (math.inf,)) for p in range(-4, 5)}
    assert best_rate(curve) == 1.0


def test_rates_off_the_lattice_do_not_move_the_truth() -> None:
    curve, _, _ = searched(lambda p: 1 + 0.004 * (p - 1.7) ** 2)
    before = best_rate(curve)
    assert best_rate(curve | {1.2345: (0.1,), 0.777: (0.2,)}) == before


def test_rates_with_fewer_seeds_do_not_move_the_truth() -> None:
    """A flat bottom reaches beyond the octave around the best; who tried what there must not matter."""
    curve, _, _ = searched(lambda p: 1 + 0.0001 * (p - 1.7) ** 2)
    both: Curve = {lr: losses * 2 for lr, losses in curve.items()}
    before = best_rate(both, 2)
    scouted: Curve = {rate_at(1.0, p): (0.999,) for p in (6, 7, 9, -5) if rate_at(1.0, p) not in both}
    assert len(scouted) == 3
    assert best_rate(both | scouted, 2) == before
    assert best_rate(both | scouted, 1) != before


@pytest.mark.parametrize("minimum", [-5.3, 0.0, 4.9])
def test_a_noisy_parabolas_minimum_is_recovered(minimum: float) -> None:
    """Noise as of three seeds on CIFAR-10, curvature as of its losses: the truth is right to a third of an octave."""
    draw = np.random.default_rng(7)
    found = []
    for _ in range(60):
        curve, status, _ = searched(lambda p: 1.6 + 0.003 * (p - minimum) ** 2 + 0.004 * draw.normal())
        assert status == "ok"
        found.append(position(best_rate(curve)) - minimum)
    assert abs(np.mean(found)) < 0.25
    assert np.quantile(np.abs(found), 0.9) < 1.4


def measured(losses: tuple[float, ...], best: float = 1.5) -> Measured:
    curve: Curve = {1.0: (best,), 2.0: losses}
    return Measured(Architecture("a", "2"), "ok", 1.0, curve, {"m": Choice(2.0, losses)}, {})


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((1.7, 1.7), 0.2),
        ((math.inf, 1.6), GUESSING - 1.5),
        ((DIVERGED * 3,), GUESSING - 1.5),
        ((2.5,), GUESSING - 1.5),
        ((1.5,), 0.0),
    ],
)
def test_what_is_worse_than_guessing_counts_as_guessing(losses: tuple[float, ...], expected: float) -> None:
    one = measured(losses)
    assert one.regret(one.choices["m"].loss) == pytest.approx(expected)


def test_a_regret_is_not_negative_where_nothing_beats_guessing() -> None:
    one = measured((math.inf,), best=3.0)
    assert one.regret(one.choices["m"].loss) == 0.0
    assert one.regret(2.9) < 0  # a rival may be better than the family's own optimiser


def test_a_loss_between_measured_rates_is_on_the_line_over_the_logarithm_of_the_rate() -> None:
    curve: Curve = {1.0: (2.0, 4.0), 4.0: (1.0,), 8.0: (math.inf,)}
    tried = {0.5: 3.0, 1.0: 3.0, 2.0: 2.0, 2 * math.sqrt(2): 1.5, 4.0: 1.0, 5.0: math.inf, 8.0: math.inf, 9.0: math.inf}
    for lr, loss in tried.items():
        assert loss_between(curve, lr) == pytest.approx(loss)


def test_curves_survive_plain_values() -> None:
    curve: Curve = {0.1: (1.0, math.inf), 2**0.25: (math.inf, math.inf)}
    assert curve_from_list(curve_to_list(curve)) == curve


def test_the_schedule_falls_to_nothing_over_the_whole_training() -> None:
    schedule = TransferTraining(batch_size=10, epochs=3, cosine=True).schedule(105)
    assert schedule == CosineSchedule(30, warm_up=0.0)
    assert [schedule(step) for step in (0, 15, 30, 31)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert TransferTraining(epochs=3).schedule(105)(17) == 1.0
    assert TransferTraining(batch_size=999, cosine=True).schedule(105) == CosineSchedule(1, warm_up=0.0)
