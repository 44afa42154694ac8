"""What we ask of our own rules on the axes, and whether it is so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evenstep.rules.batch import BATCH
from evenstep.rules.length import LENGTH
from evenstep_research.study.axes.scales import DEFAULT
from evenstep_research.study.external.targets import Target

LIMIT = 0.02
OURS: Mapping[str, str] = {"width": DEFAULT, "depth": DEFAULT, "batch": BATCH.name, "length": LENGTH.name}
RIVALS = ("completep", "mup")
# Nothing is asked of SGD, which is measured on batch and length besides.
_OF_TWO: Mapping[str, str] = {"adam": ", AdamW", "muon": ", Muon"}
ASKED_OF: Mapping[str, Mapping[str, str]] = {"batch": _OF_TWO, "length": _OF_TWO}


def targets(regrets: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> tuple[Target, ...]:
    """Return what is asked of the mean regrets over the lines of each axis."""
    return tuple(
        target
        for axis in axes
        for optimizer, words in ASKED_OF.get(axis, {"all": ""}).items()
        for target in _of_axis([line for line in regrets if line["optimizer"] == optimizer], axis, words)
    )


def _of_axis(regrets: Sequence[Mapping[str, Any]], axis: str, words: str) -> Iterator[Target]:
    """Yield what is asked of an axis, over the cells that are measured; rules are compared on as many cells only."""
    known = {line["rule"]: line for line in regrets if line["axis"] == axis and line["mean_above_own_best"] is not None}
    ours, what = known.get(OURS[axis]), f"{axis}{words}: mean regret of `{OURS[axis]}`"
    measured = None if ours is None else ours["mean_above_own_best"]
    note = "" if ours is None or ours["n"] == ours["cells"] else f"{ours['n']} of {ours['cells']} cells"
    yield Target(what, LIMIT, measured, note)
    for rival in RIVALS if axis in ("width", "depth") else ():
        other = known.get(rival)
        alike = ours is not None and other is not None and other["n"] == ours["n"]
        limit = other["mean_above_own_best"] if alike and other is not None else None
        yield Target(f"{what}, at most that of `{rival}`", limit, measured, note)
