"""What a rule is: a value that owns its numbers and answers, for every parameter, with factors of its learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from evenstep.init import Network

Optimizer = Literal["sgd", "momentum", "adam"]
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)


@dataclass(frozen=True, slots=True)
class Factor:
    """Multiply a learning rate by `value`, for the reason `why`."""

    name: str
    value: float
    why: str


@dataclass(frozen=True)
class RateFactors:
    """Hold the factors of all parameters' rates: those that all share, and those that each has besides."""

    shared: tuple[Factor, ...]
    own: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)


class Rule(Protocol):
    """Answer how a network's learning rates relate to its base's."""

    @property
    def name(self) -> str:
        """The name the rule is chosen by."""

    @property
    def layerwise(self) -> bool:
        """Whether layers have factors of their own; a base that trained without them then does not serve."""

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        """Return the factors of every parameter's rate, relative to the base's."""


def product(factors: tuple[Factor, ...]) -> float:
    """Return what factors multiply to."""
    return math.prod(factor.value for factor in factors)
