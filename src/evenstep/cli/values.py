"""Read values that an option gives as text: lists of numbers, and sizes by name."""

from __future__ import annotations

from typing import Any

from evenstep.errors import InputError

_WORDS = {"true": True, "false": False, "none": None}


def numbers(option: str, text: str) -> list[float]:
    """Return numbers separated by commas.

    >>> numbers("grid", "0.01, 0.1,1")
    [0.01, 0.1, 1.0]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--{option} is '{text}'; give numbers separated by commas, such as 0.01,0.1,1") from None


def sizes(option: str, text: str) -> dict[str, Any]:
    """Return values by name: whole numbers, other numbers, true, false, none, or words.

    >>> sizes("shrink", "depth=1,width=64,norm=batch")
    {'depth': 1, 'width': 64, 'norm': 'batch'}
    """
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name.isidentifier() or not value or name in values:
            raise InputError(f"--{option} is '{text}'; give names and values, each name once, such as depth=1,width=64")
        values[name] = _value(value)
    return values


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return _WORDS.get(text.lower(), text)
