"""Check arguments: return each with its type, or raise an `InputError` that names it, its value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from reprlib import Repr
from typing import Any

from evenstep.errors import InputError

_SHORTENED = Repr()
_SHORTENED.maxstring = _SHORTENED.maxother = 80


def shown(value: object) -> str:
    """Return a value as errors show it: short and on one line."""
    try:
        return " ".join(_SHORTENED.repr(value).split())
    except Exception:  # raised by the value's own code, or for an integer with more digits than Python prints
        return f"a {type(value).__name__}"


def require_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    remedy: str = "",
) -> float:
    """Return a finite number within the limits; numpy's numbers are accepted, booleans are not.

    >>> require_number("lr", 1, above=0)
    1.0
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            result = float(value)
        except (OverflowError, TypeError, ValueError):  # integers and fractions too large for a float
            result = math.inf
        if math.isfinite(result) and above < result < below and result >= least:
            return result
    raise InputError(f"{name} is {shown(value)}; give {_range(above, least, below)}{remedy}")


LARGEST = 2**31 - 1  # the largest size: no tensor can be larger, and torch raises errors of its own


def require_whole(name: str, value: object, *, least: int = 1) -> int:
    """Return a whole number that is at least `least`.

    >>> require_whole("seeds", 3)
    3
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least:
        return int(value)
    raise InputError(f"{name} is {shown(value)}; give a whole number from {least} up")


def require_choice(name: str, value: object, allowed: Collection[str]) -> str:
    """Return a text that has to be one of those allowed."""
    if isinstance(value, str) and value in allowed:
        return value
    quoted = f"'{value}'" if isinstance(value, str) else shown(value)
    raise InputError(f"{name} is {quoted}; choose one of {', '.join(allowed)}")


def require_function(name: str, value: Any, *, what: str) -> Any:
    """Return a callable; `what` tells the user what to give instead of anything else."""
    if callable(value):
        return value
    raise InputError(f"{name} is {shown(value)}; give {what}")


def _range(above: float, least: float, below: float) -> str:
    start = f" above {above:g}" if above > -math.inf else ""
    start = f" from {least:g} up" if least > -math.inf else start
    if below == math.inf:
        return f"a finite number{start}"
    return f"a number{start.removesuffix(' up')}{' and' if start else ''} below {below:g}"
