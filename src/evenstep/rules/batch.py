"""How the best rate goes with the batch: the larger a batch, the larger the rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from evenstep.arguments import require_number
from evenstep.errors import InputError
from evenstep.graph.fields import require_valid_fields
from evenstep.rules.rule import Factor, Optimizer, steps_by_rate


class BatchRule(Protocol):
    """Answer how a training's best rate goes with its batch."""

    @property
    def name(self) -> str:
        """The name the rule is chosen by."""

    def factor(self, batch: float, *, searched: float, optimizer: Optimizer) -> Factor:
        """Return the factor that moves a rate from batches of `searched` examples to batches of `batch`."""


@dataclass(frozen=True)
class BatchPower:
    """Scale the rate by a power of the batch, of SGD's and of Adam's own.

    Adam's step shrinks with the noise of gradients: the root (Malladi et al. 2022, arXiv 2205.10287). One step of SGD
    on k times as many examples replaces k steps at k times the rate (Goyal et al. 2017, arXiv 1706.02677) while noise
    is all that counts, and no more than one where curvature does: in trainings that are short, the root for SGD, too.

    >>> BatchPower().factor(256, searched=64, optimizer="adam").value
    2.0
    """

    adam_power: float = 0.5
    sgd_power: float = 0.5
    name: str = "root"

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factor(self, batch: float, *, searched: float, optimizer: Optimizer) -> Factor:
        """Return the factor that moves a rate from batches of `searched` examples to batches of `batch`."""
        ratio = require_number("batch", batch, above=0) / require_number("searched", searched, above=0)
        power = self.adam_power if steps_by_rate(optimizer) else self.sgd_power
        return Factor("batch", math.pow(ratio, power), f"for batches of {batch:g}, found with {searched:g}")


BATCH = BatchPower()
BATCH_RULES: Mapping[str, BatchRule] = {
    rule.name: rule
    for rule in (
        BATCH,
        BatchPower(0.5, 1.0, name="root-linear"),
        BatchPower(1.0, 1.0, name="linear"),
        BatchPower(0.0, 0.0, name="none"),
    )
}


def batch_rule(given: str | BatchRule) -> BatchRule:
    """Return a batch rule by its name, or as it is."""
    if not isinstance(given, str) and hasattr(given, "factor"):
        return given
    if not isinstance(given, str) or given not in BATCH_RULES:
        raise InputError(
            f"batch rule is {given!r}; choose one of {', '.join(BATCH_RULES)}, or give a value such as BATCH"
        )
    return BATCH_RULES[given]
