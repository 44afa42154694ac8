"""Make a smaller network for a search, by calling a function with other sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from evenstep.arguments import shown
from evenstep.errors import InputError

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def shrunk(make_model: Callable[..., nn.Module], sizes: Mapping[str, Any] | None) -> Callable[[], nn.Module]:
    """Return a function that makes the network with these sizes, or raise if it does not take them.

    >>> def make(width: int = 256, depth: int = 4) -> nn.Module: ...
    >>> shrunk(make, {"widht": 64})
    Traceback (most recent call last):
        ...
    evenstep.errors.InputError: shrink names 'widht', and make takes width, depth; give some of these
    """
    if sizes is None:
        return make_model
    if not isinstance(sizes, Mapping) or not sizes or not all(isinstance(name, str) for name in sizes):
        raise InputError(f"shrink is {shown(sizes)}; give sizes by name, such as {{'width': 64}}, or leave it out")
    for name, value in sizes.items():
        if not _is_plain(value):
            raise InputError(
                f"shrink gives '{name}' as {shown(value)}; give numbers, strings or lists of them, and bind the rest "
                "with functools.partial"
            )
    _require_taken(make_model, sizes)
    return partial(make_model, **sizes)


def plain_sizes(sizes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return sizes as JSON holds them, so that a result reads back unchanged."""
    return None if sizes is None else {name: _plain(value) for name, value in sizes.items()}


def _require_taken(make_model: Callable[..., Any], sizes: Mapping[str, Any]) -> None:
    name_of = getattr(make_model, "__name__", type(make_model).__name__)
    try:
        signature = inspect.signature(make_model)
    except (TypeError, ValueError):  # without a signature, the call itself will raise
        return
    parameters = signature.parameters.values()
    taken = [p.name for p in parameters if p.kind in _NAMED]
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        for name in sizes:
            if name not in taken:
                known = f"takes {', '.join(taken)}; give some of these" if taken else "takes none; leave shrink out"
                raise InputError(f"shrink names '{name}', and {name_of} {known}")
    lacking = [
        p.name for p in parameters if p.kind in _NAMED and p.default is inspect.Parameter.empty and p.name not in sizes
    ]
    if lacking:
        raise InputError(f"{name_of} also needs '{lacking[0]}'; add it to shrink")


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
