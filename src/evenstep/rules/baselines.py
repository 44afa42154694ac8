"""What else one might do: one learning rate for all, or factors of width alone."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.rules.network import Factor, Network, Optimizer


@dataclass(frozen=True)
class Constant:
    """Use the base's learning rate unchanged."""

    name: str = "constant"
    layerwise: bool = False

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> tuple[Factor, ...]:  # noqa: ARG002
        """Return no change."""
        return (Factor("topology", 1.0, "constant: the base's rate"),)


@dataclass(frozen=True)
class Mup:
    """Scale each layer with width, in the spectral form of muP; blind to depth and topology."""

    name: str = "mup"
    layerwise: bool = True

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> tuple[Factor, ...]:  # noqa: ARG002
        """Return no change beside the layers' width factors."""
        return (Factor("topology", 1.0, "mup: blind to topology"),)
