"""Check gains, taus, gaps and agreement on small tables with answers known by hand, and on the published table."""

import json
import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evenstep.errors import InputError
from evenstep_research.spaces.cells import is_live
from evenstep_research.study.nas.analysis import (
    GAPS_LIMIT,
    INTERVAL_LIMIT,
    TOP_SHARES,
    agreement,
    kendall_tau,
    mean_gain,
    pairwise_gaps,
    tau_curve,
    top,
)
from research.tests.study.nas.real import needs_table, real_table

PAIRS = st.lists(st.tuples(*[st.integers(0, 8).map(float)] * 2), min_size=0, max_size=12)


def slow_tau(x: list[float], y: list[float]) -> float | None:
    """Return tau-b from its definition: concordant minus discordant pairs, over the pairs untied on either side."""
    score = untied_x = untied_y = 0
    for i, j in combinations(range(len(x)), 2):
        a, b = (x[i] > x[j]) - (x[i] < x[j]), (y[i] > y[j]) - (y[i] < y[j])
        score += a * b
        untied_x += a != 0
        untied_y += b != 0
    return score / math.sqrt(untied_x * untied_y) if untied_x and untied_y else None


def test_a_gain_known_by_hand() -> None:
    gain = mean_gain([62.0, 71.0, 80.0, 90.0], [60.0, 70.0, 80.0, 91.0])
    assert (gain.count, gain.better, gain.worse) == (4, 2, 1)
    assert gain.mean.value == pytest.approx(0.5)
    assert (gain.ours, gain.reference) == (75.75, 75.25)
    assert gain.mean.low is not None
    assert gain.mean.high is not None
    assert -1 <= gain.mean.low < 0 < gain.mean.high <= 2
    assert not gain.excludes_zero
    assert json.loads(json.dumps(gain.to_dict()))["gain"]["value"] == pytest.approx(0.5)


def test_an_interval_over_architectures_that_all_gain_excludes_zero() -> None:
    reference = np.linspace(50, 90, 20)
    up, down = mean_gain(reference + 1, reference), mean_gain(reference - 1, reference)
    assert up.excludes_zero
    assert down.excludes_zero
    assert up.mean.low == pytest.approx(1)
    assert down.mean.high == pytest.approx(-1)
    assert not mean_gain(reference, reference).excludes_zero


def test_the_interval_is_as_wide_as_the_mean_is_uncertain() -> None:
    draw = np.random.default_rng(0)
    difference = draw.normal(size=400)
    gain = mean_gain(difference, np.zeros(400))
    assert gain.mean.low is not None
    assert gain.mean.high is not None
    expected = 2 * 1.96 * difference.std() / math.sqrt(400)
    assert gain.mean.high - gain.mean.low == pytest.approx(expected, rel=0.15)


def test_one_architecture_has_a_gain_without_an_interval() -> None:
    gain = mean_gain([61.0], [60.0])
    assert (gain.mean.value, gain.mean.low, gain.mean.high) == (1.0, None, None)
    assert not gain.excludes_zero
    with pytest.raises(InputError, match="no architectures to compare"):
        mean_gain([], [])


@given(PAIRS)
def test_tau_is_its_definition(pairs: list[tuple[float, float]]) -> None:
    x, y = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    expected = slow_tau(x, y) if len(x) > 2 else None
    found = kendall_tau(x, y)
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_taus_known_by_hand() -> None:
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert kendall_tau([1, 2, 3, 4], [40, 30, 20, 10]) == pytest.approx(-1)
    assert kendall_tau([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(6))  # one tie
    assert kendall_tau([1], [1]) is None
    assert kendall_tau([1, 2], [1, 2]) is None  # 1 or -1 whatever was measured
    assert kendall_tau([], []) is None
    assert kendall_tau([1, 1, 1], [1, 2, 3]) is None


@pytest.mark.parametrize(
    ("share", "marked"),
    [
        (100, [True, True, True, True, True]),
        (60, [True, False, True, True, False]),
        (41, [True, False, True, True, False]),  # 2.05 architectures: three
        (40, [True, False, True, False, False]),
        (20, [True, False, False, False, False]),
        (1, [True, False, False, False, False]),
    ],
)
def test_the_top_is_rounded_up(share: float, marked: list[bool]) -> None:
    assert top([90.0, 50.0, 80.0, 70.0, 60.0], share).tolist() == marked


def test_ties_with_the_last_one_belong_to_the_top() -> None:
    assert top([3.0, 2.0, 2.0, 1.0], 50).tolist() == [True, True, True, False]
    assert top(np.arange(100.0), 7).sum() == 7
    assert top(np.arange(15_625.0), 1).sum() == 157
    for share in (0, -1, 100.5, math.nan):
        with pytest.raises(InputError, match=f"share is {share}; give a percentage"):
            top([1.0, 2.0], share)


def test_a_curve_known_by_hand() -> None:
    # The two best change places: they are one pair of 45, then one of ever fewer. Two alone have no tau.
    reference = np.arange(10.0)
    other = reference.copy()
    other[[8, 9]] = 9, 8
    curve = tau_curve(reference, other)
    assert [point.share for point in curve] == list(TOP_SHARES)
    assert [point.count for point in curve] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 1]
    for point in curve[:8]:
        pairs = point.count * (point.count - 1) / 2
        assert point.tau.value is not None
        assert point.tau.value == pytest.approx((pairs - 2) / pairs)
        assert point.tau.low is not None
        assert point.tau.high is not None
        assert point.tau.low <= point.tau.value + 1e-12
        assert point.tau.value <= point.tau.high + 1e-12
    for point in curve[8:]:
        assert (point.tau.value, point.tau.low, point.tau.high) == (None, None, None)
    assert json.loads(json.dumps([point.to_dict() for point in curve]))[8] == {
        "share": 20,
        "n": 2,
        "tau": {"value": None, "low": None, "high": None},
    }


