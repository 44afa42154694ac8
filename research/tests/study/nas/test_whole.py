"""Check what the whole table says: on tables made here, with answers known by hand, and on the published one."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from evenstep.errors import InputError
from evenstep.report.marks import filled
from evenstep_research.report.nas_table import MARKS, searches, seeds
from evenstep_research.spaces.cells import all_cells, cell_string, is_live
from evenstep_research.study.nas.algorithms import regularised_evolution
from evenstep_research.study.nas.table import NasBench201Table
from evenstep_research.study.nas.whole import BUDGETS, searches_stand, seeds_agree
from research.tests.study.nas.real import needs_table, real_table

ROOT = Path(__file__).parents[4]
CODES = [code for code in all_cells() if is_live(code)][:60]


def made_table() -> NasBench201Table:
    """Make a table: trial 1 orders cells as trial 0 does, trial 2 in reverse; some cells lack a trial."""
    order = [float(place) for place in range(len(CODES))]
    missing = [value if place % 3 else float("nan") for place, value in enumerate(order)]
    rows: dict[str, Any] = {
        "arch_str": [cell_string(code) for code in CODES],
        "test200_mean_cifar10": order,
        "test12_cifar10": [2 * value for value in order],
        "val12_cifar10": order,
        "val200_trial0_cifar10": order,
        "val200_trial1_cifar10": missing,
        "val200_trial2_cifar10": [-value for value in order],
    }
    return NasBench201Table.from_rows(rows)


def test_taus_between_seeds_are_of_cells_that_have_all_of_them() -> None:
    found = seeds_agree(made_table(), "cifar10", shares=[100, 5])
    assert (found["seeds"], found["n"]) == (3, 40)
    assert found["tau"][0] == {"share": 100, "n": 40, "tau": pytest.approx((1 - 1 - 1) / 3)}
    assert found["tau"][1] == {"share": 5, "n": 2, "tau": None}  # no tau of two cells
    with pytest.raises(InputError, match="the table has 0 seeds of cifar100"):
        seeds_agree(made_table(), "cifar100")


def test_searches_see_the_cheap_column_and_stand_by_the_others() -> None:
    (row,) = searches_stand(made_table(), "cifar10", budgets=[20], seeds=5)
    assert row["cells"] == len(CODES)
    assert {one["algorithm"] for one in row["standings"]} == {"random search", "regularised evolution"}
    for one in row["standings"]:
        assert one["before"] == pytest.approx(2 * one["after"])  # as the columns are


def test_evolution_evolves_however_small_its_budget() -> None:
    """Below its budget lies its population, so children of the best are asked for, not random cells alone."""
    scores = {code: float(code.count("3")) for code in all_cells()}
    for budget in (4, 8, 10, 20):
        visited = regularised_evolution(scores, budget=budget, draw=random.Random(1))
        start = min(10, budget // 2)
        for place in range(start, budget):
            alive = visited[place - start : place]
            child = visited[place]
            assert any(sum(a != b for a, b in zip(child, parent, strict=True)) == 1 for parent in alive)
    assert min(BUDGETS) > 10
    with pytest.raises(InputError, match="population is 10, the budget 8: nothing would evolve"):
        regularised_evolution(scores, budget=8, population=10, draw=random.Random(0))


@needs_table
def test_the_published_seeds_agree_as_another_implementation_says() -> None:
    table = real_table()
    found = seeds_agree(table, "cifar100", shares=[100])
    runs = [table.accuracies("cifar100", epochs=200, split="valid", seed=seed) for seed in range(3)]
    known = np.isfinite(runs).all(axis=0)
    assert found["n"] == known.sum() == 8169
    pairs = [kendalltau(runs[a][known], runs[b][known]).statistic for a, b in ((0, 1), (0, 2), (1, 2))]
    assert found["tau"][0]["tau"] == pytest.approx(np.mean(pairs))


def test_the_page_shows_the_record() -> None:
    record = json.loads((ROOT / "results" / "nas-table" / "record.json").read_text())
    page = (ROOT / "docs" / "nasbench201.md").read_text()
    assert filled(page, MARKS, record) == page, "write it anew: evenstep nas table TABLE --page docs/nasbench201.md"
    for text in (seeds(record), searches(record)):
        assert len({line.count("|") for line in text.splitlines()}) == 1
    assert [one["n"] for one in record["results"]["seeds"]] == [8169] * 3
