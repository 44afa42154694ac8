"""The colour scale of rate factors: both ways from the network's factor, in steps that CSS colours."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from evenstep.report.page.words import number

STEPS = 4  # on either side of the middle


@dataclass(frozen=True)
class ColourScale:
    """Colour a factor by its octaves above or below the middle; the strongest colours are at `octaves`."""

    middle: float
    octaves: int

    @classmethod
    def over(cls, factors: Iterable[float], *, middle: float) -> ColourScale:
        """Return the scale that spans these factors, in whole octaves on either side of the middle."""
        reach = max((abs(math.log2(factor / middle)) for factor in factors if factor > 0), default=1.0)
        return cls(middle, max(1, math.ceil(reach - 1e-9)))

    def colour(self, factor: float | None) -> str:
        """Return the CSS class of a factor: `f-4` to `f4`, or `none` for None.

        >>> ColourScale(1.0, 4).colour(0.25), ColourScale(0.5, 4).colour(0.5), ColourScale(1.0, 4).colour(None)
        ('f-2', 'f0', 'none')
        """
        if factor is None:
            return "none"
        if factor <= 0:
            return f"f-{STEPS}"
        place = round(STEPS * math.log2(factor / self.middle) / self.octaves)
        return f"f{max(-STEPS, min(STEPS, place))}"

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """Every colour's class, with the factor at its middle."""
        factors = (self.middle * 2.0 ** (self.octaves * step / STEPS) for step in range(-STEPS, STEPS + 1))
        return tuple((self.colour(factor), number(factor, 3)) for factor in factors)
