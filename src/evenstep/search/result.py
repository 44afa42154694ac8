"""What a search for the base's learning rate found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from evenstep.graph import Graph

Status = Literal["ok", "best_at_edge", "all_diverged"]


@dataclass(frozen=True)
class LRSearch:
    """Hold the searched learning rates, ascending, the loss of every seed at each (infinite where it diverged).

    `best` is the largest rate whose mean loss is within the seeds' noise of the smallest, the paper's 'maximal learning
    rate which achieves the smallest training loss'; `bracket` are its neighbours on the grid; `graph` is the network
    that was searched, so that a plan can relate another network to it.
    """

    grid: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    best: float
    bracket: tuple[float, float]
    status: Status
    graph: Graph

    @property
    def mean_losses(self) -> tuple[float, ...]:
        """The mean loss over seeds at every rate; infinite where any seed diverged."""
        return tuple(sum(seeds) / len(seeds) for seeds in self.losses)


def chosen(grid: tuple[float, ...], losses: tuple[tuple[float, ...], ...], graph: Graph) -> LRSearch:
    """Choose the best rate of a finished grid."""
    means = [sum(seeds) / len(seeds) for seeds in losses]
    if not any(math.isfinite(mean) for mean in means):
        return LRSearch(grid, losses, math.nan, (math.nan, grid[0]), "all_diverged", graph)
    lowest = min(range(len(grid)), key=lambda i: means[i])
    allowed = means[lowest] + _standard_error(losses[lowest])
    best = max(i for i in range(len(grid)) if means[i] <= allowed)
    at_edge = best in (0, len(grid) - 1)
    bracket = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    return LRSearch(grid, losses, grid[best], bracket, "best_at_edge" if at_edge else "ok", graph)


def _standard_error(values: tuple[float, ...]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
