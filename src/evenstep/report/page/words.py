"""Format numbers for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

_WRITTEN_OUT = 10**9


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, or a dash for None.

    >>> number(0.012345678), number(1e-9), number(None)
    ('0.01235', '1e-09', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}g}"


def whole(value: int) -> str:
    """Return a whole number in groups of three digits, or as a power of ten if it is too long to read.

    >>> whole(1234567), whole(10**5000)
    ('1,234,567', '≈ 10⁵⁰⁰⁰')
    """
    if abs(value) < _WRITTEN_OUT:
        return f"{value:,}"
    power = math.log10(value)
    if power > 99:
        return f"≈ 10{_raised(round(power))}"
    return f"≈ {10 ** (power % 1):.2f} × 10{_raised(math.floor(power))}"


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.5), percent(0.0004), percent(0.0)
    ('50 %', '0.04 %', '0 %')
    """
    return f"{100 * share:.3g} %"


def size(shape: Sequence[int]) -> str:
    """Return a shape; a parameter without axes is a single number.

    >>> size((64, 3, 3)), size(())
    ('64 × 3 × 3', 'scalar')
    """
    return " × ".join(map(str, shape)) if shape else "scalar"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with the noun that it counts.

    >>> counted(1, "path"), counted(2, "vertex", "vertices")
    ('1 path', '2 vertices')
    """
    return f"{whole(count)} {one if count == 1 else many or one + 's'}"
