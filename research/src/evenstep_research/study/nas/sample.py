"""Architectures to train: a few, spread over the benchmark's range of accuracy."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise

from evenstep.errors import InputError
from evenstep_research.spaces.cells import canonical_cell, cell_digits, is_live
from evenstep_research.study.nas.table import NasBench201Table


def spread_sample(accuracies: Mapping[str, float], count: int, *, draw: random.Random) -> tuple[str, ...]:
    """Return `count` cells from the lowest accuracy to the highest, one of each of so many equally full quantiles.

    Dead cells are left out, and of cells with the same `canonical_cell` one is kept, all equally likely. The sample of
    a sample is spread too: the 16 architectures of one study can be among the 24 of another.
    """
    if count < 1:
        raise InputError(f"count is {count}; give at least 1")
    kept: dict[str, str] = {}
    order = sorted(accuracies)
    draw.shuffle(order)
    for code in order:
        if is_live(code):
            kept.setdefault(canonical_cell(code), code)
    ranked = sorted(kept.values(), key=lambda code: (accuracies[code], code))
    if count > len(ranked):
        raise InputError(f"count is {count}, but there are {len(ranked)} live cells that differ; give at most that")
    ends = [round(place * len(ranked) / count) for place in range(count + 1)]
    return tuple(cell_digits(draw.choice(ranked[low:high])) for low, high in pairwise(ends))


def sample_of_table(
    table: NasBench201Table,
    count: int,
    *,
    draw: random.Random,
    dataset: str = "cifar10",
    epochs: int = 12,
    split: str = "test",
) -> tuple[str, ...]:
    """Return cells spread over a column of a table, without those whose figures are another network's in part."""
    known, leave = table.by_code(dataset, epochs=epochs, split=split), table.miscounted()
    return spread_sample({code: value for code, value in known.items() if code not in leave}, count, draw=draw)
