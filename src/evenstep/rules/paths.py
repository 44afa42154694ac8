"""The paper's rule as published: the rate falls with the root of the sum of cubed path depths (`eq:lr_dag`)."""

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
    """Scale by (sum_p (L_p + depth_offset)^3)^(-1/2), each path with weight one, times 1/q for kernels (`eq:lr_cnn`).

    `depth_offset` is 0 in the paper and 2 in its authors' code.
    """

    depth_offset: int = 0
    name: str = "paths"
    layerwise: bool = False

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:  # noqa: ARG002
        """Return the topology and kernel factors; the paper treats SGD only."""
        target_sum = network.path_moments.shifted(self.depth_offset).m3
        base_sum = base.path_moments.shifted(self.depth_offset).m3
        if not target_sum or not base_sum:
            topology = Factor("topology", 1.0, "no path has an activation, so this rule changes nothing")
        else:
            # In logarithms, because the sums may overflow a float. So may their ratio, which is therefore cut off.
            exponent = 0.5 * (math.log(base_sum) - math.log(target_sum))
            value = math.exp(min(max(exponent, -_LARGEST_EXPONENT), _LARGEST_EXPONENT))
            why = f"root of the sums of cubed depths: base's {_short(base_sum)} / this network's {_short(target_sum)}"
            topology = Factor("topology", value, why)
        if not network.live.convolutions:
            return RateFactors((topology,))
        size, base_size = mean_kernel_size(network), mean_kernel_size(base)
        kernel = Factor("kernel", base_size / size, f"kernel size: base's {base_size:.4g} / this network's {size:.4g}")
        return RateFactors((topology, kernel))


def mean_kernel_size(network: Network) -> float:
    """Return the geometric mean of all kernel sizes; 1 without convolutions."""
    sizes = [edge.weight.kernel_size for edge in network.live.convolutions if edge.weight is not None]
    return geometric_mean(sizes) if sizes else 1.0


def _short(number: int) -> str:
    return str(number) if number < 10**6 else f"10^{math.log10(number):.1f}"
