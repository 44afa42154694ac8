"""Fields of frozen dataclasses: written as plain values, read back, and checked."""

from __future__ import annotations

import math
import sys
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from evenstep.errors import GraphError, InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Read = TypeVar("Read", bound="DataclassInstance")


def non_default_fields(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dictionary without fields at their default."""
    return {f.name: getattr(value, f.name) for f in fields(value) if f.init and getattr(value, f.name) != f.default}


# Limits for numbers of operators and parameters, besides being whole or finite.
_AT_LEAST_ONE = frozenset({"fan_in", "fan_out", "kernel_size", "groups", "window", "terms"})
_NOT_NEGATIVE = frozenset({"gain", "measured", "fraction"})


def validated(value: Read) -> Read:
    """Return a dataclass read from text; raise if a field has the wrong type or is out of range."""
    for f in fields(value):
        if not f.init:
            continue
        given = getattr(value, f.name)
        problem = _problem(f.name, f.default, given)
        if problem:
            raise GraphError(f"{f.name} of {value} is {given!r}; {problem}")
    return value


def _problem(name: str, default: Any, given: Any) -> str:
    """Return what to give for a field instead; nothing if its value is valid."""
    number = type(given) in (int, float) and abs(given) <= sys.float_info.max  # integers may overflow a float
    if type(default) is bool:
        return "" if type(given) is bool else "give true or false"
    if type(default) is int and (type(given) is not int or given < 0 or not number):
        return "give a whole number"
    if type(default) is float and not number:
        return "give a number"
    if default is None and given is not None and not number:
        return "give a number, or nothing"
    if (type(default) is str or default is MISSING) and name not in ("shape", "operators") and type(given) is not str:
        return "give a text"
    if number and name in _AT_LEAST_ONE and given < 1:
        return "give a number from 1 up"
    if number and name in _NOT_NEGATIVE and given < 0:
        return "give a number from 0 up"
    return "give a number up to 1" if name == "fraction" and given > 1 else ""


def require_valid_fields(owner: Any) -> None:
    """Refuse a rule or an initialisation with a number that is not finite or below zero, or a switch that is none."""
    for f in fields(owner):
        value = getattr(owner, f.name)
        if type(f.default) in (int, float) and not (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
        ):
            raise InputError(f"{f.name} of {owner.name or type(owner).__name__} is {value!r}; give a number from 0 up")
        if type(f.default) is bool and type(value) is not bool:
            raise InputError(f"{f.name} of {owner.name or type(owner).__name__} is {value!r}; give True or False")


def described(owner: Any) -> str:
    """Name a rule or an initialisation, with every field that is not at its default.

    >>> from evenstep.init import Conserve
    >>> described(Conserve(readout_second_moment=1.0))
    'conserve(readout_second_moment=1.0)'
    """
    unusual = non_default_fields(owner) if is_dataclass(owner) else {}
    changed = ", ".join(f"{name}={value!r}" for name, value in unusual.items() if name not in ("name", "layerwise"))
    return f"{owner.name}({changed})" if changed else str(owner.name)


def name_of(description: str) -> str:
    """Return the bare name from the output of `described`."""
    return description.partition("(")[0]
