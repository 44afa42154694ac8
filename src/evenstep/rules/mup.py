"""muP: each layer is compared with the same layer of a narrower network (Yang et al. 2022, arXiv 2203.03466)."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.init import Network
from evenstep.rules.relative import Part, Ratios, Relation, Size, related
from evenstep.rules.rule import Optimizer, RateFactors


@dataclass(frozen=True)
class Mup:
    """Scale with width as the package `mup` does; ignore depth and topology.

    Under Adam hidden matrices train at 1 / m_N of the base's rate and all other parameters at the rate itself. Under
    SGD the factor is fan_out / fan_in relative to the base's for matrices, and m_N for vectors. Decay keeps its pace,
    and the outputs of readouts are divided by m_N.
    """

    name: str = "mup"
    layerwise: bool = False

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        """Return the factors of every parameter, all one for a network that is its own base."""
        ratios = Ratios.of(network, base)
        return related(
            network,
            optimizer,
            ratios,
            lambda part: in_width(part, ratios),
            branch=1.0,
            scales_eps=False,
            even_pace=False,
        )


def in_width(part: Part, ratios: Ratios) -> Relation:
    """Relate a parameter to that of a narrower base: readouts divide the gradients of all layers before them."""
    if part.position == "readout" and part.kind == "matrix":
        return Relation(gradient=Size(1 / ratios.readout), counted=ratios.readout_factors())
    if part.kind == "scalar":
        return Relation()
    rate = 1 / ratios.width if part.kind == "matrix" and part.position == "hidden" else 1.0
    return Relation(rate=Size(rate), gradient=Size(1 / ratios.width))
