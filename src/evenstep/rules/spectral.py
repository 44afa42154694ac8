"""The spectral form of muP: each layer's factor follows from its own widths and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.graph.fields import require_valid_fields
from evenstep.init import Network
from evenstep.rules.layers import for_every_layer
from evenstep.rules.rule import Factor, Optimizer, RateFactors
from evenstep.rules.width import hidden_width, width_factor


@dataclass(frozen=True)
class Spectral:
    """Scale each layer by its own widths, fan_out / fan_in or 1 / fan_in; ignore depth and topology.

    An input layer counts as reading at least `min_input_fan_in` of the base's width.
    """

    min_input_fan_in: float = 1 / 8  # bounds the rate of layers that read few units
    name: str = "spectral"
    layerwise: bool = True

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        """Return the width factor of every layer."""
        width = hidden_width(base)
        own = for_every_layer(
            network, lambda layer, _: (width_factor(layer, width, optimizer, floor=self.min_input_fan_in),)
        )
        return RateFactors((Factor("topology", 1.0, "this rule ignores topology"),), own)
