"""depth-muP: CompleteP's rule with alpha = 1/2 (Yang et al. 2023, arXiv 2310.02244)."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.rules.completep import CompleteP


@dataclass(frozen=True)
class DepthMup(CompleteP):
    """Multiply residual branches by m_L^(-1/2), as is right if they are independent of each other."""

    alpha: float = 0.5  # squares of branches with independent weights add up
    name: str = "depth-mup"
