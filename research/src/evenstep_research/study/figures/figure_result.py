"""A figure measured: correlations beside the paper's, and how far seeds agree on every rate."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

from evenstep_research.study.figures.catalogue import PaperFigure
from evenstep_research.study.transfer.benchmark import FamilyResult
from evenstep_research.study.transfer.measure import Measured, best_rate

RULES = ("paths", "paths+2", "weighted")


def meanings(rates: str) -> Mapping[str, str]:
    """Return what the methods of a figure's table are called, by what layers trained at.

    Only at one rate for all layers are the paper's rates the paper's method; else they multiply our layer factors.

    >>> meanings("one")["paths"]
    "the paper's method"
    """
    whose = "the paper's method" if rates == "one" else "the paper's rates, our layer factors"
    ours = "our topology factor alone" if rates == "one" else "ours"
    return {
        "constant": "the base's rate (`constant`)",
        "paths": whose,
        "paths+2": f"{whose}, authors' depth",
        "authors": f"{whose}, authors' depth and base",
        "weighted": ours,
    }


@dataclass(frozen=True)
class FigureResult:
    """Hold a figure of the paper and what was measured of its networks."""

    figure: PaperFigure
    family_result: FamilyResult

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "study": self.figure.name,
            "label": self.figure.label,
            "paper_r": self.figure.paper_r,
            **self.family_result.to_dict(),
            "spread": {
                measured.architecture.name: spread_over_seeds(measured) for measured in self.family_result.known
            },
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat row for every architecture."""
        spreads = {measured.architecture.name: spread_over_seeds(measured) for measured in self.family_result.known}
        return [row | {"spread, octaves": spreads.get(row["name"])} for row in self.family_result.rows()]


def spread_over_seeds(measured: Measured) -> float:
    """Return the standard deviation, in octaves, of the rates that each seed alone would have found."""
    seeds = max(len(losses) for losses in measured.curve.values())
    alone = [
        log2(best_rate({lr: (losses[seed],) for lr, losses in measured.curve.items() if len(losses) > seed}))
        for seed in range(seeds)
    ]
    return statistics.stdev(alone) if len(alone) > 1 else 0.0
