"""Check the search algorithms on tables with known answers, and the standing of their picks under another table."""

import json
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from evenstep.errors import InputError
from evenstep_research.spaces.cells import all_cells, neighbours
from evenstep_research.study.nas.algorithms import (
    ALGORITHMS,
    Search,
    random_search,
    regularised_evolution,
    rerank,
    run_searches,
)
from research.tests.study.nas.real import needs_table, real_table

# A hill: each 3 in the code is one step up, so that one mutation at a time leads to the top.
HILL = {code: float(code.count("3")) for code in all_cells()}


def test_random_search_asks_for_different_cells_equally_often() -> None:
    some = {code: HILL[code] for code in list(HILL)[::1563]}
    assert len(some) == 10
    asked = [random_search(some, budget=4, draw=random.Random(seed)) for seed in range(1000)]
    assert all(len(set(codes)) == 4 for codes in asked)
    counts = Counter(code for codes in asked for code in codes)
    assert counts.keys() == some.keys()
    assert all(330 < count < 470 for count in counts.values())  # 400, give or take 4.5 deviations
    assert sorted(random_search(some, budget=99, draw=random.Random(0))) == sorted(some)


def test_evolution_climbs_a_hill_that_chance_does_not() -> None:
    evolved = [max(HILL[code] for code in _evolve(seed, budget=300)) for seed in range(5)]
    drawn = [max(HILL[code] for code in random_search(HILL, budget=300, draw=random.Random(s))) for s in range(5)]
    assert min(evolved) >= 5
    assert sum(evolved) > sum(drawn)


def _evolve(seed: int, **options: Any) -> tuple[str, ...]:
    return regularised_evolution(HILL, draw=random.Random(seed), **options)


def test_every_child_is_one_change_from_a_member_alive_then() -> None:
    visited = _evolve(1, budget=120, population=7, tournament=2)
    assert len(visited) == 120
    for place in range(7, 120):
        alive = visited[place - 7 : place]  # the oldest dies as the youngest joins
        assert any(visited[place] in neighbours(parent) for parent in alive)


def test_the_oldest_dies_however_good_it_is() -> None:
    # In a population of one the parent is always the last child: a walk, which a rule that kept the best is not.
    visited = _evolve(2, budget=60, population=1, tournament=5)
    for before, after in pairwise(visited):
        assert after in neighbours(before)
    assert any(HILL[after] < HILL[before] for before, after in pairwise(visited))


def test_the_best_of_a_tournament_is_the_parent() -> None:
    # Drawn often enough, the whole population takes part: every child is a change of the best alive.
    visited = _evolve(3, budget=60, population=4, tournament=200)
    for place in range(4, 60):
        alive = visited[place - 4 : place]
        best = max(HILL[code] for code in alive)
        assert any(visited[place] in neighbours(code) for code in alive if HILL[code] == best)


def test_in_a_part_of_the_space_only_known_cells_are_asked_for() -> None:
    part = {"333333": 1.0, "333330": 2.0, "000000": 3.0}  # the last is no neighbour of the others
    visited = regularised_evolution(part, budget=200, draw=random.Random(0))
    assert set(visited) == set(part)


def test_searches_follow_their_seed_not_the_order_of_the_table() -> None:
    backwards = dict(reversed(HILL.items()))
    first = run_searches(HILL, budget=30, seeds=[0, 1])
    assert first == run_searches(backwards, budget=30, seeds=[0, 1])
    assert [(search.algorithm, search.seed) for search in first] == [(name, s) for name in ALGORITHMS for s in (0, 1)]
    assert first[0].visited != first[1].visited
    for search in first:
        assert len(search.visited) == 30
        assert HILL[search.pick] == max(HILL[code] for code in search.visited)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values())
def test_bad_budgets_and_empty_tables_are_refused(algorithm: Any) -> None:
    with pytest.raises(InputError, match="budget is 0; give at least 1"):
        algorithm(HILL, budget=0, draw=random.Random(0))
    with pytest.raises(InputError, match="the table of accuracies is empty"):
        algorithm({}, budget=1, draw=random.Random(0))


@pytest.mark.parametrize("name", ["population", "tournament"])
def test_bad_options_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 0; give at least 1"):
        _evolve(0, budget=10, **{name: 0})


BEFORE = {"000001": 60.0, "000002": 70.0, "000003": 80.0, "000004": 90.0, "444444": 99.0}
AFTER = {"000001": 65.0, "000002": 85.0, "000003": 82.0, "000004": 81.0, "111111": 99.0}


def test_a_reranking_known_by_hand() -> None:
    searches = [
        Search("a", 0, ("000001", "000004"), "000004"),
        Search(
            "a", 1, ("444444", "000003", "000001"), "444444"
        ),  # the pick is unknown afterwards: 000003 stands for it
        Search("b", 0, ("000002", "000001"), "000002"),
        Search("b", 1, ("444444",), "444444"),
    ]
    result = rerank(searches, BEFORE, AFTER)
    assert result.shared == 4
    rows = [(p.algorithm, p.seed, p.code, p.before, p.after, p.rank_before, p.rank_after) for p in result.picks]
    assert rows == [
        ("a", 0, "000004", 90.0, 81.0, 1, 3),
        ("a", 1, "000003", 80.0, 82.0, 2, 2),
        ("b", 0, "000002", 70.0, 85.0, 3, 1),
    ]
    assert result.lost == (searches[3],)
    a, b = result.standings
    assert (a.algorithm, a.picks, a.before, a.after, a.place_before, a.place_after) == ("a", 2, 85.0, 81.5, 1, 2)
    assert (b.algorithm, b.picks, b.before, b.after, b.place_before, b.place_after) == ("b", 1, 70.0, 85.0, 2, 1)
    assert result.tau == pytest.approx(-1)
    text = json.loads(json.dumps(result.to_dict()))
    assert text["picks"][0]["rank_after"] == 3
    assert text["lost"][0]["pick"] == "444444"


def test_equals_share_the_better_rank_and_a_cell_counts_once() -> None:
    searches = [Search("a", seed, ("000001",), "000001") for seed in range(3)]
    result = rerank(searches, {"000001": 1.0, "000002": 1.0}, {"000001": 1.0, "000002": 2.0})
    assert [(pick.rank_before, pick.rank_after) for pick in result.picks] == [(1, 2)] * 3
    assert result.tau is None


def test_tables_without_a_cell_in_common_are_refused() -> None:
    with pytest.raises(InputError, match="no cell in common"):
        rerank([], {"000001": 1.0}, {"000002": 1.0})


@needs_table
def test_searches_on_the_published_table_beat_its_median_and_evolution_beats_chance() -> None:
    table = real_table()
    seen = table.by_code("cifar10", epochs=12, split="valid")
    final = table.by_code("cifar10", epochs=200)
    searches = run_searches(seen, budget=100, seeds=range(20))
    result = rerank(searches, seen, final)
    assert result.shared == 15_625
    assert not result.lost
    by_name = {standing.algorithm: standing for standing in result.standings}
    assert by_name["regularised evolution"].before > by_name["random search"].before
    median = sorted(final.values())[len(final) // 2]
    assert all(standing.after > median for standing in result.standings)
    for pick in result.picks:
        assert pick.before == seen[pick.code]
        assert pick.after == final[pick.code]
        assert pick.rank_after == 1 + sum(value > pick.after for value in final.values())
