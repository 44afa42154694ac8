"""The paper's rule, literally: the rate falls with the root of the sum of cubed path depths (`eq:lr_dag`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.rules.network import Factor, Network, Optimizer, kernel_factors

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Paths:
    """Scale by (sum_p (L_p + depth_offset)^3)^(-1/2), every path with weight one, times 1/q for kernels.

    `depth_offset` is 0 in the paper and 2 in the code its authors trained with.
    """

    depth_offset: int = 0
    name: str = "paths"
    layerwise: bool = False

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> tuple[Factor, ...]:  # noqa: ARG002
        """Return the topology and kernel factors; the paper knows no other optimiser than SGD."""
        target_sum = network.moments.shifted(self.depth_offset).m3
        base_sum = base.moments.shifted(self.depth_offset).m3
        if not target_sum or not base_sum:
            topology = Factor("topology", 1.0, "no activation on any path: the rule is silent")
        else:
            # In logarithms: the sums may have more digits than a float has room for. So may their ratio: cut off.
            exponent = 0.5 * (math.log(base_sum) - math.log(target_sum))
            value = math.exp(min(max(exponent, -_LARGEST_EXPONENT), _LARGEST_EXPONENT))
            topology = Factor("topology", value, f"paths: root of {_short(base_sum)}/{_short(target_sum)}")
        return topology, *kernel_factors(network, base)


def _short(number: int) -> str:
    return str(number) if number < 10**6 else f"10^{math.log10(number):.1f}"
