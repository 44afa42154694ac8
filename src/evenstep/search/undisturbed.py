"""Leave data as they were: restore the generators that a loader, its samplers or a data set hold."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch

_DEEP = 8  # nested attributes: a loader's data set's subset's list of transforms and their generators
_LONG = 256  # entries of a list or dictionary: longer ones hold examples
_MANY = 10_000  # objects in total

Restore = Callable[[], object]


@contextlib.contextmanager
def undisturbed(data: Any) -> Iterator[None]:
    """Restore every generator that can be reached from data."""
    restores = [restore for restore in map(_restore_of, _reached(data)) if restore]
    try:
        yield
    finally:
        for restore in restores:
            restore()


def _restore_of(value: Any) -> Restore | None:
    """Return a function that restores a generator's present state, or None for anything else."""
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, numpy.random.Generator):
        value = value.bit_generator
    if isinstance(value, numpy.random.BitGenerator):
        return partial(setattr, value, "state", value.state)
    if isinstance(value, numpy.random.RandomState):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return partial(value.setstate, value.getstate())
    return None


def _reached(data: Any) -> Iterator[Any]:
    """Yield the objects that data consist of, nearest first."""
    seen: dict[int, Any] = {}
    level = [data]
    for _ in range(_DEEP):
        further: list[Any] = []
        for value in level:
            if id(value) in seen or isinstance(value, type | ModuleType | torch.Tensor | numpy.ndarray):
                continue
            if len(seen) == _MANY:
                return
            seen[id(value)] = value  # kept alive, or another object could get its id
            yield value
            further += _parts(value)
        level = further


def _parts(value: Any) -> list[Any]:
    """Return what an object holds: its entries, its attributes, or a function's closure."""
    if isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)] + [
            *(value.__defaults__ or ())
        ]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    entries: list[Any] = []
    if isinstance(value, list | tuple | dict) and len(value) <= _LONG:
        entries = [*value.values()] if isinstance(value, dict) else [*value]
    attributes = getattr(value, "__dict__", None)
    return entries + [*attributes.values()] if isinstance(attributes, Mapping) else entries


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable without a value
        return False
