"""How the best rate depends on the batch size: larger batches take larger rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from evenstep.arguments import require_number
from evenstep.errors import InputError
from evenstep.graph.fields import require_valid_fields
from evenstep.rules.rule import Factor, Optimizer, rule_given, steps_by_rate


class BatchRule(Protocol):
    """Say how the best rate depends on the batch size."""

    @property
    def name(self) -> str:
        """The name the rule is chosen by."""

    def factor(self, batch: float, *, searched: float, optimizer: Optimizer) -> Factor:
        """Return the factor that moves a rate from batches of `searched` examples to batches of `batch`."""


@dataclass(frozen=True)
class BatchPower:
    """Scale the rate by a power of the batch, one for SGD and one for Adam, Muon and Lion.

    Theory knows two limits. If gradient noise limits the rate, one step of SGD on k times as many examples replaces k
    steps at k times the rate (Goyal et al. 2017, arXiv 1706.02677), and Adam's rate is proportional to sqrt(k)
    (Malladi et al. 2022, arXiv 2205.10287). If curvature limits it, neither rate depends on the batch. Real training
    lies between the two. The default, the fourth root, loses least on the networks measured so far (`results/axes`,
    `results/short-runs`). It lowers SGD's rates for smaller batches, where noise grows, but does not raise them for
    larger ones (`sgd_rises`): a searched rate may be at the limit of stability, and in language models the next octave
    diverges.

    >>> [BATCH.factor(1024, searched=64, optimizer=name).value for name in ("adam", "sgd")]
    [2.0, 1.0]
    """

    adam_power: float = 0.25
    sgd_power: float = 0.25
    sgd_rises: bool = False
    name: str = "fourth-root"

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factor(self, batch: float, *, searched: float, optimizer: Optimizer) -> Factor:
        """Return the factor that moves a rate from batches of `searched` examples to batches of `batch`."""
        ratio = require_number("batch", batch, above=0) / require_number("searched", searched, above=0)
        value = math.pow(ratio, self.adam_power if steps_by_rate(optimizer) else self.sgd_power)
        if not (self.sgd_rises or steps_by_rate(optimizer)):
            value = min(value, 1.0)
        return Factor("batch", value, f"from batches of {searched:g} to {batch:g}")


@runtime_checkable
class MovesAdam(Protocol):
    """Say how Adam's betas and epsilon depend on the batch size, for rules that move more than rates."""

    @property
    def name(self) -> str:
        """The name the rule is chosen by."""

    def settings(self, batch: float, *, searched: float, optimizer: Optimizer) -> AdamFactors:
        """Return the factors of Adam's settings, or raise if the rule is not derived for the optimiser."""


@dataclass(frozen=True)
class AdamFactors:
    """Hold the factors of 1 - beta, for both betas, and of epsilon; empty if a rule does not change them."""

    betas: tuple[Factor, ...] = ()
    eps: tuple[Factor, ...] = ()


@dataclass(frozen=True)
class Sde:
    """Keep the stochastic differential equation that Adam, or SGD without momentum, follows at any batch.

    With k times the batch, Adam's rate grows by sqrt(k), 1 - beta1 and 1 - beta2 by k, and epsilon by 1 / sqrt(k)
    (Malladi et al. 2022, arXiv 2205.10287, definition 5.2); the rate of SGD grows by k (definition 2.2 there). This
    holds while gradient noise dominates; 1 - beta has to stay below one.

    >>> moved = Sde().settings(256, searched=64, optimizer="adam")
    >>> moved.betas[0].value, moved.eps[0].value
    (4.0, 0.5)
    """

    name: str = "sde"

    def factor(self, batch: float, *, searched: float, optimizer: Optimizer) -> Factor:
        """Return the factor that moves a rate from batches of `searched` examples to batches of `batch`."""
        return BatchPower(0.5, 1.0, sgd_rises=True, name=self.name).factor(
            batch, searched=searched, optimizer=optimizer
        )

    def settings(self, batch: float, *, searched: float, optimizer: Optimizer) -> AdamFactors:
        """Return the factors of 1 - beta and of epsilon; SGD has neither, and other optimisers are refused."""
        if optimizer == "sgd":
            return AdamFactors()
        if optimizer != "adam":
            raise InputError(
                f"batch rule '{self.name}' is derived for Adam and for SGD without momentum, but the plan is for "
                f"'{optimizer}'; choose another, such as '{BATCH.name}'"
            )
        rate = self.factor(batch, searched=searched, optimizer=optimizer)
        return AdamFactors(
            betas=(Factor(rate.name, batch / searched, rate.why),), eps=(Factor(rate.name, 1 / rate.value, rate.why),)
        )


BATCH = BatchPower()  # the default
BATCH_RULES: Mapping[str, BatchRule] = {
    rule.name: rule
    for rule in (
        BATCH,
        BatchPower(0.5, 0.5, sgd_rises=True, name="root"),
        BatchPower(0.5, 1.0, sgd_rises=True, name="root-linear"),
        BatchPower(1.0, 1.0, sgd_rises=True, name="linear"),
        BatchPower(0.0, 0.0, name="none"),
        Sde(),
    )
}


def batch_rule(given: str | BatchRule) -> BatchRule:
    """Return a batch rule given by its name or as a value."""
    return rule_given("batch rule", given, BATCH_RULES, example="BATCH")
