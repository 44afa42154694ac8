"""The paper's rule, literally: the rate falls with the root of the sum of cubed path depths (`eq:lr_dag`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.graph.fields import require_valid_fields
from evenstep.init import Network
from evenstep.rules.layers import geometric_mean
from evenstep.rules.rule import Factor, Optimizer, RateFactors

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Paths:
    """Scale by (sum_p (L_p + depth_offset)^3)^(-1/2), every path with weight one, times 1/q for kernels (`eq:lr_cnn`).

    `depth_offset` is 0 in the paper and 2 in the code its authors trained with.
    """

    depth_offset: int = 0
    name: str = "paths"
    layerwise: bool = False

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:  # noqa: ARG002
        """Return the topology and kernel factors; the paper knows no other optimiser than SGD."""
        target_sum = network.path_moments.shifted(self.depth_offset).m3
        base_sum = base.path_moments.shifted(self.depth_offset).m3
        if not target_sum or not base_sum:
            topology = Factor("topology", 1.0, "no activation on any path: the rule is silent")
        else:
            # In logarithms: the sums may have more digits than a float has room for. So may their ratio: cut off.
            exponent = 0.5 * (math.log(base_sum) - math.log(target_sum))
            value = math.exp(min(max(exponent, -_LARGEST_EXPONENT), _LARGEST_EXPONENT))
            topology = Factor("topology", value, f"paths: root of {_short(base_sum)}/{_short(target_sum)}")
        if not network.live.convolutions:
            return RateFactors((topology,))
        size, base_size = mean_kernel_size(network), mean_kernel_size(base)
        kernel = Factor("kernel", base_size / size, f"base kernel {base_size:.4g} / kernel {size:.4g}")
        return RateFactors((topology, kernel))


def mean_kernel_size(network: Network) -> float:
    """Return the geometric mean of the kernel sizes on all edges, 1 without convolutions."""
    sizes = [edge.weight.kernel_size for edge in network.live.convolutions if edge.weight is not None]
    return geometric_mean(sizes) if sizes else 1.0


def _short(number: int) -> str:
    return str(number) if number < 10**6 else f"10^{math.log10(number):.1f}"
