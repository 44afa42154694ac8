"""Check the statistics against scipy's, and the bootstrap against one that loops."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evenstep_research.study import statistics

RATES = st.lists(st.sampled_from([0.01, 0.02, 0.1, 0.13, 0.5, 1.0, 3.0]), min_size=3, max_size=12)


@given(RATES, st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_correlations_are_scipys(rates: list[float], seed: int) -> None:
    x = np.array(rates)
    y = (
        np.random.default_rng(seed).choice([0.1, 0.2, 0.4, 0.8], size=len(x))
        * x ** np.random.default_rng(seed).normal()
    )
    tau = float(statistics.kendall(x, y))
    if len(set(x)) < 2 or len(set(y)) < 2:
        assert math.isnan(tau)
        return
    assert tau == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-12)
    r = float(statistics.pearson(x, y))
    assert math.isnan(r) or r == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-9)


def test_what_does_not_vary_has_no_correlation() -> None:
    x, same = np.array([1.0, 2.0, 3.0]), np.array([0.1 + 0.2, 0.3, 0.3])
    for figure in (statistics.pearson, statistics.kendall):
        assert math.isnan(float(figure(x, np.full(3, 0.5))))
        assert math.isnan(float(figure(np.full(3, 0.5), x)))
        assert math.isnan(float(figure(x[:1], x[:1])))
    assert math.isnan(float(statistics.pearson(x, same)))  # rounding is no variation


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_quantiles_are_numpys(values: list[float], share: float) -> None:
    found = float(statistics.quantile(np.array(values), share))
    assert found == pytest.approx(float(np.quantile(values, share)), abs=1e-9)


def test_infinite_values_are_the_largest() -> None:
    values = np.array([math.inf, 1.0, 2.0, math.inf])
    assert float(statistics.quantile(values, 0.25)) == 1.75
    assert float(statistics.quantile(values, 0.5)) == math.inf
    assert float(statistics.quantile(values, 0.9)) == math.inf


def test_a_summary_is_what_a_slow_loop_finds() -> None:
    draw = np.random.default_rng(3)
    true = np.exp(draw.normal(size=14))
    predicted = true * np.exp(0.3 * draw.normal(size=14))
    regrets = draw.exponential(size=14)
    found = statistics.summary(list(true), list(predicted), list(regrets))
    errors = np.abs(np.log2(predicted / true))
    slow: dict[str, Any] = {
        "mean_regret": lambda i: regrets[i].mean(),
        "p90_regret": lambda i: np.quantile(regrets[i], 0.9),
        "pearson": lambda i: stats.pearsonr(true[i], predicted[i]).statistic,
        "pearson_log": lambda i: stats.pearsonr(np.log(true[i]), np.log(predicted[i])).statistic,
        "kendall": lambda i: stats.kendalltau(true[i], predicted[i]).statistic,
        "median_error": lambda i: np.median(errors[i]),
        "p90_error": lambda i: np.quantile(errors[i], 0.9),
    }
    assert set(found) == set(slow)
    drawn = np.random.default_rng(0).integers(14, size=(statistics.RESAMPLES, 14))
    for name, figure in slow.items():
        values = [figure(list(places)) for places in drawn]
        assert found[name].value == pytest.approx(figure(list(range(14))), rel=1e-9)
        assert found[name].low == pytest.approx(np.quantile(values, 0.025), rel=1e-9)
        assert found[name].high == pytest.approx(np.quantile(values, 0.975), rel=1e-9)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        figure = statistics.mean_and_p90(list(draw.exponential(size=40)))[0]
        assert figure.low is not None
        assert figure.high is not None
        covered += figure.low <= 1.0 <= figure.high
    assert 0.85 <= covered / 200 <= 0.99


def test_nothing_gives_nothing() -> None:
    for figure in statistics.summary([], [], []).values():
        assert figure.to_dict() == {"value": None, "low": None, "high": None}
