"""The reference: a law of powers fitted to the table itself, which no rule can be expected to beat."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from evenstep_research.study.external.curves import Numbers
from evenstep_research.study.external.scoring import best_rates
from evenstep_research.study.external.tables import Cell, Table

SIZES: Mapping[str, Callable[[Cell], float]] = {
    "width": lambda cell: cell.shape.width,
    "depth": lambda cell: cell.shape.layers,
    "batch": lambda cell: cell.batch or 1.0,
    "steps": lambda cell: cell.steps or 1,
}


def fitted_powers(table: Table, sizes: tuple[str, ...]) -> Mapping[str, float]:
    """Return the powers of sizes that fit the logarithms of best rates by least squares; what does not vary has 0."""
    logs = _logs(table, sizes)
    varies = np.ptp(logs, axis=0) > 0
    powers = np.zeros(len(sizes))
    if varies.any():
        design = np.column_stack([np.ones(len(logs)), logs[:, varies]])
        powers[varies] = np.linalg.lstsq(design, best_rates(table), rcond=None)[0][1:]
    return dict(zip(sizes, powers.tolist(), strict=True))


def law_transfers(table: Table, powers: Mapping[str, float]) -> Numbers:
    """Return the logarithms of a law's factors between all cells, bases by targets."""
    logs = _logs(table, tuple(powers)) @ np.array(list(powers.values()))
    answer: Numbers = logs[None, :] - logs[:, None]
    return answer


def _logs(table: Table, sizes: tuple[str, ...]) -> Numbers:
    return np.array([[math.log(SIZES[size](cell)) for size in sizes] for cell in table.cells])
