"""Rules for rates relative to the base's: ours (`weighted`), the paper's (`paths`) and other people's. No torch."""

from collections.abc import Mapping

from evenstep.rules.am_mup import AmMup
from evenstep.rules.completep import CompleteP
from evenstep.rules.constant import Constant
from evenstep.rules.depth_mup import DepthMup
from evenstep.rules.mup import Mup
from evenstep.rules.paths import Paths
from evenstep.rules.rule import OPTIMIZERS, Factor, Optimizer, RateFactors, Rule, steps_by_rate
from evenstep.rules.spectral import Spectral
from evenstep.rules.umup import UMup
from evenstep.rules.weighted import Weighted

RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (Weighted(), Paths(), Constant(), Mup(), Spectral(), CompleteP(), DepthMup(), UMup(), AmMup())
}

__all__ = [
    "OPTIMIZERS",
    "RULES",
    "AmMup",
    "CompleteP",
    "Constant",
    "DepthMup",
    "Factor",
    "Mup",
    "Optimizer",
    "Paths",
    "RateFactors",
    "Rule",
    "Spectral",
    "UMup",
    "Weighted",
    "steps_by_rate",
]
