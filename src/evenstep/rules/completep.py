"""CompleteP: muP, with residual branches whose sum does not depend on depth (Dey et al. 2025, arXiv 2505.01618)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.graph.fields import require_valid_fields
from evenstep.init import Network
from evenstep.rules.mup import in_width
from evenstep.rules.relative import Part, Ratios, Relation, Size, related
from evenstep.rules.rule import Optimizer, RateFactors


@dataclass(frozen=True)
class CompleteP:
    """Multiply residual branches by m_L^-alpha, and the rates inside them by m_L^(alpha - 1); width as in muP.

    Epsilon scales with the gradients: m_N^-1, and in branches also m_L^-alpha. The rule is published for AdamW; the
    rates of SGD are those divided by the gradients' size, which for alpha = 1/2 gives depth-muP.
    """

    alpha: float = 1.0  # the value at which, in the paper's words, every layer learns features
    name: str = "completep"
    layerwise: bool = False

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        """Return the factors of every parameter, all one for a network that is its own base."""
        ratios = Ratios.of(network, base)
        branch = ratios.branch(self.alpha, rule=self.name)
        return related(
            network,
            optimizer,
            ratios,
            lambda part: in_depth(part, ratios, alpha=self.alpha, branch=branch),
            branch=branch,
            scales_eps=True,
            even_pace=False,
        )


def in_depth(part: Part, ratios: Ratios, *, alpha: float, branch: float) -> Relation:
    """Relate a parameter to that of a narrower and shallower base; `branch` multiplies the network's branches."""
    in_base = in_width(part, ratios)
    rate, gradient = in_base.rate, in_base.gradient
    if part.inside:
        rate, gradient = Size(rate.width, math.pow(ratios.depth, alpha - 1.0)), Size(gradient.width, branch)
    return Relation(rate, gradient, in_base.counted)
