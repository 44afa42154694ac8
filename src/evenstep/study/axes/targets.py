"""What we ask of our own rules on the axes, and whether it is so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evenstep.rules.batch import BATCH
from evenstep.rules.length import LENGTH
from evenstep.study.axes.scales import DEFAULT
from evenstep.study.external.targets import Target

LIMIT = 0.02
OURS: Mapping[str, str] = {"width": DEFAULT, "depth": DEFAULT, "batch": BATCH.name, "length": LENGTH.name}
RIVALS = ("completep", "mup")


def targets(regrets: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> tuple[Target, ...]:
    """Return what is asked of the mean regrets over all lines of each axis."""
    return tuple(target for axis in axes for target in _of_axis(regrets, axis))


def _of_axis(regrets: Sequence[Mapping[str, Any]], axis: str) -> Iterator[Target]:
    means = {
        line["rule"]: line["mean_above_own_best"]
        for line in regrets
        if line["axis"] == axis and line["optimizer"] == "all" and line["n"] == line["cells"]
    }
    ours, what = OURS[axis], f"{axis}: mean regret of `{OURS[axis]}`"
    yield Target(what, LIMIT, means.get(ours))
    for rival in RIVALS if axis in ("width", "depth") else ():
        yield Target(f"{what}, at most that of `{rival}`", means.get(rival), means.get(ours))
