"""Our rule: each path counts by the share of second moment that it carries."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.rules.network import Factor, Network, Optimizer, kernel_factors


@dataclass(frozen=True)
class Weighted:
    """Scale by (S_base / S)^exponent with S = q_out^(1 - output_exponent) E[(L + depth_offset)^3].

    The expectation runs over paths by their share of the last vertex's second moment q_out, so the first part is
    the sum of w_p (L_p + a)^3 over paths with w_p the product of the gains on p, over q_out^e. The exponent is 1/2
    for SGD with or without momentum; Adam's step does not grow with the gradient and takes the root of that.
    """

    depth_offset: float = 2.0
    output_exponent: float = 0.25
    name: str = "weighted"
    layerwise: bool = True

    def score(self, network: Network) -> float:
        """Return S, averaged over the network's heads."""
        signal = network.initialisation.signal
        scores: list[float] = []
        for head in network.roles.heads:
            at = signal.vertices[head.vertex]
            size = math.pow(max(at.second_moment, 1e-300), 1.0 - self.output_exponent)
            scores.append(size * at.cubed_depth(self.depth_offset + head.depth))
        return sum(scores) / len(scores)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> tuple[Factor, ...]:
        """Return the topology and kernel factors."""
        exponent = 0.25 if optimizer == "adam" else 0.5
        score, base_score = self.score(network), self.score(base)
        value = math.exp(exponent * (math.log(base_score) - math.log(score)))
        why = f"weighted: ({base_score:.4g}/{score:.4g})^{exponent:g}"
        return Factor("topology", value, why), *kernel_factors(network, base)
