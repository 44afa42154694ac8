"""u-muP: weights, signals and gradients of unit size (Blake et al. 2024, arXiv 2407.17465)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.graph.fields import require_valid_fields
from evenstep.init import Network
from evenstep.rules.completep import in_depth
from evenstep.rules.relative import Part, Ratios, Relation, Size, related
from evenstep.rules.rule import Factor, Optimizer, RateFactors


@dataclass(frozen=True)
class UMup:
    """Draw hidden weights with variance one and multiply their outputs by fan_in^(-1/2); depth as in depth-muP.

    The rates are then fan_in^(-1/2) depth^(-1/2) for hidden weights, depth^(-1/2) for biases and norms of branches,
    fan_out^(-1/2) for embeddings and 1 for readouts; decay is independent of the rate. Multiplied out, a weight of
    variance one and its multiplier are what the initialisation draws anyway.
    """

    alpha: float = 0.5  # squares of branches with independent weights add up
    name: str = "u-mup"
    layerwise: bool = False

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        """Return the factors of every parameter, all one for a network that is its own base."""
        ratios = Ratios.of(network, base)
        branch = ratios.branch(self.alpha, rule=self.name)

        def relation_of(part: Part) -> Relation:
            relation = in_depth(part, ratios, alpha=self.alpha, branch=branch)
            return _of_unit_size(part, relation, math.sqrt(ratios.width))

        return related(network, optimizer, ratios, relation_of, branch=branch, scales_eps=True, even_pace=True)


def _of_unit_size(part: Part, relation: Relation, root: float) -> Relation:
    """Return the relation of a weight of variance one; `root` is sqrt(m_N)."""
    rate, gradient = relation.rate, relation.gradient
    if part.table and part.position == "input":
        return relation._replace(rate=Size(rate.width / root, rate.depth))
    if part.kind != "matrix" or part.position != "hidden" or root == 1.0:
        return relation
    return Relation(
        Size(rate.width * root, rate.depth),
        Size(gradient.width / root, gradient.depth),
        (Factor("unit", 1 / root, "fan_in^(-1/2) relative to the base's"),),
    )
