"""Refuse what a copy of a network, or a job in another process, would silently lose."""

from __future__ import annotations

import contextlib
import functools
import importlib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenstep.errors import InputError, SearchError
from evenstep.search.held import held_by
from evenstep.search.python_values import Unreadable, ValueReader


def require_copies(model: nn.Module) -> None:
    """Refuse a network whose copies would behave differently, because every trial trains a copy."""
    kind = type(model).__name__
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise InputError(
                f"parameter '{name}' of {kind} has a hook on its gradient, which copies of the network lose, but every "
                "trial trains a copy; scale what the loss sees instead, or the plan's rate for that parameter"
            )
    own = {id(module) for module in model.modules()} | {id(tensor) for tensor in _tensors(model)}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            for function in _functions(value) if name not in _NOT_COPIED else ():
                if any(id(held) in own for held in held_by(function)):
                    raise InputError(_holds_original(kind, path, name))


_HOOKS = frozenset({"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"})
# Attributes that training does not call, or that are made anew for a copy.
_NOT_COPIED = frozenset(vars(nn.Module())) - _HOOKS | {"_compiled_call_impl"}
_DEPTH = 4  # nested containers


def _holds_original(kind: str, path: str, name: str) -> str:
    if name in _HOOKS:
        place = f"'{path}' of {kind}" if path else kind
        return (
            f"a hook on {place} holds modules or parameters of the network itself, so in a copy of the network it "
            "would use the original's; compute it in a module's forward"
        )
    place = f"{path}.{name}".strip(".")
    return (
        f"'{place}' of {kind} is or has a function that holds the network itself, so in a copy of the network it "
        "would hold the original; make it a method"
    )


def _functions(value: Any, depth: int = 0) -> Iterator[types.FunctionType]:
    """Yield the functions in a module's attribute: a copy shares them, whereas objects are copied with it."""
    if isinstance(value, types.FunctionType):
        yield value
    elif depth < _DEPTH:
        parts: Iterable[Any] = ()
        if isinstance(value, list | tuple | set):
            parts = value
        elif isinstance(value, dict):
            parts = value.values()
        elif isinstance(value, functools.partial):
            parts = (value.func, *value.args, *value.keywords.values())
        for part in parts:
            yield from _functions(part, depth + 1)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


@dataclass(frozen=True, slots=True)
class CodeSeen:
    """Hold digests of the code of a model's classes and of the loss, by name, as one process sees them.

    Variables come before the code that reads them. `imported` lists the modules that the code imported as it ran.
    """

    values: Mapping[str, str]
    imported: tuple[str, ...]

    def first_difference(self, other: CodeSeen) -> str | None:
        """Return the name of the first thing that differs there: a variable rather than the function that reads it."""
        names = dict.fromkeys((*self.values, *other.values))
        return next((name for name in names if self.values.get(name) != other.values.get(name)), None)


def code_seen(model: nn.Module, loss: Any) -> CodeSeen | None:
    """Return digests of a model's code and the loss in this process, or None if something cannot be read."""
    values: dict[str, str] = {}
    imported: set[str] = set()
    parts = {f"the class {kind.__qualname__}": kind for kind in dict.fromkeys(map(_class_of, model.modules()))}
    for name, part in (parts | {"the loss": loss}).items():
        reader = ValueReader()
        try:
            found = reader.digest(part, name)
        except Unreadable:
            return None
        values |= reader.seen | {name: found}
        imported |= reader.imported
    return CodeSeen(values | {"torch's default dtype": str(torch.get_default_dtype())}, tuple(sorted(imported)))


def _class_of(module: nn.Module) -> type:
    """Return a module's class; for a parametrised module, the class it had before."""
    return type(module).__bases__[0] if parametrize.is_parametrized(module) else type(module)


class NotAsSentError(SearchError):
    """Report a job that differs in another process from where it was made."""


def require_as_sent(model: nn.Module, loss: Any, sent: CodeSeen | None) -> None:
    """Refuse to train if the code, or a value that it reads, differs from where the job was made."""
    if sent is None:
        return
    for name in sent.imported:
        with contextlib.suppress(Exception):  # if it matters, training reports it
            importlib.import_module(name)
    here = code_seen(model, loss)
    different = "what they read" if here is None else sent.first_difference(here)
    if different is not None:
        raise NotAsSentError(
            f"{type(model).__name__} or the loss reads '{different}', which is not in a new process what it is in "
            "yours; pass it as an argument, or set it when its module is imported"
        )
