"""Check scores of whole tables against slow, literal loops, and laws against tables made by one."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import pytest

from evenstep_research.study.external.fitted_law import fitted_powers, law_transfers
from evenstep_research.study.external.scoring import best_offset, scores, worst_octaves
from evenstep_research.study.external.tables import Table
from research.tests.study.external.made_up import noisy_table, table
from research.tests.study.external.test_curves import slow_regret


def points_of(made: Table, index: int) -> list[tuple[float, float]]:
    curve = made.cells[index].curve
    return [(math.exp(rate), loss) for rate, loss in zip(curve.log_rates, curve.losses, strict=True)]


def best_of(made: Table, index: int) -> float:
    return math.exp(made.cells[index].curve.best(made.best_by))


@pytest.mark.parametrize("seed", range(10))
def test_scores_are_those_of_loops_over_bases_and_targets(seed: int) -> None:
    made, draw = noisy_table(seed, groups=1 + seed % 2), random.Random(seed)
    count = len(made.cells)
    factors = [[2 ** draw.uniform(-3, 3) for _ in range(count)] for _ in range(count)]
    found = scores(made, np.log(factors))
    regrets, octaves, beyond = [], [], []
    for base, target in product(range(count), repeat=2):
        if base == target or made.cells[base].group != made.cells[target].group:
            continue
        rate, points = best_of(made, base) * factors[base][target], points_of(made, target)
        octaves.append(abs(math.log2(rate / best_of(made, target))))
        beyond.append(not min(points)[0] <= rate <= max(points)[0])
        if len(points) > 1:
            regrets.append(slow_regret(points, rate))
    score = found.by_bases
    assert score.mean_regret == pytest.approx(sum(regrets) / len(regrets))
    assert score.worst_regret == pytest.approx(max(regrets))
    assert (score.mean_octaves, score.worst_octaves) == pytest.approx((sum(octaves) / len(octaves), max(octaves)))
    assert score.outside == pytest.approx(sum(beyond) / len(beyond))


@pytest.mark.parametrize("seed", range(10))
def test_no_offset_of_a_fine_grid_is_better(seed: int) -> None:
    made, draw = noisy_table(seed), random.Random(seed)
    factors = [2 ** draw.uniform(-3, 3) for _ in made.cells]

    def mean_regret(offset: float) -> float:
        several = [index for index, cell in enumerate(made.cells) if len(cell.curve.losses) > 1]
        return sum(slow_regret(points_of(made, i), math.exp(offset) * factors[i]) for i in several) / len(several)

    found = best_offset(made, np.log(factors))
    least = mean_regret(found)
    assert least <= min(mean_regret(offset) for offset in np.linspace(-14, 2, 500)) + 1e-9
    transfers = np.log(factors)[None, :] - np.log(factors)[:, None]
    assert scores(made, transfers).by_offset.mean_regret == pytest.approx(least)
    assert scores(made, transfers).by_mean_offset.mean_regret >= least - 1e-9  # type: ignore[operator]


def test_a_law_is_found_again_and_costs_nothing() -> None:
    made = table(
        lambda shape, batch, steps: 0.3 - 0.7 * math.log(shape.width) + 0.4 * math.log(batch) - 0.1 * math.log(steps)
    )
    powers = fitted_powers(made, ("width", "depth", "batch", "steps"))
    assert powers == pytest.approx({"width": -0.7, "depth": 0.0, "batch": 0.4, "steps": -0.1})
    found = scores(made, law_transfers(made, powers))
    for score in (found.by_bases, found.by_offset, found.by_mean_offset):
        assert score.worst_regret == pytest.approx(0, abs=1e-9)
        assert score.worst_octaves == pytest.approx(0, abs=1e-9)


def test_octaves_by_shape_leave_out_bases_of_the_same_shape() -> None:
    made = table(lambda shape, batch, steps: -math.log2(shape.width) * math.log(2) + (math.log(8) if batch > 8 else 0))
    worst = worst_octaves(made, np.zeros((len(made.cells), len(made.cells))))
    assert {shape.width: octaves for shape, octaves in worst.items()} == pytest.approx({16: 5, 32: 4, 64: 5})


def test_a_table_of_single_rates_has_octaves_and_no_regret() -> None:
    noisy = noisy_table(0)
    lonely = Table("lonely", "adam", (noisy.cells[0], noisy.cells[0]))
    found = scores(lonely, np.log([[1.0, 4.0], [0.25, 1.0]]))
    assert found.by_bases.mean_regret is None
    assert found.by_bases.mean_octaves == pytest.approx(2)
    assert found.by_offset.mean_octaves == pytest.approx(1)  # between both
