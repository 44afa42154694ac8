"""AM-muP: rates by the length of the shortest path (Zhang et al. 2025 and 2026, arXiv 2510.04327 and 2602.07494)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.graph.fields import require_valid_fields
from evenstep.graph.residual import residuals, shortest_depth
from evenstep.init import Network
from evenstep.rules.relative import parts
from evenstep.rules.rule import Factor, Optimizer, RateFactors


@dataclass(frozen=True)
class AmMup:
    """Scale the whole network by the length of its shortest path, and draw branches smaller the more there are.

    The length counts weights and residual additions, and enters as length^-`depth_power`. Weights of residual branches
    have variance c / (blocks fan_in), with c what makes the base's what the initialisation draws. Derived for SGD, and
    taken alike for all optimisers.
    """

    depth_power: float = 1.5  # a theorem's
    name: str = "am-mup"
    layerwise: bool = False

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:  # noqa: ARG002
        """Return the network's factor and those of its branches' starts."""
        found, of_base = residuals(network.live), residuals(base.live)
        length, base_length = (
            max(shortest_depth(one.live, sums.sums), 1) for one, sums in ((network, found), (base, of_base))
        )
        value = math.pow(base_length / length, self.depth_power)
        topology = Factor("topology", value, f"shortest path of the base {base_length} / here {length}")
        blocks, base_blocks = max(len(found.sums), 1), max(len(of_base.sums), 1)
        if blocks == base_blocks:
            return RateFactors((topology,))
        smaller = Factor("blocks", math.sqrt(base_blocks / blocks), f"{blocks} blocks, {base_blocks} in the base")
        inside = (parameter.name for parameter, part in parts(network, found) if part.kind == "matrix" and part.inside)
        return RateFactors((topology,), starts=dict.fromkeys(inside, (smaller,)) if found.sums else {})
