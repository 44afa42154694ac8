"""Read plain values, as in JSON: return each with its type, or raise a ValueError that names the field."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from reprlib import repr as shortened
from typing import Any

from evenstep.errors import DamageError, EvenstepError


@contextmanager
def reading(name: str, *, remedy: str) -> Iterator[None]:
    """Turn any error inside into one; of nested contexts, the outermost gives the name and the remedy."""
    try:
        yield
    except DamageError as error:
        raise DamageError(name, error.cause, remedy) from None
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        EvenstepError,
    ) as error:
        raise DamageError(name, f"{type(error).__name__}: {error}", remedy) from None


def mapping(name: str, value: object) -> Mapping[str, Any]:
    """Return a mapping from names."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name} is {shortened(value)}, not an object")
    return value


def sequence(name: str, value: object) -> list[Any]:
    """Return the members of a list or a tuple."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} is {shortened(value)}, not a list")
    return list(value)


def number(name: str, value: object) -> float:
    """Return a number, finite or not."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} is {shortened(value)}, not a number")
    return float(value)


def finite(name: str, value: object) -> float:
    """Return a finite number."""
    result = number(name, value)
    if not math.isfinite(result):
        raise ValueError(f"{name} is {shortened(value)}, not a finite number")
    return result


def positive(name: str, value: object) -> float:
    """Return a finite number above 0."""
    result = number(name, value)
    if not 0 < result < math.inf:
        raise ValueError(f"{name} is {shortened(value)}, not a finite number above 0")
    return result


def count(name: str, value: object) -> int:
    """Return a whole number, at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {shortened(value)}, not a whole number from 1 up")
    return value


def number_or_infinite(name: str, value: object) -> float:
    """Return a number, infinite if it is None or not finite."""
    result = math.inf if value is None else number(name, value)
    return result if math.isfinite(result) else math.inf


def size_or_infinite(name: str, value: object) -> float:
    """Return a number, at least 0, infinite if it is None or not finite."""
    result = number_or_infinite(name, value)
    if result < 0:
        raise ValueError(f"{name} is {shortened(value)}, not a number from 0 up")
    return result


def positive_or_nan(name: str, value: object) -> float:
    """Return a finite number above 0, or NaN if it is None or NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return math.nan
    return positive(name, value)


def text(name: str, value: object) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {shortened(value)}, not a string")
    return value


def one_of(name: str, value: object, allowed: Collection[str]) -> str:
    """Return a string that is allowed."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} is {shortened(value)}, not one of {', '.join(allowed)}")
    return value


def finite_or_none(value: float) -> float | None:
    """Return a number for JSON: None if it is not finite."""
    return value if math.isfinite(value) else None


def loss(name: str, value: object) -> float:
    """Return a finite number, and infinity for None: what `finite_or_none` wrote of a loss."""
    return math.inf if value is None else finite(name, value)
