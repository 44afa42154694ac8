"""Search algorithms run on a table of accuracies, and how their picks stand under another table."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from evenstep.errors import InputError
from evenstep_research.spaces.cells import neighbours
from evenstep_research.study.nas.analysis import kendall_tau

Accuracies = Mapping[str, float]
POPULATION = 10
TOURNAMENT = 3


@dataclass(frozen=True, slots=True)
class Search:
    """Hold one run of an algorithm: the cells in the order it asked for them, repeats included, and its pick."""

    algorithm: str
    seed: int
    visited: tuple[str, ...]
    pick: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"algorithm": self.algorithm, "seed": self.seed, "asked": len(self.visited), "pick": self.pick}


class Algorithm(Protocol):
    """A way of choosing which cells to ask a table for."""

    def __call__(self, accuracies: Accuracies, *, budget: int, draw: random.Random) -> tuple[str, ...]:
        """Return the cells asked for, `budget` of them."""


def random_search(accuracies: Accuracies, *, budget: int, draw: random.Random) -> tuple[str, ...]:
    """Ask for different cells, all equally likely."""
    known = _known(accuracies, budget)
    return tuple(draw.sample(known, min(budget, len(known))))


def regularised_evolution(
    accuracies: Accuracies,
    *,
    budget: int,
    draw: random.Random,
    population: int | None = None,
    tournament: int = TOURNAMENT,
) -> tuple[str, ...]:
    """Evolve a population whose oldest member dies at every step (Real et al., 2019).

    It starts from random cells: `population` of them, else 10, but no more than half of the budget. (A population as
    large as the budget would be random search.) Then, again and again: of `tournament` members, drawn with
    replacement, the best one is the parent; its child, which has another operator on one edge, joins as the youngest.
    In a table of a part of the space a child is drawn from the neighbours the table knows, and where it knows none,
    from all its cells.
    """
    known = _known(accuracies, budget)
    members = min(POPULATION, max(budget // 2, 1)) if population is None else population
    for name, value in (("population", members), ("tournament", tournament)):
        if value < 1:
            raise InputError(f"{name} is {value}; give at least 1")
    if 1 < budget <= members:
        raise InputError(
            f"population is {members}, the budget {budget}: nothing would evolve; give a smaller population"
        )
    visited = [draw.choice(known) for _ in range(members)]
    alive = deque(visited)
    while len(visited) < budget:
        parent = max((draw.choice(alive) for _ in range(tournament)), key=accuracies.__getitem__)
        child = draw.choice([code for code in neighbours(parent) if code in accuracies] or known)
        visited.append(child)
        alive.append(child)
        alive.popleft()
    return tuple(visited)


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {"random search": random_search, "regularised evolution": regularised_evolution}
)


def run_searches(
    accuracies: Accuracies, *, budget: int, seeds: Sequence[int], algorithms: Mapping[str, Algorithm] = ALGORITHMS
) -> tuple[Search, ...]:
    """Run every algorithm from every seed; the pick is the best cell asked for, the first of equals.

    `accuracies` are by the cells' six digits: what an algorithm sees, such as a validation column of the table.
    """
    found = []
    for name, algorithm in algorithms.items():
        for seed in seeds:
            visited = algorithm(accuracies, budget=budget, draw=random.Random(seed))
            found.append(Search(name, seed, visited, max(visited, key=accuracies.__getitem__)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Pick:
    """Hold a search's pick under two tables: accuracies, and ranks (1 is best) among the cells both know."""

    algorithm: str
    seed: int
    code: str
    before: float
    after: float
    rank_before: int
    rank_after: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Standing:
    """Hold the mean accuracy of an algorithm's picks under two tables, and its places (1 is best) among algorithms."""

    algorithm: str
    picks: int
    before: float
    after: float
    place_before: int
    place_after: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Reranking:
    """Hold what becomes of searches' picks under another table.

    `shared` is how many cells both tables know, `lost` the searches that asked for none of them. `tau` compares the
    order of the picks, each of the `distinct` cells once, under both; None where they are fewer than three.
    """

    shared: int
    picks: tuple[Pick, ...]
    standings: tuple[Standing, ...]
    tau: float | None
    lost: tuple[Search, ...]
    distinct: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "shared": self.shared,
            "distinct": self.distinct,
            "picks": [pick.to_dict() for pick in self.picks],
            "standings": [standing.to_dict() for standing in self.standings],
            "tau": self.tau,
            "lost": [search.to_dict() for search in self.lost],
        }


def rerank(searches: Sequence[Search], before: Accuracies, after: Accuracies) -> Reranking:
    """Compare the searches' picks under two tables, over the cells that both know.

    A search that picked a cell unknown to one of them stands with the best under `before` of those it asked for that
    both know.
    """
    shared = sorted(before.keys() & after.keys())
    if not shared:
        raise InputError("the two tables have no cell in common; give accuracies of the same architectures")
    values_before, values_after = ([table[code] for code in shared] for table in (before, after))
    picks, lost = [], []
    for search in searches:
        seen = [code for code in search.visited if code in before and code in after]
        if not seen:
            lost.append(search)
            continue
        code = search.pick if search.pick in seen else max(seen, key=before.__getitem__)
        ranks = _rank(before[code], values_before), _rank(after[code], values_after)
        picks.append(Pick(search.algorithm, search.seed, code, before[code], after[code], *ranks))
    codes = sorted({pick.code for pick in picks})
    tau = kendall_tau([before[code] for code in codes], [after[code] for code in codes])
    return Reranking(len(shared), tuple(picks), _standings(picks), tau, tuple(lost), len(codes))


def _standings(picks: Sequence[Pick]) -> tuple[Standing, ...]:
    of = {
        name: [pick for pick in picks if pick.algorithm == name] for name in dict.fromkeys(p.algorithm for p in picks)
    }
    before = {name: sum(pick.before for pick in own) / len(own) for name, own in of.items()}
    after = {name: sum(pick.after for pick in own) / len(own) for name, own in of.items()}
    return tuple(
        Standing(
            name,
            len(own),
            before[name],
            after[name],
            _rank(before[name], list(before.values())),
            _rank(after[name], list(after.values())),
        )
        for name, own in of.items()
    )


def _rank(value: float, values: Sequence[float]) -> int:
    """Return the place of a value from the largest, 1; equals share the better place."""
    return 1 + sum(other > value for other in values)


def _known(accuracies: Accuracies, budget: int) -> list[str]:
    if budget < 1:
        raise InputError(f"budget is {budget}; give at least 1")
    if not accuracies:
        raise InputError("the table of accuracies is empty; give at least one architecture")
    # Sorted: what is drawn must depend on the seed, not on the order the table was written in.
    return sorted(accuracies)
