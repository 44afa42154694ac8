"""The size of a training, and the one function that moves rates from one size to another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.arguments import require_number, require_whole, shown
from evenstep.errors import InputError
from evenstep.rules.batch import BATCH, BatchRule, batch_rule
from evenstep.rules.length import LENGTH, LengthRule, length_rule
from evenstep.rules.rule import Factor, Optimizer


@dataclass(frozen=True, slots=True)
class Training:
    """Hold the number of examples per step and the number of steps; None if not known.

    >>> str(Training(64, 1500)), str(Training(batch_size=64)), str(Training(steps=1500)), str(Training())
    ('1500 steps on batches of 64', 'batches of 64', '1500 steps', '')
    """

    batch_size: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that are not counts, or that overflow a float."""
        for name in ("batch_size", "steps"):
            if (value := getattr(self, name)) is not None:
                require_number(name, require_whole(name, value))

    def __str__(self) -> str:
        """Return the size in words; empty if nothing is known."""
        batches = "" if self.batch_size is None else f"batches of {self.batch_size}"
        steps = "" if self.steps is None else f"{self.steps} steps"
        return " on ".join(part for part in (steps, batches) if part)

    def knows(self, other: Training) -> bool:
        """Return whether the size is known wherever that of another training is."""
        of_batch = self.batch_size is not None or other.batch_size is None
        return of_batch and (self.steps is not None or other.steps is None)

    def changed(self, other: Training) -> Training:
        """Return the size, replaced by another's where that one knows it."""
        return Training(
            self.batch_size if other.batch_size is None else other.batch_size,
            self.steps if other.steps is None else other.steps,
        )


UNKNOWN = Training()


def moved(
    optimizer: Optimizer,
    searched: Training,
    to: Training,
    *,
    batch: str | BatchRule = BATCH,
    length: str | LengthRule = LENGTH,
) -> tuple[Factor, ...]:
    """Return the factors that move rates from one training size to another: the length's, then the batch's.

    A size that either side does not know changes nothing, and factors of one are left out.

    >>> [(f.name, f.value) for f in moved("adam", Training(64, 80), Training(1024, 160))]
    [('length', 0.75), ('batch', 2.0)]
    """
    factors = []
    try:
        if to.steps is not None and searched.steps is not None:
            factors.append(length_rule(length).factor(to.steps, searched=searched.steps, optimizer=optimizer))
        if to.batch_size is not None and searched.batch_size is not None:
            factors.append(batch_rule(batch).factor(to.batch_size, searched=searched.batch_size, optimizer=optimizer))
    except OverflowError:
        raise InputError(f"moving rates from {searched} to {to} overflows; move them less far") from None
    for factor in factors:
        if not isinstance(factor, Factor) or not 0 < factor.value < math.inf:
            raise InputError(f"a rule moves rates from {searched} to {to} by {shown(factor)}; return a Factor above 0")
    return tuple(factor for factor in factors if factor.value != 1.0)
