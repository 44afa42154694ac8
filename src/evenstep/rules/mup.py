"""muP in its spectral form: every layer's rate by its width, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.graph.fields import require_valid_fields
from evenstep.init import Network
from evenstep.rules.layers import for_every_layer
from evenstep.rules.rule import Factor, Optimizer, RateFactors
from evenstep.rules.width import hidden_width, width_factor


@dataclass(frozen=True)
class Mup:
    """Scale each layer with width; blind to depth and topology.

    An input layer counts as reading `min_input_fan_in` of the base's width at least.
    """

    min_input_fan_in: float = 1 / 8  # bounds the rate of layers that read very little
    name: str = "mup"
    layerwise: bool = True

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        """Return the width factor of every layer."""
        width = hidden_width(base)
        own = for_every_layer(
            network, lambda layer, _: (width_factor(layer, width, optimizer, floor=self.min_input_fan_in),)
        )
        return RateFactors((Factor("topology", 1.0, "mup: blind to topology"),), own)
