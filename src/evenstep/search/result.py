"""The result of a search: the learning rate, its interval, and the evidence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, cast, get_args

from evenstep.errors import SearchError
from evenstep.graph import Graph
from evenstep.planning.optimizers import choice_from
from evenstep.rules import OPTIMIZERS
from evenstep.search import plain_values
from evenstep.search.grid import OCTAVE, parabola_minimum, rate_at
from evenstep.search.picture import plot_search, search_html
from evenstep.search.uncertainty import minimum_interval

Status = Literal["ok", "best_at_edge", "learnt_nothing", "all_diverged"]
WIDE = 8.0  # ratio of an interval's ends above which it says little
_REMEDY = "make it again: evenstep search file.py:function --json > base.json, or search.to_dict()"


@dataclass(frozen=True)
class LRSearch:
    """Hold the learning rate that a search found, and the evidence for it.

    `rate` is the answer, from which plans start. `interval` contains the rate of the smallest loss at 95% confidence.
    It widens where the curve is noisy, jagged or flat, and is never narrower than the grid.

    The evidence:

    - `grid`: the rates tried, ascending; `losses`: the loss of every seed at each, infinite where it diverged.
    - `estimate`: the minimum of a parabola through the smallest losses, in log-log, if there is one.
    - `best`: the largest rate on the grid whose mean loss is within the seeds' noise of the smallest, the paper's
      'maximal learning rate which achieves the smallest training loss'; `bracket`: its neighbours on the grid.
    - `untrained`: the mean loss that the seeds start with, or that of guessing if it is lower.
    - `status`: `learnt_nothing` if the smallest loss is not below `untrained` by more than twice the standard error of
      the difference over seeds, and by more than a thousandth of it (one seed has no spread).

    What was searched:

    - `graph`: the network, so that a plan can relate another network to it; `network`: what it is, if it was taken out
      of another; `shrink`: the sizes it was made with, if any were given.
    - `rule`: the rule whose factors single layers trained with. A rate found with factors of width does not fit a rule
      without them.
    - `optimizer`, `optimizer_options`: the optimiser's name, and its class and settings if they were given.
    - `steps`, `batch_size`: the steps of each trial, and the examples per step.
    """

    grid: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    best: float
    bracket: tuple[float, float]
    status: Status
    graph: Graph
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    rule: str | None = None
    optimizer: str | None = None
    untrained: float | None = None
    optimizer_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    steps: int | None = None
    shrink: Mapping[str, Any] | None = field(default=None, hash=False)
    network: str = ""
    batch_size: int | None = None

    @property
    def rate(self) -> float:
        """The learning rate that plans start from: the estimate, or the best rate if there is none."""
        return self.best if self.estimate is None else self.estimate

    @property
    def words(self) -> str:
        """What was searched, in one line for plans; empty for the user's own network."""
        if not self.network:
            return ""
        runs = sum(map(len, self.losses))
        examples = "" if self.batch_size is None else f" on {self.batch_size} examples"
        return f"base: {self.network}; rate {self.rate:.3g} by {runs} runs of {self.steps} steps{examples}"

    @property
    def is_vague(self) -> bool:
        """Whether the interval is too wide to be useful."""
        return self.interval is not None and self.interval[1] > WIDE * self.interval[0]

    @property
    def remark(self) -> str:
        """What to know before relying on the rate: that the evidence is weak or contradictory; else empty."""
        if self.interval is None or not math.isfinite(self.best):
            return ""
        low, high = self.interval
        if not low <= self.best <= high:
            return (
                f"the largest rate that ends within the seeds' spread of the smallest loss is {self.best:.3g}, outside "
                "this interval"
            )
        if self.is_vague:
            return (
                f"the interval spans a factor of {high / low:.2g}: the curve is flat or noisy; train longer, or search "
                "with more seeds"
            )
        return ""

    def __str__(self) -> str:
        """Return the rate and its interval, in one or two lines."""
        if not math.isfinite(self.rate):
            return f"no rate: every trial diverged at all {len(self.grid)} rates tried"
        interval = "" if self.interval is None else f", between {self.interval[0]:.4g} and {self.interval[1]:.4g} (95%)"
        kind = "" if self.optimizer is None else f" for {self.optimizer}"
        words = f"learning rate {self.rate:.4g}{kind}{interval}"
        if self.status != "ok":
            words += f"; status {self.status}, so plans refuse it"
        return f"{words}\nnote: {self.remark}" if self.remark else words

    def plot(self, axes: Any = None) -> Any:
        """Draw loss over learning rate with matplotlib, on `axes` or on new ones, and return the axes."""
        return plot_search(self, axes)

    def _repr_html_(self) -> str:
        """Return the search as HTML for notebooks: the rate, the curve and the losses."""
        return search_html(self)

    @property
    def mean_losses(self) -> tuple[float, ...]:
        """The mean loss over seeds at every rate; infinite where any seed diverged."""
        return tuple(sum(seeds) / len(seeds) for seeds in self.losses)

    @property
    def diverged(self) -> int:
        """The number of trials that diverged."""
        return sum(not math.isfinite(loss) for seeds in self.losses for loss in seeds)

    def require_ok(self) -> LRSearch:
        """Return the search if it has an answer; else raise an error that says what to change."""
        if self.status == "all_diverged":
            raise SearchError(
                f"every trial diverged at all {len(self.grid)} learning rates from {self.grid[0]:.3g} to "
                f"{self.grid[-1]:.3g}; search lower rates (start=...), or check the data's scale and the loss"
            )
        if self.status == "learnt_nothing":
            started = "" if self.untrained is None else f" {self.untrained:.4g}"
            raise SearchError(
                f"nothing was learnt: the smallest loss {min(self.mean_losses):.4g} is within noise of the untrained "
                f"network's{started}; train longer (epochs, steps), check the targets and the loss, or try other rates "
                "(start, grid)"
            )
        if self.status == "best_at_edge":
            raise SearchError(
                f"the smallest loss is at the edge of the grid, learning rate {self.best:.3g}; widen the grid, or "
                "train longer if the loss does not depend on the rate"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the search as plain values for JSON, with its graph; what is not finite is None."""
        return {
            "rate": plain_values.finite_or_none(self.rate),
            "best": plain_values.finite_or_none(self.best),
            "bracket": [plain_values.finite_or_none(rate) for rate in self.bracket],
            "estimate": self.estimate,
            "interval": None if self.interval is None else list(self.interval),
            "status": self.status,
            "grid": list(self.grid),
            "losses": [[plain_values.finite_or_none(loss) for loss in seeds] for seeds in self.losses],
            "rule": self.rule,
            "optimizer": self.optimizer,
            "optimizer_options": dict(self.optimizer_options),
            "untrained": self.untrained,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "shrink": None if self.shrink is None else dict(self.shrink),
            "network": self.network,
            "graph": self.graph.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LRSearch:
        """Read a search from `to_dict`.

        Values without a graph, from older versions, raise: a plan would not know which network was searched.
        """
        with plain_values.reading("the search", remedy=_REMEDY):
            return cls._from_values(plain_values.mapping("it", values))

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> LRSearch:
        if "graph" not in values:
            raise ValueError("it has no graph because an older version wrote it")
        graph = Graph.from_dict(values["graph"])
        grid = _grid(values["grid"])
        losses = _losses(values["losses"], rates=len(grid))
        again = chosen(grid, losses, graph)  # what values from older versions leave out
        best = plain_values.positive_or_nan("best", values["best"])
        status = plain_values.one_of("status", values.get("status", again.status), get_args(Status))
        if math.isnan(best) != (status == "all_diverged") or not (math.isnan(best) or best in grid):
            raise ValueError(
                f"best is {values['best']!r}, with the status '{status}'; it has to be a rate of the grid, or none"
            )
        bracket, estimate, interval = (values.get(name) for name in ("bracket", "estimate", "interval"))
        rule, optimizer, untrained = (values.get(name) for name in ("rule", "optimizer", "untrained"))
        steps, shrink, batch_size = (values.get(name) for name in ("steps", "shrink", "batch_size"))
        read = cls(
            grid,
            losses,
            best,
            _pair("bracket", again.bracket if bracket is None else bracket, plain_values.positive_or_nan),
            cast(Status, status),
            graph,
            None if estimate is None else _estimate_in(grid, plain_values.positive("estimate", estimate)),
            None if interval is None else _pair("interval", interval, plain_values.positive),
            None if rule is None else plain_values.text("rule", rule),
            None if optimizer is None else plain_values.one_of("optimizer", optimizer, OPTIMIZERS),
            None if untrained is None else plain_values.finite("untrained", untrained),
            {} if optimizer is None else choice_from(optimizer, values.get("optimizer_options", {})).options,
            None if steps is None else plain_values.count("steps", steps),
            None if shrink is None else dict(plain_values.mapping("shrink", shrink)),
            plain_values.text("network", values.get("network", "")),
            None if batch_size is None else plain_values.count("batch_size", batch_size),
        )
        rate = plain_values.finite_or_none(read.rate)
        if values.get("rate", rate) != rate:
            raise ValueError(f"rate is {values['rate']!r}, but the estimate, or the best rate without one, is {rate}")
        return read


def _estimate_in(grid: tuple[float, ...], estimate: float) -> float:
    """Return a parabola's minimum, which has to be within the grid."""
    if not grid[0] <= estimate <= grid[-1]:
        raise ValueError(f"estimate is {estimate}, outside the grid from {grid[0]} to {grid[-1]}")
    return estimate


def _grid(values: object) -> tuple[float, ...]:
    """Return learning rates, ascending."""
    grid = tuple(
        plain_values.positive("a learning rate of the grid", rate) for rate in plain_values.sequence("grid", values)
    )
    if not grid or any(rate >= following for rate, following in pairwise(grid)):
        raise ValueError(f"grid is {list(grid)}; it needs at least one learning rate, in ascending order")
    return grid


def _losses(values: object, *, rates: int) -> tuple[tuple[float, ...], ...]:
    """Return the loss of every seed at each rate, infinite where it diverged."""
    losses = tuple(
        tuple(plain_values.number_or_infinite("a loss", loss) for loss in plain_values.sequence("losses", seeds))
        for seeds in plain_values.sequence("losses", values)
    )
    if len(losses) != rates:
        raise ValueError(f"losses are for {len(losses)} learning rates, but the grid has {rates}")
    counts = sorted({len(seeds) for seeds in losses})
    if len(counts) > 1 or not counts[0]:
        raise ValueError(
            f"losses are for {' and '.join(map(str, counts))} seeds; every rate needs the same, at least one"
        )
    return losses


def _pair(name: str, values: object, read: Callable[[str, object], float]) -> tuple[float, float]:
    """Return two learning rates, each read by `read`."""
    pair = plain_values.sequence(name, values)
    if len(pair) != 2:
        raise ValueError(f"{name} is {pair}, not two learning rates")
    return read(name, pair[0]), read(name, pair[1])


def chosen(
    grid: tuple[float, ...],
    losses: tuple[tuple[float, ...], ...],
    graph: Graph,
    untrained: tuple[float, ...] = (),
) -> LRSearch:
    """Choose the best rate of a finished grid; `untrained` holds the seeds' losses without learning, if known."""
    means = [sum(seeds) / len(seeds) for seeds in losses]
    if not any(math.isfinite(mean) for mean in means):
        return LRSearch(grid, losses, math.nan, (math.nan, grid[0]), "all_diverged", graph)
    lowest = min(range(len(grid)), key=lambda i: means[i])
    best = max(i for i in range(len(grid)) if means[i] <= means[lowest] + _noise(losses[i], losses[lowest]))
    at_edge = best in (0, len(grid) - 1)
    bracket = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    status: Status = "best_at_edge" if at_edge else "ok"
    if _learnt_nothing(losses[lowest], untrained):
        status = "learnt_nothing"
    estimate = None if at_edge else _estimate(grid, means)
    start = statistics.fmean(untrained) if untrained and all(map(math.isfinite, untrained)) else None
    found = LRSearch(grid, losses, grid[best], bracket, status, graph, estimate, untrained=start)
    return replace(found, interval=_interval(grid, losses, found.rate))


NOTHING = 1e-3  # share of the untrained loss that counts as noise, whatever the seeds say


def _learnt_nothing(trained: tuple[float, ...], untrained: tuple[float, ...]) -> bool:
    """Say whether losses are within noise of untrained ones; a start that is not finite says nothing."""
    if not untrained or not all(map(math.isfinite, untrained)):
        return False
    gain = statistics.fmean(untrained) - statistics.fmean(trained)
    error = math.hypot(_standard_error(trained), _standard_error(untrained))
    return gain <= max(2 * error, NOTHING * abs(statistics.fmean(untrained)))


def of_positions(
    losses: Mapping[int, tuple[float, ...]], start: float, graph: Graph, untrained: tuple[float, ...] = ()
) -> LRSearch:
    """Choose the best rate of a search over the lattice of `evenstep.search.grid`."""
    positions = sorted(losses)
    grid = tuple(rate_at(start, position) for position in positions)
    return chosen(grid, tuple(losses[position] for position in positions), graph, untrained)


def _estimate(grid: tuple[float, ...], means: list[float]) -> float | None:
    """Return the rate at the minimum of the parabola through the nearly smallest losses."""
    minimum = parabola_minimum({OCTAVE * math.log2(rate): mean for rate, mean in zip(grid, means, strict=True)})
    return None if minimum is None else math.pow(2.0, minimum / OCTAVE)


def _interval(
    grid: tuple[float, ...], losses: tuple[tuple[float, ...], ...], rate: float
) -> tuple[float, float] | None:
    """Return the interval of the rate with the smallest loss, at least half way to the rate's neighbours."""
    interval = minimum_interval([OCTAVE * math.log2(tried) for tried in grid], losses)
    if interval is None:
        return None
    nearest = min(range(len(grid)), key=lambda i: abs(math.log(grid[i] / rate)))
    low, high = grid[max(nearest - 1, 0)] / grid[nearest], grid[min(nearest + 1, len(grid) - 1)] / grid[nearest]
    narrowest = rate * math.sqrt(low), rate * math.sqrt(high)
    found = (math.pow(2.0, position / OCTAVE) for position in interval)
    return min(next(found), narrowest[0]), max(next(found), narrowest[1])


def _noise(losses: tuple[float, ...], lowest: tuple[float, ...]) -> float:
    """Return how far a mean may be above the lowest and still be as good: by one standard error of the lowest.

    It may not be above by more than one standard error of the seeds' differences either: seeds at different levels that
    agree on the rate are not noise.
    """
    differences = tuple(loss - other for loss, other in zip(losses, lowest, strict=True))
    return min(_standard_error(lowest), _standard_error(differences))


def _standard_error(values: tuple[float, ...]) -> float:
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return 0.0
    return statistics.stdev(values) / math.sqrt(len(values))
