"""Find what a function reads besides its arguments: its own parameters, or those of the model that trials copy.

Its code says where to look: in its closure, in the globals and attributes that it names, in its defaults, and in
containers and objects there.
"""

from __future__ import annotations

import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor, nn

from evenstep.errors import InputError, SearchWarning, warn
from evenstep.search.python_values import attribute_names, cell_contents, global_names, in_library

_DEPTH = 8  # nested objects
_MANY = 1000  # entries of a container: lists of parameters are shorter
_CALLED = frozenset({"__call__", "forward"})  # attributes that a call of an object uses


def held_by(function: Callable[..., Any]) -> Iterator[nn.Module | Tensor]:
    """Yield the modules and tensors that a function is, is bound to, or reads from outside."""
    seen: dict[tuple[int, frozenset[str]], Any] = {}  # keeps the value alive, or another could take its address

    def inside(value: Any, names: frozenset[str], depth: int) -> Iterator[nn.Module | Tensor]:
        if depth > _DEPTH or (id(value), names) in seen:
            return
        seen[id(value), names] = value
        if isinstance(value, nn.Module | Tensor):
            yield value
        for part, named in _parts(value, names):
            yield from inside(part, named, depth + 1)

    yield from inside(function, _CALLED, 0)


def _parts(value: Any, names: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield what code that names these attributes can reach from a value in one step, with the names it uses there."""
    match value:
        case Tensor() | type() | str() | bytes():
            return
        case list() | tuple() | set() | frozenset() | deque():
            yield from ((part, names) for part in islice(value, _MANY))
        case Mapping():
            yield from ((part, names) for part in islice(value.values(), _MANY))
        case partial():
            yield from ((part, names) for part in (value.func, *value.args, *value.keywords.values()))
        case types.MethodType():
            yield value.__func__, names
            yield value.__self__, _attributes(value.__func__) - _CALLED
        case types.FunctionType():
            yield from ((part, _attributes(value)) for part in _outside(value))
        case types.BuiltinFunctionType():
            yield value.__self__, names
        case types.ModuleType():
            if not in_library(value.__name__):
                yield from ((vars(value)[name], names) for name in names & set(vars(value)))
        case _:
            if (wrapped := getattr(value, "__wrapped__", None)) is not None:
                yield wrapped, names
            held = getattr(value, "__dict__", {})
            yield from ((held[name], names | _CALLED) for name in names & set(held))
            yield from ((types.MethodType(code, value), names) for code in _methods(type(value), names))


def _outside(function: types.FunctionType) -> Iterator[Any]:
    """Yield a function's closure, its defaults, and the globals that it names."""
    yield from (content for cell in function.__closure__ or () for content in cell_contents(cell))
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    if not in_library(function.__module__ or "__main__"):
        known = function.__globals__
        yield from (known[name] for name in sorted(global_names(function.__code__)) if name in known)


def _methods(kind: type, names: frozenset[str]) -> Iterator[types.FunctionType]:
    """Yield the user's methods and properties with these names."""
    for name in sorted(names):
        found = inspect.getattr_static(kind, name, None)
        code = found.fget if isinstance(found, property) else found
        if isinstance(code, types.FunctionType) and not in_library(code.__module__ or "__main__"):
            yield code


def _attributes(function: Any) -> frozenset[str]:
    code = getattr(function, "__code__", None)
    return _CALLED.union(attribute_names(code)) if isinstance(code, types.CodeType) else _CALLED


def require_apart(loss: Callable[..., Any] | None, model: nn.Module) -> None:
    """Refuse a loss that reads the model's own parameters: trials train copies, whose parameters it would not see."""
    own = {id(parameter) for parameter in model.parameters()}
    for held in held_by(loss) if loss is not None else ():
        if any(id(parameter) in own for parameter in _parameters(held)):
            what = f"the {type(held).__name__}" if isinstance(held, nn.Module) else "a parameter of the network"
            raise InputError(
                f"the loss reads {what} that is to be planned, but trials train copies of it; "
                "compute penalties in the model's forward, or give weight_decay to the optimizer"
            )


def report_held(loss: Callable[..., Any]) -> None:
    """Warn of parameters that a loss holds: no trial trains them."""
    for held in held_by(loss):
        if any(parameter.requires_grad and parameter.is_leaf for parameter in _parameters(held)):
            whose = type(held).__name__ if isinstance(held, nn.Module) else f"shape {tuple(held.shape)}"
            warn(
                f"the loss holds the trainable parameters of {whose}, which trials leave as they are; "
                "make them part of the model to train them, or call requires_grad_(False) on them",
                SearchWarning,
            )


def _parameters(held: nn.Module | Tensor) -> Iterator[Tensor]:
    yield from held.parameters() if isinstance(held, nn.Module) else (held,)