def test_the_top_is_the_references() -> None:
    reference, other = [1.0, 2.0, 3.0, 4.0], [40.0, 30.0, 1.0, 2.0]
    assert tau_curve(reference, other, shares=[75])[0].tau.value == pytest.approx(-1 / 3)
    assert tau_curve(other, reference, shares=[75])[0].tau.value == pytest.approx(-1)


def test_many_architectures_have_a_tau_without_an_interval() -> None:
    many = np.arange(INTERVAL_LIMIT + 1.0)
    whole, part = tau_curve(many, many, shares=[100, 90])
    assert whole.tau.value == pytest.approx(1)
    assert whole.tau.low is None
    assert part.tau.low == pytest.approx(1)


def test_gaps_known_by_hand() -> None:
    gaps = pairwise_gaps([70.0, 73.0, 71.0])
    assert gaps.values.tolist() == [1, 2, 3]
    assert (gaps.count, gaps.mean, gaps.median, gaps.largest) == (3, 2, 2, 3)
    assert gaps.p10 == pytest.approx(1.2)
    assert gaps.p90 == pytest.approx(2.8)
    assert gaps.to_dict()["pairs"] == 3
    assert "values" not in json.loads(json.dumps(gaps.to_dict()))


@pytest.mark.parametrize("count", [0, 1, GAPS_LIMIT + 1])
def test_too_few_and_too_many_to_pair_are_refused(count: int) -> None:
    with pytest.raises(InputError, match=rf"there are {count} architectures to pair; give 2 to {GAPS_LIMIT}"):
        pairwise_gaps(np.arange(float(count)))


def test_agreement_known_by_hand() -> None:
    up, down = [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]
    swapped = [1.0, 2.0, 4.0, 3.0]
    runs = {"benchmark": np.array([up, swapped]).T, "weighted": np.array([down, down]).T, "paper": np.array([up]).T}
    whole, three, two = agreement(runs, ranking=[10.0, 20.0, 30.0, 40.0], shares=[100, 75, 50])
    assert whole.count == 4
    assert whole.within == {"benchmark": pytest.approx(4 / 6), "weighted": pytest.approx(1), "paper": None}
    assert whole.between["benchmark", "weighted"] == pytest.approx((-1 - 4 / 6) / 2)
    assert whole.between["benchmark", "paper"] == pytest.approx((1 + 4 / 6) / 2)
    assert whole.between["weighted", "paper"] == pytest.approx(-1)
    # The benchmark's mean is 1, 2, 3.5, 3.5: five pairs of six are untied.
    assert whole.between_means["benchmark", "paper"] == pytest.approx(5 / math.sqrt(5 * 6))
    assert three.count == 3
    assert three.within["benchmark"] == pytest.approx(1 / 3)
    assert two.count == 2
    assert two.within == {"benchmark": None, "weighted": None, "paper": None}
    text = json.loads(json.dumps(whole.to_dict()))
    assert text["between"][0]["protocols"] == ["benchmark", "weighted"]
    upside_down = agreement(runs, ranking=[40.0, 30.0, 20.0, 10.0], shares=[75])[0]
    assert upside_down.within["benchmark"] == pytest.approx(1)


def test_protocols_alike_agree_as_much_as_their_seeds_do_at_every_share() -> None:
    draw = np.random.default_rng(0)
    true = draw.normal(size=4000)
    a, b = (true[:, None] + 0.4 * draw.normal(size=(4000, 2)) for _ in range(2))
    other_run = true + 0.4 * draw.normal(size=4000)
    for point in agreement({"a": a, "b": b}, ranking=other_run, shares=(100, 50, 10)):
        taus = [point.within["a"], point.within["b"], point.between["a", "b"]]
        assert np.ptp(np.array(taus, dtype=float)) < 0.05
    # Ranked by the runs themselves they seem to differ, which is why the ranking is asked for.
    wrong = agreement({"a": a, "b": b}, ranking=a.mean(axis=1), shares=(10,))[0]
    assert np.ptp(np.array([wrong.within["a"], wrong.within["b"]], dtype=float)) > 0.15


def test_a_curve_can_take_its_top_from_other_runs() -> None:
    first, second, third = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0], [4.0, 3.0, 2.0, 1.0]
    assert tau_curve(first, second, shares=[75])[0].tau.value == pytest.approx(1 / 3)
    assert tau_curve(first, second, ranking=third, shares=[75])[0].tau.value == pytest.approx(1)
    with pytest.raises(InputError, match=r"accuracies have shapes \(4,\), \(1,\)"):
        tau_curve(first, second, ranking=[1.0])


