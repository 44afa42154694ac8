"""How the best rate depends on the number of steps: longer training takes smaller rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from evenstep.graph.fields import require_valid_fields
from evenstep.rules.rule import Factor, Optimizer, rule_given, steps_by_rate


class LengthRule(Protocol):
    """Say how the best rate depends on the number of steps."""

    @property
    def name(self) -> str:
        """The name the rule is chosen by."""

    def factor(self, steps: int, *, searched: int, optimizer: Optimizer = "adam") -> Factor:
        """Return the factor that moves a rate from runs of `searched` steps to a training of `steps`."""


@dataclass(frozen=True)
class Length:
    """Raise the rate of short training; the rate of long training does not depend on its length.

    Weights have to travel some distance however many steps there are: with few steps, the rate is proportional to one
    over their number. With many steps the largest stable rate is the limit, and the length no longer matters. The sum
    of both has one constant: `travel` is the number of steps that the distance takes at the best rate of long training
    (measured in `results/short-runs`). Below `shortest` steps, fewer than were measured, the rate stays constant.
    """

    travel: float = 20.0
    shortest: int = 16
    name: str = "travel"

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def preference(self, steps: int) -> float:
        """Return the best rate for this number of steps, relative to that of very long training.

        >>> Length().preference(20), Length().preference(2000)
        (2.0, 1.01)
        """
        return 1.0 + self.travel / max(steps, self.shortest)

    def factor(self, steps: int, *, searched: int, optimizer: Optimizer = "adam") -> Factor:
        """Return the factor that moves a rate from runs of `searched` steps to a training of `steps`."""
        del optimizer
        return _factor(self.preference(steps) / self.preference(searched), steps, searched)


@dataclass(frozen=True)
class LengthPower:
    """Scale the rate by a power of the number of steps beyond `flat_to`, at a fixed batch size.

    Between 128 and 1,500 steps, best rates hardly change (`results/short-runs`). Beyond, Adam's exponent is that of
    Bjorck et al. 2024 (arXiv 2409.19913) for language models trained by AdamW over horizons of 25 to 800 billion
    tokens. SGD's rates do not fall: longer warm-ups allow larger rates.

    >>> rule = LengthPower()
    >>> [round(rule.factor(steps, searched=128).value, 3) for steps in (200, 1500, 15_000)]
    [1.0, 1.0, 0.479]
    """

    fall: float = 0.32
    sgd_fall: float = 0.0
    flat_to: int = 1500
    name: str = "power"

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factor(self, steps: int, *, searched: int, optimizer: Optimizer = "adam") -> Factor:
        """Return the factor that moves a rate from runs of `searched` steps to a training of `steps`."""
        fall = self.fall if steps_by_rate(optimizer) else self.sgd_fall
        longer = max(steps, self.flat_to) / max(searched, self.flat_to)
        return _factor(math.pow(longer, -fall), steps, searched)


def _factor(value: float, steps: int, searched: int) -> Factor:
    return Factor("length", value, f"from {searched} steps to {steps}")


LENGTH = LengthPower()  # the default
LENGTH_RULES: Mapping[str, LengthRule] = {rule.name: rule for rule in (LENGTH, Length(), LengthPower(0.0, name="none"))}


def length_rule(given: str | LengthRule) -> LengthRule:
    """Return a length rule given by its name or as a value."""
    return rule_given("length rule", given, LENGTH_RULES, example="LENGTH")
