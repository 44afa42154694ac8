"""AM-muP: rates by the length of the shortest path (Zhang et al. 2025 and 2026, arXiv 2510.04327 and 2602.07494)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.graph.fields import require_valid_fields
from evenstep.graph.residual import residuals, shortest_depth
from evenstep.init import Network
from evenstep.rules.relative import Ratios, parts
from evenstep.rules.rule import Factor, Optimizer, RateFactors


@dataclass(frozen=True)
class AmMup:
    """Scale the whole network by the length of its shortest path; the more branches there are, the smaller they start.

    The length counts weights and residual additions, and enters as length^-`depth_power`. Weights of residual branches
    have variance c / (blocks fan_in), where c is chosen such that the base's weights start as its initialisation draws
    them. The rule is derived for SGD and used unchanged for all optimisers.
    """

    depth_power: float = 1.5  # from a theorem
    name: str = "am-mup"
    layerwise: bool = False

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:  # noqa: ARG002
        """Return the network's factor and the factors of its branches' initial standard deviations."""
        ratios, base_branches = Ratios.of(network, base), residuals(base.live)
        branches = ratios.branches
        length = max(shortest_depth(network.live, branches.sums), 1)
        base_length = max(shortest_depth(base.live, base_branches.sums), 1)
        value = math.pow(base_length / length, self.depth_power)
        topology = Factor("topology", value, f"shortest path: base's {base_length} / this network's {length}")
        blocks, base_blocks = max(len(branches.sums), 1), max(len(base_branches.sums), 1)
        smaller, words = math.sqrt(base_blocks / blocks), f"{blocks} blocks, {base_blocks} in the base"
        scales = {
            parameter.name: smaller / ratios.drawn_already(part)
            for parameter, part in parts(network, branches)
            if branches.sums and part.kind == "matrix" and part.inside
        }
        starts = {name: (Factor("blocks", scale, words),) for name, scale in scales.items()}
        return RateFactors((topology,), starts=starts)
