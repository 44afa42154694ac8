"""Our rule: each path counts by the share of second moment that it carries."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.rules.network import Factor, Network, Optimizer, kernel_factors

# What S enters the rate with: changes of SGD grow with the gradient as well, those of Adam with the depth alone.
EXPONENT: dict[Optimizer, float] = {"sgd": 1 / 2, "momentum": 1 / 2, "adam": 1 / 3}


@dataclass(frozen=True)
class Weighted:
    """Scale by (S_base / S)^exponent with S = E[(L + depth_offset)^3] (copies q_out)^(1/2).

    The expectation runs over paths by their share of the last vertex's second moment q_out; `copies` is how often
    skips bring one field there, in mean square. Both constants and the root are settled in `docs/theory.md`.
    """

    depth_offset: float = 2.0
    name: str = "weighted"
    layerwise: bool = True

    def score(self, network: Network) -> float:
        """Return S, averaged over the network's heads."""
        signal = network.initialisation.signal
        scores: list[float] = []
        for head in network.roles.heads:
            at = signal.vertices[head.vertex]
            size = math.sqrt(max(at.copies, 1e-300)) * math.sqrt(max(at.second_moment, 1e-300))
            scores.append(size * at.cubed_depth(self.depth_offset + head.depth))
        return sum(scores) / len(scores)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> tuple[Factor, ...]:
        """Return the topology and kernel factors."""
        exponent = EXPONENT[optimizer]
        score, base_score = self.score(network), self.score(base)
        value = math.exp(exponent * (math.log(base_score) - math.log(score)))
        why = f"weighted: ({base_score:.4g}/{score:.4g})^{exponent:.3g}"
        return Factor("topology", value, why), *kernel_factors(network, base)
