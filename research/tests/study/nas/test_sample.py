"""Check samples: spread over the range, alive, of different classes, and the seed's alone."""

import random
from typing import Any

import pytest

from evenstep.errors import InputError
from evenstep_research.spaces.cells import all_cells, canonical_cell, is_live
from evenstep_research.study.nas.sample import sample_of_table, spread_sample
from evenstep_research.study.nas.table import NasBench201Table
from research.tests.study.nas.real import needs_table, real_table

# Six live cells of six classes, from the worst to the best, and two dead ones.
LADDER = {"000100": 20.0, "000400": 30.0, "000200": 40.0, "000300": 50.0, "200202": 60.0, "300303": 70.0}
DEAD = {"333000": 10.0, "000000": 99.0}


def test_the_made_cells_are_as_said() -> None:
    assert len({canonical_cell(code) for code in LADDER}) == 6
    assert all(map(is_live, LADDER))
    assert not any(map(is_live, DEAD))


def test_one_of_each_quantile_from_the_lowest_to_the_highest() -> None:
    everything = LADDER | DEAD
    assert spread_sample(everything, 6, draw=random.Random(0)) == tuple(LADDER)
    names = list(LADDER)
    for seed in range(30):
        low, middle, high = spread_sample(everything, 3, draw=random.Random(seed))
        assert low in names[:2]
        assert middle in names[2:4]
        assert high in names[4:]
    assert {spread_sample(everything, 1, draw=random.Random(seed))[0] for seed in range(60)} == set(names)


def test_of_a_class_one_cell_is_drawn_and_either_can_be() -> None:
    same = {"100030": 51.0, "000300": 50.0}
    assert len({canonical_cell(code) for code in same}) == 1
    drawn = [spread_sample(LADDER | same, 6, draw=random.Random(seed)) for seed in range(30)]
    for codes in drawn:
        assert len({canonical_cell(code) for code in codes}) == 6
    assert {code for codes in drawn for code in codes} == LADDER.keys() | same.keys()


def test_a_sample_follows_its_seed_not_the_order_of_rows() -> None:
    values = {code: float(int(code, 5) % 97) for code in list(all_cells())[::47]}
    backwards = dict(reversed(values.items()))
    first = spread_sample(values, 20, draw=random.Random(7))
    assert first == spread_sample(backwards, 20, draw=random.Random(7))
    assert first != spread_sample(values, 20, draw=random.Random(8))
    assert [values[code] for code in first] == sorted(values[code] for code in first)


@pytest.mark.parametrize("count", [0, -3])
def test_a_count_below_one_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=f"count is {count}; give at least 1"):
        spread_sample(LADDER, count, draw=random.Random(0))


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match="count is 7, but there are 6 live cells that differ"):
        spread_sample(LADDER | DEAD, 7, draw=random.Random(0))


def test_a_table_is_sampled_without_miscounted_cells() -> None:
    rows: dict[str, list[Any]] = {
        "arch_str": ["000100", "000200", "000300"],
        "test12_cifar10": [20.0, 40.0, 60.0],
        "val200_trial0_cifar10": [60.0, 40.0, None],
        "params_M_cifar10": [0.073306, 0.101306, 0.073306],  # the last is not its network's
    }
    table = NasBench201Table.from_rows(rows)
    assert sample_of_table(table, 2, draw=random.Random(0)) == ("000100", "000200")
    with pytest.raises(InputError, match="there are 2 live cells"):
        sample_of_table(table, 3, draw=random.Random(0))
    with pytest.raises(InputError, match="no accuracies of cifar100"):
        sample_of_table(table, 1, draw=random.Random(0), dataset="cifar100")


@needs_table
def test_24_of_the_published_table_cover_its_range_and_16_of_them_do_too() -> None:
    table = real_table()
    known = table.by_code("cifar10", epochs=12)
    codes = sample_of_table(table, 24, draw=random.Random(0))
    assert len({canonical_cell(code) for code in codes}) == 24
    assert all(map(is_live, codes))
    assert not table.miscounted() & set(codes)
    values = sorted(known[code] for code in codes)
    alive = sorted(value for code, value in known.items() if is_live(code))
    assert values[0] < alive[len(alive) // 10]
    assert values[-1] > alive[-len(alive) // 10]
    fewer = spread_sample({code: known[code] for code in codes}, 16, draw=random.Random(0))
    assert set(fewer) < set(codes)
    assert len(fewer) == 16
    assert min(known[code] for code in fewer) <= values[1]
    assert max(known[code] for code in fewer) >= values[-2]
