"""What a rule is: a value that holds its constants and returns, for every parameter, factors of its learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar, get_args

from evenstep.errors import InputError
from evenstep.init import Network

Optimizer = Literal["sgd", "momentum", "adam", "muon", "lion"]
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)


Given = TypeVar("Given")


def rule_given(what: str, given: str | Given, rules: Mapping[str, Given], *, example: str) -> Given:
    """Return a rule that moves rates by its name, or as it is."""
    if not isinstance(given, str | type) and hasattr(given, "factor"):
        return given
    if not isinstance(given, str) or given not in rules:
        raise InputError(f"{what} is {given!r}; choose one of {', '.join(rules)}, or give a value such as {example}")
    return rules[given]


def steps_by_rate(optimizer: Optimizer) -> bool:
    """Return whether a step's size is set by its rate, whatever the gradient's size: Adam's, Lion's and Muon's are."""
    return optimizer in ("adam", "muon", "lion")


@dataclass(frozen=True, slots=True)
class Factor:
    """Multiply a learning rate by `value`, for the reason `why`."""

    name: str
    value: float
    why: str


@dataclass(frozen=True)
class RateFactors:
    """Hold a rule's factors: those that all rates share, and by parameter name those of single parameters.

    `own` are factors of the rate, `eps` and `decay` of Adam's epsilon and of weight decay, and `starts` of the standard
    deviation that weights start with. `multipliers` multiply the output of a weight, a bias or a gain: the plan folds
    them into its initial values, rate, epsilon and decay, so that the module stays as it is. `counted` are multipliers
    that the initialisation already draws weights by: they do not change initial values. All other factors are those of
    the network with its multipliers. See `docs/rules.md`.
    """

    shared: tuple[Factor, ...]
    own: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)
    multipliers: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)
    counted: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)
    starts: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)
    eps: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)
    decay: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)

    @property
    def scales_more_than_rates(self) -> bool:
        """Whether anything besides rates is scaled."""
        return bool(self.multipliers or self.counted or self.starts or self.eps or self.decay)

    def start_of(self, name: str) -> tuple[Factor, ...]:
        """Return the factors of a parameter's initial values, including its multipliers."""
        return (*self.multipliers.get(name, ()), *self.starts.get(name, ()))

    def multipliers_of(self, name: str) -> tuple[Factor, ...]:
        """Return all multipliers of a parameter."""
        return (*self.counted.get(name, ()), *self.multipliers.get(name, ()))


class Rule(Protocol):
    """Say how a network's learning rates relate to its base's."""

    @property
    def name(self) -> str:
        """The name the rule is chosen by."""

    @property
    def layerwise(self) -> bool:
        """Whether the layers of a base have factors of their own; if so, its search has to train with them."""

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        """Return the factors of every parameter's rate, relative to the base's."""


def product(factors: tuple[Factor, ...]) -> float:
    """Return the product of factors."""
    return math.prod(factor.value for factor in factors)
