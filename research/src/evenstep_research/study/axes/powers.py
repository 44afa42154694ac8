"""The power of the batch, or of the length, that best rates go with: one for every line, and how lines differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from evenstep_research.study.axes.answers import LineAnswer

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Power:
    """Hold the power that the best rates of a line follow under one shape, fitted by least squares of logarithms.

    `misfit` is the root of the mean square, in octaves, by which best rates are off it.
    """

    axis: str
    optimizer: str
    shape: str
    kind: str
    rates: tuple[float, ...]
    power: float
    misfit: float


@dataclass(frozen=True)
class PowerSummary:
    """Hold the mean of lines' powers with its 95% interval by Student's t over lines, None for a single line."""

    axis: str
    optimizer: str
    shape: str
    n: int
    mean: float
    low: float | None
    high: float | None
    least: float
    most: float


def powers(lines: Sequence[LineAnswer]) -> tuple[Power, ...]:
    """Return the power of every line of batches or lengths whose best rates are known, for every shape."""
    return tuple(power for answer in lines if not answer.line.axis.of_size for power in _of_line(answer))


def _of_line(answer: LineAnswer) -> Iterator[Power]:
    line = answer.line
    for shape in line.axis.shapes:
        rates = [cell.curves[shape].rate if shape in cell.curves else None for cell in answer.cells]
        known = tuple(rate for rate in rates if rate is not None)
        if len(known) == len(line.axis.values):
            power, misfit = fitted(line.axis.values, known)
            yield Power(line.axis.name, line.optimizer, shape, line.kind, known, power, misfit)


def fitted(values: Sequence[float], rates: Sequence[float]) -> tuple[float, float]:
    """Return the power of `values` that `rates` follow, and the root mean square of what is left, in octaves.

    >>> power, misfit = fitted([4, 16, 64], [0.1, 0.2, 0.4])
    >>> round(power, 6), round(misfit, 6)
    (0.5, 0.0)
    """
    logs = np.log2(np.array([values, rates], dtype=float))
    slope, level = np.polyfit(logs[0], logs[1], 1)
    left = logs[1] - (slope * logs[0] + level)
    return float(slope), float(np.sqrt((left**2).mean()))


def summaries(found: Sequence[Power]) -> tuple[PowerSummary, ...]:
    """Return the mean power of every axis, optimiser and shape, over the kinds of networks."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for power in found:
        groups.setdefault((power.axis, power.optimizer, power.shape), []).append(power.power)
    return tuple(_summary(*key, values) for key, values in groups.items())


def _summary(axis: str, optimizer: str, shape: str, values: Sequence[float]) -> PowerSummary:
    count, mean, low, high = len(values), statistics.fmean(values), None, None
    if count > 1:
        error = statistics.stdev(values) / math.sqrt(count)
        reach = float(student.ppf(0.5 + CONFIDENCE / 2, count - 1)) * error
        low, high = mean - reach, mean + reach
    return PowerSummary(axis, optimizer, shape, count, mean, low, high, min(values), max(values))
