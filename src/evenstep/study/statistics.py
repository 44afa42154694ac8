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
    """Return all figures of one method over a family's architectures; regrets in nats, infinite where one diverged."""
    table = np.array([true, predicted, regrets], dtype=float)
    figures: dict[str, Callable[[Array], float]] = {
        "mean_regret": lambda t: float(t[2].mean()),
        "p90_regret": lambda t: quantile(t[2], 0.9),
        "pearson": lambda t: pearson(t[0], t[1]),
        "pearson_log": lambda t: pearson(np.log(t[0]), np.log(t[1])),
        "kendall": lambda t: kendall(t[0], t[1]),
        "median_error": lambda t: quantile(np.abs(np.log2(t[1] / t[0])), 0.5),
        "p90_error": lambda t: quantile(np.abs(np.log2(t[1] / t[0])), 0.9),
    }
    return {name: bootstrapped(table, figure) for name, figure in figures.items()}


def bootstrapped(table: Array, figure: Callable[[Array], float], *, resamples: int = RESAMPLES) -> Figure:
    """Return a statistic of a table's columns with the interval of its values over columns drawn again."""
    if not table.shape[1]:
        return Figure(None, None, None)
    draw = np.random.default_rng(0)
    places = draw.integers(table.shape[1], size=(resamples, table.shape[1]))
    values = [figure(table[:, place]) for place in places]
    known = [value for value in values if not math.isnan(value)]
    low, high = (quantile(np.array(known), q) for q in (0.025, 0.975)) if known else (math.nan, math.nan)
    return Figure(*(_number(value) for value in (figure(table), low, high)))


def quantile(values: Array, share: float) -> float:
    """Return a quantile; infinite values are larger than all others."""
    ordered = np.sort(values)
    place = share * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return float(below if below == above else below + (place - math.floor(place)) * (above - below))


def pearson(x: Array, y: Array) -> float:
    """Return Pearson's r, not a number where one side does not vary."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) <= 1e-12 * abs(y).max():
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def kendall(x: Array, y: Array) -> float:
    """Return Kendall's tau-b, not a number where one side does not vary."""
    if len(x) < 2:
        return math.nan
    upper = np.triu_indices(len(x), 1)
    signs_x, signs_y = (np.sign(v[:, None] - v[None, :])[upper] for v in (x, y))
    norm = math.sqrt(float(np.abs(signs_x).sum()) * float(np.abs(signs_y).sum()))
    return float((signs_x * signs_y).sum()) / norm if norm else math.nan


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def to_dict(figures: dict[str, Figure]) -> dict[str, Any]:
    """Return figures as plain values."""
    return {name: figure.to_dict() for name, figure in figures.items()}
