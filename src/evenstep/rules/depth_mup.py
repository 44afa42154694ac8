"""depth-muP: CompleteP's rule with alpha = 1/2 (Yang et al. 2023, arXiv 2310.02244)."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.rules.completep import CompleteP


@dataclass(frozen=True)
class DepthMup(CompleteP):
    """Multiply residual branches by m_L^(-1/2): they stay independent of each other as their number grows."""

    alpha: float = 0.5  # branches of independent weights add up by their squares
    name: str = "depth-mup"