def test_curves_of_seeds_alone_fall_and_more_so_when_ranked_by_one_of_them() -> None:
    taus = []
    for seed in range(8):
        draw = np.random.default_rng(seed)
        true = draw.normal(size=4000)
        first, second, third = (true + 0.4 * draw.normal(size=4000) for _ in range(3))
        whole, own = tau_curve(first, second, shares=[100, 10])
        others = tau_curve(first, second, ranking=third, shares=[10])[0]
        taus.append([point.tau.value for point in (whole, others, own)])
    whole_mean, others_mean, own_mean = np.array(taus, dtype=float).mean(axis=0)
    assert whole_mean > others_mean + 0.15
    assert others_mean > own_mean + 0.03


def test_an_architecture_that_lacks_a_run_is_left_out() -> None:
    full = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [9.0, 0.0]])
    holes = full.copy()
    holes[3, 1] = math.nan
    point = agreement({"a": holes, "b": full}, ranking=[1.0, 2.0, 3.0, 4.0], shares=[100])[0]
    assert point.count == 3
    assert point.within == {"a": pytest.approx(1), "b": pytest.approx(1)}


def test_arrays_that_do_not_fit_are_refused() -> None:
    for function in (mean_gain, kendall_tau, tau_curve):
        with pytest.raises(InputError, match=r"accuracies have shapes \(2,\), \(3,\); give one number"):
            function([1.0, 2.0], [1.0, 2.0, 3.0])
        with pytest.raises(InputError, match="the accuracy of architecture 1 is nan; leave out"):
            function([1.0, math.nan], [1.0, 2.0])
    with pytest.raises(InputError, match="there are no protocols to compare"):
        agreement({}, ranking=[1.0])
    with pytest.raises(InputError, match=r"of 'b' have shape \(1, 1\); give \[architectures, seeds\] of the 2 arch"):
        agreement({"a": [[1.0], [2.0]], "b": [[1.0]]}, ranking=[1.0, 2.0])


@needs_table
@pytest.mark.parametrize(
    ("dataset", "taus"),
    [
        ("cifar10", (0.907, 0.768, 0.654, 0.454)),
        ("cifar100", (0.886, 0.702, 0.429, 0.581)),
        ("imagenet16_120", (0.906, 0.769, 0.501, 0.342)),
    ],
)
def test_seeds_of_the_published_table_agree_less_at_the_top(dataset: str, taus: tuple[float, ...]) -> None:
    """Rank two trials by the third, in all three ways; scipy says how well they agree."""
    table = real_table()
    columns = [table.accuracies(dataset, epochs=200, split="valid", seed=seed) for seed in (0, 1, 2)]
    runs = np.stack(columns, axis=1)[[is_live(code) for code in table.codes]]
    runs = runs[~np.isnan(runs).any(axis=1)]
    assert len(runs) == 7_828
    shares = (100, 50, 10, 1)
    found: list[list[float]] = []
    for third in range(3):
        pair = np.delete(runs, third, axis=1)
        points = agreement({"benchmark": pair}, ranking=runs[:, third], shares=shares)
        found.append([tau for point in points if (tau := point.within["benchmark"]) is not None])
        for share, tau in zip(shares, found[-1], strict=True):
            count = math.ceil(len(runs) * share / 100)
            best = pair[runs[:, third] >= np.sort(runs[:, third])[::-1][count - 1]]
            assert tau == pytest.approx(stats.kendalltau(best[:, 0], best[:, 1]).statistic)
    assert np.mean(found, axis=0) == pytest.approx(taus, abs=0.001)


@needs_table
def test_12_epochs_rank_the_published_table_as_200_do_but_less_so_at_the_top() -> None:
    table = real_table()
    alive = np.array([is_live(code) for code in table.codes])
    early, late = (table.accuracies("cifar10", epochs=epochs)[alive] for epochs in (12, 200))
    curve = tau_curve(late, early)
    assert [point.count for point in curve[:2]] == [15_284, 13_756]
    assert curve[-1].count == 157  # 153, and four that tie
    for point in curve:
        chosen = late >= np.sort(late)[::-1][math.ceil(len(late) * point.share / 100) - 1]
        assert point.tau.value == pytest.approx(stats.kendalltau(late[chosen], early[chosen]).statistic)
    assert curve[0].tau.value == pytest.approx(0.687, abs=0.001)
    assert curve[-1].tau.value == pytest.approx(0.297, abs=0.001)
    gain = mean_gain(late, early)
    assert gain.excludes_zero
    assert gain.mean.value == pytest.approx(late.mean() - early.mean())
    wide, narrow = pairwise_gaps(early[:1000]), pairwise_gaps(late[:1000])
    assert len(wide.values) == 499_500
    assert narrow.mean < wide.mean
    some = [abs(a - b) for a, b in product(early[:40], repeat=2)]
    assert pairwise_gaps(early[:40]).mean == pytest.approx(sum(some) / (40 * 39))
