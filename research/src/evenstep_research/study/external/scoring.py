"""What carried rates cost on a table: from every cell to every other, and with one offset for the whole table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenstep_research.study.external.curves import Curve, Numbers
from evenstep_research.study.external.shapes import Shape
from evenstep_research.study.external.tables import Table


@dataclass(frozen=True)
class Score:
    """Hold regrets in the table's loss, and distances from the best rate in octaves.

    `outside` is the share of rates beyond those measured in their cell, whose regret is too low. Regrets are means over
    cells of two rates or more, None where there are none.
    """

    mean_regret: float | None
    worst_regret: float | None
    mean_octaves: float
    worst_octaves: float
    outside: float


@dataclass(frozen=True)
class TableScores:
    """Hold both ways to score a rule, and what the offsets were.

    `by_bases`: every cell once the base, its best rate carried to all others of its group. `by_offset`: the rule's
    factors times one number for the whole table, that of the least mean regret. `by_mean_offset`: the same with the
    number that is right on average over the logarithms of the best rates, which no regret was looked at for.
    """

    by_bases: Score
    by_offset: Score
    by_mean_offset: Score


def scores(table: Table, transfers: Numbers) -> TableScores:
    """Return the scores of factors, `transfers[base, target]` their logarithms.

    With an offset the factors are those from the table's first cell.
    """
    best = best_rates(table)
    carried = best[:, None] + transfers
    from_first = transfers[0]
    offset, mean_offset = best_offset(table, from_first), float(np.mean(best - from_first))
    return TableScores(
        _score(table, carried, pairs(table)),
        _score(table, (from_first + offset)[None, :]),
        _score(table, (from_first + mean_offset)[None, :]),
    )


def worst_octaves(table: Table, transfers: Numbers) -> Mapping[Shape, float]:
    """Return for every shape how far a rate carried to it lies from the best, at worst, over bases of other shapes."""
    best, carried = best_rates(table), pairs(table)
    distances = np.abs(best[:, None] + transfers - best[None, :]) / math.log(2)
    shapes = [cell.shape for cell in table.cells]
    worst: dict[Shape, float] = {}
    for base, target in zip(*np.nonzero(carried), strict=True):
        if shapes[base] != shapes[target]:
            shape = shapes[target]
            worst[shape] = max(worst.get(shape, 0.0), float(distances[base, target]))
    return dict(sorted(worst.items()))


def best_rates(table: Table) -> Numbers:
    """Return the logarithm of every cell's best rate."""
    return np.array([cell.curve.best(table.best_by) for cell in table.cells])


def pairs(table: Table) -> NDArray[np.bool_]:
    """Tell for every base and target whether a rate is carried: not to itself, and within a group."""
    groups = np.array([cell.group for cell in table.cells])
    answer: NDArray[np.bool_] = (groups[:, None] == groups[None, :]) & ~np.eye(len(groups), dtype=bool)
    return answer


def best_offset(table: Table, log_factors: Numbers) -> float:
    """Return what to add to all logarithms of factors for the least mean regret: exactly.

    The mean regret is made of straight lines that meet where some cell's rate is a measured one: one of these is it.
    """
    curves = [cell.curve for cell in table.cells if len(cell.curve.losses) > 1]
    factors = [value for cell, value in zip(table.cells, log_factors, strict=True) if len(cell.curve.losses) > 1]
    if not curves:
        return float(np.mean(best_rates(table) - log_factors))
    corners = np.unique(
        np.concatenate([np.array(curve.log_rates) - factor for curve, factor in zip(curves, factors, strict=True)])
    )
    total = sum(curve.regrets(corners + factor) for curve, factor in zip(curves, factors, strict=True))
    return float(corners[int(np.argmin(total))])


def _score(table: Table, log_rates: Numbers, counted: NDArray[np.bool_] | None = None) -> Score:
    """Return the score of rates, rows of one for every cell; with `counted`, of these alone."""
    used = np.ones(log_rates.shape, dtype=bool) if counted is None else counted
    octaves = np.abs(log_rates - best_rates(table)[None, :])[used] / math.log(2)
    has_curve = np.array([len(cell.curve.losses) > 1 for cell in table.cells])[None, :] & used
    regrets = _each(table, log_rates, Curve.regrets)[has_curve]
    return Score(
        float(regrets.mean()) if regrets.size else None,
        float(regrets.max()) if regrets.size else None,
        float(octaves.mean()) if octaves.size else 0.0,
        float(octaves.max()) if octaves.size else 0.0,
        float(_each(table, log_rates, Curve.outside)[used].mean()) if octaves.size else 0.0,
    )


def _each(table: Table, log_rates: Numbers, ask: Callable[[Curve, Numbers], NDArray[np.generic]]) -> Numbers:
    columns = [ask(cell.curve, log_rates[:, index]) for index, cell in enumerate(table.cells)]
    return np.stack(columns, axis=1).astype(np.float64)
