"""Fields of frozen dataclasses: as plain values, read back, and checked."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from evenstep.errors import GraphError, InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Read = TypeVar("Read", bound="DataclassInstance")


def non_default_fields(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dictionary without the fields that hold their default."""
    return {f.name: getattr(value, f.name) for f in fields(value) if f.init and getattr(value, f.name) != f.default}


def validated(value: Read) -> Read:
    """Return a dataclass read from text, or raise if a field that has a default is of another kind."""
    for f in fields(value):
        given = getattr(value, f.name)
        if type(f.default) is bool and type(given) is not bool:
            raise GraphError(f"{f.name} of {value} is {given!r}; give true or false")
        if type(f.default) is int and (type(given) is not int or given < 0):
            raise GraphError(f"{f.name} of {value} is {given!r}; give a whole number")
        if type(f.default) is float and not (type(given) in (int, float) and math.isfinite(given)):
            raise GraphError(f"{f.name} of {value} is {given!r}; give a number")
        if type(f.default) is str and type(given) is not str:
            raise GraphError(f"{f.name} of {value} is {given!r}; give a text")
    return value


def require_valid_fields(owner: Any) -> None:
    """Refuse a rule or an initialisation with a number that is not finite, or below zero."""
    for f in fields(owner):
        value = getattr(owner, f.name)
        if type(f.default) in (int, float) and not (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
        ):
            raise InputError(f"{f.name} of {owner.name or type(owner).__name__} is {value!r}; give a number from 0 up")


def described(owner: Any) -> str:
    """Name a rule or an initialisation, with every field that is not as usual.

    >>> from evenstep.init import Conserve
    >>> described(Conserve(readout_power=0.5))
    'conserve(readout_power=0.5)'
    """
    unusual = non_default_fields(owner) if is_dataclass(owner) else {}
    changed = ", ".join(f"{name}={value!r}" for name, value in unusual.items() if name not in ("name", "layerwise"))
    return f"{owner.name}({changed})" if changed else str(owner.name)


def name_of(description: str) -> str:
    """Return the bare name of what `described` names."""
    return description.partition("(")[0]
