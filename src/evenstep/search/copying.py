"""What a copy of a network, or a job in another process, would lose without a word: refused, with the remedy."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenstep.errors import InputError, SearchError
from evenstep.search.python_values import Unreadable, ValueReader, digest_of


def require_copies(model: nn.Module) -> None:
    """Refuse a network whose copies are others: every trial trains a copy."""
    kind = type(model).__name__
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise InputError(
                f"parameter '{name}' of {kind} has a hook on its gradient, which copies of the network lose, and every "
                "trial trains a copy; scale what the loss sees instead, or the plan's rate of that parameter"
            )
    own = {id(module) for module in model.modules()} | {id(tensor) for tensor in _tensors(model)}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, types.FunctionType) and any(id(held) in own for held in _closed_over(value)):
                place = f"{path}.{name}".strip(".")
                raise InputError(
                    f"'{place}' of {kind} is a function that holds the network itself, and in a copy of the network it "
                    "would hold the original; make it a method"
                )


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def code_seen(model: nn.Module, loss: Any) -> str | None:
    """Return a digest of the code of a model's classes and of the loss, with the globals they read, as they are here.

    None where something has no content to read.
    """
    try:
        kinds = sorted({ValueReader().digest(_class_of(module), type(module).__name__) for module in model.modules()})
        seen = [*kinds, ValueReader().digest(loss, "loss"), str(torch.get_default_dtype())]
    except Unreadable:
        return None
    return digest_of(" ".join(seen).encode())


def _class_of(module: nn.Module) -> type:
    """Return a module's class; of a parametrised one the class it had before."""
    return type(module).__bases__[0] if parametrize.is_parametrized(module) else type(module)


def require_as_sent(model: nn.Module, loss: Any, sent: str | None) -> None:
    """Refuse to train with other code, or other values that code reads, than where the job comes from."""
    if sent is not None and code_seen(model, loss) != sent:
        raise SearchError(
            f"{type(model).__name__} or the loss reads something that this worker sees as it is in a new process, not "
            "as it was set in yours (a module's variable, say); hand it over as an argument, or train with workers=1"
        )
