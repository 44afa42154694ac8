"""One learning rate for all parameters: the base's."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.init import Network
from evenstep.rules.rule import Factor, Optimizer, RateFactors


@dataclass(frozen=True)
class Constant:
    """Use the base's learning rate unchanged."""

    name: str = "constant"
    layerwise: bool = False

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:  # noqa: ARG002
        """Return no change."""
        return RateFactors((Factor("topology", 1.0, "the base's rate, unchanged"),))
