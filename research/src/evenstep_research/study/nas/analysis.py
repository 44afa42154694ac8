"""What another way of training does to a benchmark: gains, rankings at the top, gaps, and seeds against protocols.

A tau of two architectures is 1 or -1, whatever was measured: there is none of fewer than three.

Accuracies are in percent, in arrays aligned over architectures: [architectures], or [architectures, seeds].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import InputError
from evenstep_research.study.statistics import Array, Figure, bootstrapped, kendall

TOP_SHARES = (100, 90, 80, 70, 60, 50, 40, 30, 20, 10, 5, 1)
# An interval of Kendall's tau looks at all pairs of a thousand samples; of more architectures it is costly, and narrow.
INTERVAL_LIMIT = 64
GAPS_LIMIT = 3000
FEWEST = 3  # architectures of which a tau says something


@dataclass(frozen=True, slots=True)
class Gain:
    """Hold the mean difference of paired accuracies, in points; its interval is over architectures drawn again.

    `median` and `largest` say whether the mean is that of most architectures or of a few.
    """

    count: int
    mean: Figure
    median: float
    largest: float
    better: int
    worse: int
    ours: float
    reference: float

    @property
    def excludes_zero(self) -> bool:
        """Say whether the interval lies wholly on one side of zero."""
        low, high = self.mean.low, self.mean.high
        return low is not None and high is not None and (low > 0 or high < 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "n": self.count,
            "gain": self.mean.to_dict(),
            "median": self.median,
            "largest": self.largest,
            "better": self.better,
            "worse": self.worse,
            "ours": self.ours,
            "reference": self.reference,
            "excludes_zero": self.excludes_zero,
        }


@dataclass(frozen=True, slots=True)
class TauPoint:
    """Hold Kendall's tau over the `count` architectures in the top `share` percent of the ranking."""

    share: float
    count: int
    tau: Figure

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"share": self.share, "n": self.count, "tau": self.tau.to_dict()}


@dataclass(frozen=True, slots=True)
class Gaps:
    """Hold the accuracy gaps between all pairs of architectures, in points, from the smallest to the largest."""

    count: int
    mean: float
    p10: float
    median: float
    p90: float
    largest: float
    values: Array = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, but not the gaps themselves: they follow from the accuracies."""
        names = ("mean", "p10", "median", "p90", "largest")
        return {"n": self.count, "pairs": len(self.values), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True)
class AgreementPoint:
    """Hold mean taus over the top of a ranking: between the seeds of a protocol, and between two protocols.

    `between_means` compares accuracies averaged over seeds, as the paper does. They are less noisy than single seeds,
    so that against `within` it is `between`, one seed of each, that is fair.
    """

    share: float
    count: int
    within: Mapping[str, float | None]
    between: Mapping[tuple[str, str], float | None]
    between_means: Mapping[tuple[str, str], float | None]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "share": self.share,
            "n": self.count,
            "within": dict(self.within),
            "between": [{"protocols": list(pair), "tau": tau} for pair, tau in self.between.items()],
            "between_means": [{"protocols": list(pair), "tau": tau} for pair, tau in self.between_means.items()],
        }


def mean_gain(ours: npt.ArrayLike, reference: npt.ArrayLike) -> Gain:
    """Return the mean of ours minus reference over architectures, with its bootstrap interval (two and more)."""
    ours, reference = _aligned(ours, reference)
    difference = ours - reference
    if not len(difference):
        raise InputError("there are no architectures to compare; give at least one that both have")
    mean = bootstrapped(difference[None], lambda table: table[0].mean(axis=-1))
    if len(difference) < 2:  # drawn again, one architecture is always itself
        mean = Figure(mean.value, None, None)
    return Gain(
        len(difference),
        mean,
        float(np.median(difference)),
        float(difference[np.abs(difference).argmax()]),
        int((difference > 0).sum()),
        int((difference < 0).sum()),
        float(ours.mean()),
        float(reference.mean()),
    )


def kendall_tau(x: npt.ArrayLike, y: npt.ArrayLike) -> float | None:
    """Return Kendall's tau-b; None of fewer than three architectures, or where one side does not vary."""
    x, y = _aligned(x, y)
    if len(x) < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    from scipy.stats import kendalltau

    return float(kendalltau(x, y, variant="b").statistic)


def top(reference: npt.ArrayLike, share: float) -> npt.NDArray[np.bool_]:
    """Mark the best `share` percent: as many as that is, rounded up, and all that tie with the last of them."""
    if not 0 < share <= 100:
        raise InputError(f"share is {share}; give a percentage above 0, at most 100")
    (values,) = _aligned(reference)
    if not len(values):
        return np.zeros(0, dtype=bool)
    # Rounded first: 7% of 100 is a little above 7 in floating point.
    count = int(np.ceil(round(len(values) * share / 100, 9)))
    marked: npt.NDArray[np.bool_] = values >= np.sort(values)[-count]
    return marked


