"""Check arguments: return each as its type, or raise an `InputError` that names it, its value and what to give."""

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
    """Return a value as an error shows it: in one line and not too long, whatever it is."""
    try:
        return " ".join(_SHORTENED.repr(value).split())
    except Exception:  # the value's own code, or a whole number of more digits than Python prints
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
    """Return a finite number above, from and below the limits; numbers of numpy are numbers, truth values are not.

    >>> require_number("lr", 1, above=0)
    1.0
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            result = float(value)
        except (OverflowError, TypeError, ValueError):  # whole numbers and fractions beyond what a float holds
            result = math.inf
        if math.isfinite(result) and above < result < below and result >= least:
            return result
    raise InputError(f"{name} is {shown(value)}; give {_range(above, least, below)}{remedy}")


LARGEST = 2**31 - 1  # of sizes: beyond it no tensor has room, and torch's own errors begin


def require_whole(name: str, value: object, *, least: int = 1) -> int:
    """Return a whole number that is not below the least.

    >>> require_whole("seeds", 3)
    3
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least:
        return int(value)
    raise InputError(f"{name} is {shown(value)}; give a whole number from {least} up")


def require_choice(name: str, value: object, allowed: Collection[str]) -> str:
    """Return one of the texts allowed."""
    if isinstance(value, str) and value in allowed:
        return value
    said = f"'{value}'" if isinstance(value, str) else shown(value)
    raise InputError(f"{name} is {said}; choose one of {', '.join(allowed)}")


def require_function(name: str, value: Any, *, what: str) -> Any:
    """Return what can be called; `what` says what to give instead."""
    if callable(value):
        return value
    raise InputError(f"{name} is {shown(value)}; give {what}")


def _range(above: float, least: float, below: float) -> str:
    start = f" above {above:g}" if above > -math.inf else ""
    start = f" from {least:g} up" if least > -math.inf else start
    if below == math.inf:
        return f"a finite number{start}"
    return f"a number{start.removesuffix(' up')}{' and' if start else ''} below {below:g}"
