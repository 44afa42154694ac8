"""A tiny family for tests: so few and small steps that trials are always trained one by one, in the same arithmetic."""

from __future__ import annotations

from evenstep_research.study.codes import chain_code, residual_code
from evenstep_research.study.transfer.families import Architecture, Family, FamilySetting
from evenstep_research.study.transfer.measure import TransferTraining

SETTING = FamilySetting(width=8, image=(1, 8, 8), init="conserve", optimizer="momentum")
TRAINING = TransferTraining(batch_size=128, seeds=2, base_seeds=2)
FAMILY = Family(
    "tiny",
    "tiny MLPs",
    SETTING,
    (
        Architecture("chain 1", "2"),
        Architecture("chain 3", chain_code(3)),
        Architecture("residual 3", residual_code(3)),
    ),
    rivals=("range test", "adamw"),
)
