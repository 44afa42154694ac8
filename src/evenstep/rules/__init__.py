"""How learning rates relate to the base's: `weighted` (ours), `paths` (the paper's), `constant`, `mup`. No torch."""

from collections.abc import Mapping

from evenstep.rules.constant import Constant
from evenstep.rules.mup import Mup
from evenstep.rules.paths import Paths
from evenstep.rules.rule import OPTIMIZERS, Factor, Optimizer, RateFactors, Rule
from evenstep.rules.weighted import Weighted

RULES: Mapping[str, Rule] = {rule.name: rule for rule in (Weighted(), Paths(), Constant(), Mup())}

__all__ = [
    "OPTIMIZERS",
    "RULES",
    "Constant",
    "Factor",
    "Mup",
    "Optimizer",
    "Paths",
    "RateFactors",
    "Rule",
    "Weighted",
]
