"""A finding as a value."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """Name a broken rule, the parameters that break it (if it is about parameters), how, and the remedy.

    >>> print(Finding("decay", ("norm.weight", "norm.bias"), "decays by 0.1", "give it a group of weight_decay=0"))
    decay: 'norm.weight' and 1 more: decays by 0.1; give it a group of weight_decay=0
    """

    rule: str
    parameters: tuple[str, ...]
    value: str
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return {**asdict(self), "parameters": list(self.parameters)}

    def __str__(self) -> str:
        """Return the finding in one line, with the first of its parameters."""
        more = f" and {len(self.parameters) - 1} more" if len(self.parameters) > 1 else ""
        where = f"'{self.parameters[0]}'{more}: " if self.parameters else ""
        return f"{self.rule}: {where}{self.value}; {self.remedy}"
