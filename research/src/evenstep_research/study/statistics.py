"""How well predicted learning rates match searched ones, with bootstrap intervals over architectures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Figure:
    """A statistic with its 95% bootstrap interval; None where it is not defined."""

    value: float | None
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Return plain values."""
        return {"value": self.value, "low": self.low, "high": self.high}


def summary(true: Sequence[float], predicted: Sequence[float], regrets: Sequence[float]) -> dict[str, Figure]:
    """Return all figures of one method over a family's architectures: regrets in nats, errors in octaves."""
    table = np.array([true, predicted, regrets], dtype=float)
    figures: dict[str, Callable[[Array], Array]] = {
        "mean_regret": lambda t: t[2].mean(axis=-1),
        "p90_regret": lambda t: quantile(t[2], 0.9),
        "pearson": lambda t: pearson(t[0], t[1]),
        "pearson_log": lambda t: pearson(np.log(t[0]), np.log(t[1])),
        "kendall": lambda t: kendall(t[0], t[1]),
        "median_error": lambda t: quantile(np.abs(np.log2(t[1] / t[0])), 0.5),
        "p90_error": lambda t: quantile(np.abs(np.log2(t[1] / t[0])), 0.9),
    }
    return {name: bootstrapped(table, figure) for name, figure in figures.items()}


def mean_and_p90(values: Sequence[float]) -> tuple[Figure, Figure]:
    """Return the mean and the 90% quantile of values."""
    table = np.array([values], dtype=float)
    return (
        bootstrapped(table, lambda t: t[0].mean(axis=-1)),
        bootstrapped(table, lambda t: quantile(t[0], 0.9)),
    )


def bootstrapped(table: Array, figure: Callable[[Array], Array], *, resamples: int = RESAMPLES) -> Figure:
    """Return a statistic of a table's columns with the interval of its values over columns drawn again.

    `figure` maps many tables at once, [rows, tables, columns], to their values [tables].
    """
    count = table.shape[1]
    if not count:
        return Figure(None, None, None)
    drawn = np.random.default_rng(0).integers(count, size=(resamples, count))
    value = float(figure(table[:, None, :])[0])
    values = figure(table[:, drawn])
    known = values[~np.isnan(values)]
    low, high = (float(quantile(known, q)) if len(known) else math.nan for q in (0.025, 0.975))
    return Figure(*(number if math.isfinite(number) else None for number in (value, low, high)))


def quantile(values: Array, share: float) -> Array:
    """Return a quantile over the last axis; infinite values are larger than all others."""
    ordered = np.sort(values, axis=-1)
    place = share * (ordered.shape[-1] - 1)
    below, above = ordered[..., math.floor(place)], ordered[..., math.ceil(place)]
    with np.errstate(invalid="ignore"):  # between two infinite values
        between = below + (place - math.floor(place)) * (above - below)
    return np.where(below == above, below, between)


def pearson(x: Array, y: Array) -> Array:
    """Return Pearson's r over the last axis, not a number where one side does not vary."""
    flat = [np.ptp(v, axis=-1) <= 1e-12 * np.abs(v).max(axis=-1) for v in (x, y)]
    x, y = (v - v.mean(axis=-1, keepdims=True) for v in (x, y))
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (x * y).sum(axis=-1) / np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    return np.where(flat[0] | flat[1], math.nan, r)


def kendall(x: Array, y: Array) -> Array:
    """Return Kendall's tau-b over the last axis, not a number where one side does not vary."""
    upper = np.triu_indices(x.shape[-1], 1)
    signs_x, signs_y = (np.sign(v[..., upper[0]] - v[..., upper[1]]) for v in (x, y))
    norm = np.sqrt(np.abs(signs_x).sum(axis=-1) * np.abs(signs_y).sum(axis=-1))
    with np.errstate(invalid="ignore"):
        return np.where(norm == 0, math.nan, (signs_x * signs_y).sum(axis=-1) / norm)


def to_dict(figures: dict[str, Figure]) -> dict[str, Any]:
    """Return figures as plain values."""
    return {name: figure.to_dict() for name, figure in figures.items()}
