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
    """Lower the rates of longer training, for optimisers that step by their rate; SGD's stay.

    Weights have to travel some distance however many steps there are. Steps of Adam, Muon and Lion are as large as the
    rate, so with few steps it has to be proportional to one over their number; with many, the largest stable rate is
    the limit. The sum of both has one constant: `travel` is the number of steps that the distance takes at the best
    rate of long training. It was chosen on trainings of 100 to 1,200 steps on a CPU (`results/axes`) and of 128 to
    1,500 on a GPU (`results/short-runs`); the small batches of the first alone want more, the large ones of the second
    less. Below `shortest` steps, fewer than were measured, rates stay.

    Beyond `flat_to` steps rates fall by a power of their number. The exponent is that of Bjorck et al. 2024 (arXiv
    2409.19913) for language models trained by AdamW over horizons of 25 to 800 billion tokens, at a fixed batch size.

    >>> rule = Length()
    >>> [round(rule.factor(steps, searched=80).value, 3) for steps in (80, 160, 1500, 15_000)]
    [1.0, 0.75, 0.527, 0.241]
    """

    travel: float = 80.0
    shortest: int = 16
    fall: float = 0.32
    flat_to: int = 1500
    name: str = "travel"

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def preference(self, steps: int) -> float:
        """Return the best rate for this number of steps, relative to that of long training before rates fall."""
        longer = max(steps, self.flat_to) / self.flat_to
        return (1.0 + self.travel / max(steps, self.shortest)) * math.pow(longer, -self.fall)

    def factor(self, steps: int, *, searched: int, optimizer: Optimizer = "adam") -> Factor:
        """Return the factor that moves a rate from runs of `searched` steps to a training of `steps`."""
        moved = self.preference(steps) / self.preference(searched) if steps_by_rate(optimizer) else 1.0
        return _factor(moved, steps, searched)


def _factor(value: float, steps: int, searched: int) -> Factor:
    return Factor("length", value, f"from {searched} steps to {steps}")


LENGTH = Length()  # the default
LENGTH_RULES: Mapping[str, LengthRule] = {
    rule.name: rule for rule in (LENGTH, Length(travel=0.0, name="power"), Length(0.0, fall=0.0, name="none"))
}


def length_rule(given: str | LengthRule) -> LengthRule:
    """Return a length rule given by its name or as a value."""
    return rule_given("length rule", given, LENGTH_RULES, example="LENGTH")
