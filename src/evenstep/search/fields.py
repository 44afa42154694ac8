"""Inputs of a model and targets of its loss: one tensor, or several that are indexed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from evenstep.errors import InputError

LABELS = ("labels", "label")  # entries of a dictionary that a loss takes as targets
Kept = TypeVar("Kept", "Tensor", "Fields", "Tensor | Fields")


@dataclass(frozen=True)
class Fields:
    """Hold tensors of one length in tuples and dictionaries; indexing takes the same examples of each.

    As inputs, a tuple holds positional arguments of the model's forward and a dictionary its keyword arguments. As
    targets, `value` is what a loss compares the output with, or None if the loss takes the output alone.

    >>> fields = Fields({"tokens": torch.arange(6).reshape(3, 2), "mask": torch.ones(3)}, 3)
    >>> fields[1:].value["tokens"].tolist()
    [[2, 3], [4, 5]]
    """

    value: Any
    count: int

    def __len__(self) -> int:
        """Return the number of examples."""
        return self.count

    def __getitem__(self, index: Tensor | slice) -> Fields:
        """Return the examples at an index."""
        count = len(range(self.count)[index]) if isinstance(index, slice) else len(index)
        return Fields(_mapped(self.value, lambda tensor: tensor[index]), count)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next((tensor.device for _, tensor in named_tensors(self)), torch.device("cpu"))


Column = Tensor | Fields
Data = tuple[Column, Column]
TensorPair = tuple[Tensor, Tensor]


def column(value: Any, count: int) -> Column:
    """Return a tensor unchanged, and anything else as fields."""
    return value if isinstance(value, Tensor) else Fields(value, count)


def each(values: Kept, change: Callable[[Tensor], Tensor]) -> Kept:
    """Return a tensor or fields with `change` applied to every tensor."""
    if isinstance(values, Fields):
        return Fields(_mapped(values.value, change), values.count)
    return change(values)


def named_tensors(values: Column, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors with their names: 'tokens', '0', or the given name for a single tensor."""
    yield from _named(values.value if isinstance(values, Fields) else values, name)


def tensors_of(values: Column) -> list[Tensor]:
    """Return the tensors."""
    return [tensor for _, tensor in named_tensors(values)]


def arguments_of(inputs: Column) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments that a model is called with."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    return ((), inputs.value) if isinstance(inputs.value, dict) else (tuple(inputs.value), {})


def copy_of(values: Kept) -> Kept:
    """Return a copy, because models and losses may change it in place and slices share the data's memory."""
    return each(values, Tensor.clone)


def called(model: nn.Module, inputs: Column, *, copied: bool = False) -> Any:
    """Call a model on a copy of its inputs, or on the inputs if they are `copied` already."""
    args, kwargs = arguments_of(inputs if copied else copy_of(inputs))
    return model(*args, **kwargs)


def loss_of(loss: Callable[..., Any], output: Any, targets: Column, *, copied: bool = False) -> Tensor:
    """Return a loss of the output and its targets, or of the output alone if there are none."""
    given = targets if copied else copy_of(targets)
    held = given.value if isinstance(given, Fields) else given
    value: Tensor = loss(output) if held is None else loss(output, held)
    return value


def own_loss(output: Any) -> Tensor:
    """Return the loss that a model computes itself, its output's `loss`."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise InputError(
            f"the model returned {type(output).__name__} without a loss; give loss=, a function of the output and the "
            "targets or of the output alone, or add what the model computes its loss from to batches, such as 'labels'"
        )
    return loss


def words(values: Column) -> str:
    """Return the shapes, for an error: '(64, 8)', or 'tokens (64, 8), mask (64,)'."""
    named = list(named_tensors(values))
    if not named:
        return "none"
    return ", ".join(f"{name} {tuple(tensor.shape)}".strip() for name, tensor in named)


def _named(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _named(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, tuple):
        for place, part in enumerate(value):
            yield from _named(part, f"{name}.{place}" if name else str(place))


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(part, change) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_mapped(part, change) for part in value)
    return value
