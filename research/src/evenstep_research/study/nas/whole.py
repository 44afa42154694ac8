"""What the whole published table says without training: how far seeds agree, and which search finds better cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenstep.errors import InputError
from evenstep_research.study.nas.algorithms import rerank, run_searches
from evenstep_research.study.nas.analysis import TOP_SHARES, agreement
from evenstep_research.study.nas.table import DATASETS, NasBench201Table

EPOCHS = 200  # the published seeds are of the long training
SEARCH_EPOCHS = 12
BUDGETS = (30, 100, 300)  # cells that a search may ask for, all above evolution's population
SEARCHES = 50  # seeds of every algorithm
_NAME = "the table"


def seeds_agree(table: NasBench201Table, dataset: str, *, shares: Sequence[float] = TOP_SHARES) -> dict[str, Any]:
    """Return Kendall's tau between the published seeds over the top K%, of cells that have all of them (`fig:seeds`).

    Cells are ranked by published test accuracy. On CIFAR-10 that is of other trainings, so the top is not chosen by
    the seeds compared; on the other data sets it is of the same trainings, on other images.
    """
    seeds = table.seeds(dataset, epochs=EPOCHS, split="valid")
    if len(seeds) < 2:
        raise InputError(
            f"the table has {len(seeds)} seeds of {dataset} after {EPOCHS} epochs; give one with 2 or more"
        )
    runs = np.stack([table.accuracies(dataset, epochs=EPOCHS, split="valid", seed=seed) for seed in seeds], axis=1)
    ranking = table.accuracies(dataset, epochs=EPOCHS)
    known = np.isfinite(runs).all(axis=1) & np.isfinite(ranking)
    points = agreement({_NAME: runs[known]}, ranking=ranking[known], shares=shares)
    return {
        "data": dataset,
        "seeds": len(seeds),
        "n": int(known.sum()),
        "spread": float(runs[known].std(axis=1, ddof=1).mean()),
        "tau": [{"share": point.share, "n": point.count, "tau": point.within[_NAME]} for point in points],
    }


def searches_stand(
    table: NasBench201Table, dataset: str, *, budgets: Sequence[int] = BUDGETS, seeds: int = SEARCHES
) -> list[dict[str, Any]]:
    """Return how searches over all cells by validation accuracy after 12 epochs stand by test accuracy, 12 and 200.

    What is compared is what a search finds in the table's cheap column under its expensive one.
    """
    seen = table.by_code(dataset, epochs=SEARCH_EPOCHS, split="valid")
    before, after = (table.by_code(dataset, epochs=epochs) for epochs in (SEARCH_EPOCHS, EPOCHS))
    rows = []
    for budget in budgets:
        ranked = rerank(run_searches(seen, budget=budget, seeds=range(seeds)), before, after)
        standings: list[Mapping[str, Any]] = [standing.to_dict() for standing in ranked.standings]
        rows.append(
            {
                "data": dataset,
                "cells": ranked.shared,
                "budget": budget,
                "seeds": seeds,
                "standings": standings,
                "tau": ranked.tau,
                "distinct": ranked.distinct,
            }
        )
    return rows


def whole_table(table: NasBench201Table) -> dict[str, Any]:
    """Return both studies for every data set of a table."""
    return {
        "seeds": [seeds_agree(table, dataset) for dataset in DATASETS],
        "searches": [row for dataset in DATASETS for row in searches_stand(table, dataset)],
    }