def tau_curve(
    reference: npt.ArrayLike,
    other: npt.ArrayLike,
    *,
    ranking: npt.ArrayLike | None = None,
    shares: Sequence[float] = TOP_SHARES,
) -> tuple[TauPoint, ...]:
    """Return Kendall's tau between two rankings over the top K% of the reference, for every K.

    A share that holds fewer than three architectures has no tau; one of 3 to 64 has its bootstrap interval.

    Tau falls towards the top even between runs that differ by their seed alone, for there architectures lie close
    together, and a little more where the reference is both ranked by and compared, as in the paper. So read a curve
    beside `agreement`; with a `ranking` of other runs the top is theirs.
    """
    reference, other = _aligned(reference, other)
    order = reference if ranking is None else _aligned(reference, ranking)[1]
    points = []
    for share in shares:
        chosen = top(order, share)
        x, y = reference[chosen], other[chosen]
        tau = Figure(kendall_tau(x, y), None, None)
        if tau.value is not None and len(x) <= INTERVAL_LIMIT:
            interval = bootstrapped(np.stack([x, y]), lambda table: kendall(table[0], table[1]))
            tau = Figure(tau.value, interval.low, interval.high)
        points.append(TauPoint(share, len(x), tau))
    return tuple(points)


def pairwise_gaps(accuracies: npt.ArrayLike) -> Gaps:
    """Return the gaps |a_i - a_j| of all pairs i < j."""
    (values,) = _aligned(accuracies)
    if not 2 <= len(values) <= GAPS_LIMIT:
        raise InputError(f"there are {len(values)} architectures to pair; give 2 to {GAPS_LIMIT}, of more a sample")
    first, second = np.triu_indices(len(values), 1)
    gaps = np.sort(np.abs(values[first] - values[second]))
    p10, median, p90 = (float(quantile) for quantile in np.quantile(gaps, (0.1, 0.5, 0.9)))
    return Gaps(len(values), float(gaps.mean()), p10, median, p90, float(gaps[-1]), gaps)


def agreement(
    runs: Mapping[str, npt.ArrayLike], *, ranking: npt.ArrayLike, shares: Sequence[float] = TOP_SHARES
) -> tuple[AgreementPoint, ...]:
    """Compare rankings across seeds with rankings across protocols, over the top K% of a third ranking.

    `runs` holds accuracies [architectures, seeds] by protocol; an architecture that lacks one run is left out.
    `ranking` [architectures] must come of other runs than those compared, such as the published table's. Among the
    best by the mean of two seeds, one seed's luck makes up for the other's lack of it: their tau falls, below zero at
    last, and the seeds of that one protocol seem to disagree where those of others do not.
    """
    (order,) = _aligned(ranking)
    tables = {name: np.array(values, dtype=float) for name, values in runs.items()}
    if not tables:
        raise InputError("there are no protocols to compare; give the runs of at least one")
    for name, table in tables.items():
        if table.ndim != 2 or len(table) != len(order):
            raise InputError(
                f"the accuracies of '{name}' have shape {table.shape}; "
                f"give [architectures, seeds] of the {len(order)} architectures ranked"
            )
    whole = ~np.isnan(np.concatenate(list(tables.values()), axis=1)).any(axis=1)
    order, tables = order[whole], {name: table[whole] for name, table in tables.items()}
    means = {name: table.mean(axis=1) for name, table in tables.items()}
    pairs = list(combinations(tables, 2))
    points = []
    for share in shares:
        chosen = top(order, share)
        seeds = {name: list(table[chosen].T) for name, table in tables.items()}
        points.append(
            AgreementPoint(
                share,
                int(chosen.sum()),
                {name: _mean_tau(combinations(columns, 2)) for name, columns in seeds.items()},
                {(a, b): _mean_tau(product(seeds[a], seeds[b])) for a, b in pairs},
                {(a, b): kendall_tau(means[a][chosen], means[b][chosen]) for a, b in pairs},
            )
        )
    return tuple(points)


def _mean_tau(pairs: Iterable[tuple[Array, Array]]) -> float | None:
    """Return the mean of the taus that are defined."""
    taus = [tau for x, y in pairs if (tau := kendall_tau(x, y)) is not None]
    return float(np.mean(taus)) if taus else None


def _aligned(*given: npt.ArrayLike) -> tuple[Array, ...]:
    """Return arrays [architectures] of equal length that hold numbers."""
    arrays = tuple(np.array(values, dtype=float) for values in given)
    for array in arrays:
        if array.ndim != 1 or len(array) != len(arrays[0]):
            raise InputError(
                f"accuracies have shapes {', '.join(str(a.shape) for a in arrays)}; "
                "give one number for each architecture, the same ones in the same order"
            )
        if not np.isfinite(array).all():
            place = int(np.flatnonzero(~np.isfinite(array))[0])
            raise InputError(
                f"the accuracy of architecture {place} is {array[place]}; leave out those that have no figure"
            )
    return arrays
