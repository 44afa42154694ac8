"""Collate examples into tensors with a row for each: as torch does, or with the user's function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from evenstep.errors import InputError
from evenstep.search.fields import Column, column, named_tensors, tensors_of

FORMS = "(inputs, targets), a dictionary of tensors, a Dataset or a DataLoader"
Collate = Callable[[list[Any]], Any]


def stacked(data: Any, collate: Collate | None, limit: int | None, indices: Sequence[int] | None = None) -> Any:
    """Return examples collated into one batch."""
    name = type(data).__name__
    try:
        count = len(data)
    except (TypeError, NotImplementedError):
        raise InputError(f"{name} has no length; give a map-style Dataset, a DataLoader or tensors") from None
    if indices is None:
        indices = range(count)
        if limit is not None and limit < count:  # spread over the whole data set, which may be sorted
            generator = torch.Generator().manual_seed(0)
            indices = torch.randperm(count, generator=generator)[:limit].tolist()
    examples = _taken(data, indices)
    if not examples:
        raise InputError("data is empty; give at least one example")
    try:
        if collate is None:
            return plain(_collated(examples), data)
        _require_rows_alike_in_any_batch(collate, examples[:2])
        # Copy: a function may remove entries from examples, which may be the data set's own.
        value = plain(collate([_loose(example) for example in examples]), data)
    except InputError:
        raise
    except Exception as error:
        raise _unlike(name, error) from None
    require_row_each(column(value, 0), _count(examples))
    return value


def _taken(data: Any, indices: Sequence[int]) -> list[Any]:
    """Return the examples at these indices, many at once if the data set can, as torch's loaders do."""
    try:
        if callable(many := getattr(data, "__getitems__", None)):
            return list(many(list(indices)))
        return [data[index] for index in indices]
    except NotImplementedError:
        raise InputError(
            f"{type(data).__name__} does not give access to its examples; give its class a __getitem__ that returns "
            "the example at an index"
        ) from None


def _count(examples: list[Any]) -> int:
    """Return how many examples there are, without those that are None, which collate functions leave out."""
    return sum(example is not None for example in examples)


def _require_rows_alike_in_any_batch(collate: Collate, examples: list[Any]) -> None:
    """Refuse a `collate_fn` whose values for an example depend on the batch: trials form their own batches.

    Padding does not count, and values drawn at random cannot be compared.
    """

    def batch(part: list[Any]) -> Column:
        return column(plain(collate([_copy_of(example) for example in part]), None), len(part))

    def same(one: Column, other: list[Tensor]) -> bool:
        pairs = zip(tensors_of(one), other, strict=True)
        return all(a.shape != b.shape or torch.equal(a, b) for a, b in pairs)

    try:
        together = batch(examples)
    except Exception:  # collating all examples reports what is wrong
        return
    require_row_each(together, _count(examples))
    try:
        again = tensors_of(batch(examples))
        apart = [torch.cat(tensors) for tensors in zip(*(tensors_of(batch([e])) for e in examples), strict=True)]
    except Exception:  # it refuses batches of one, or tensors of different lengths
        return
    if same(together, again) and not same(together, apart):
        raise InputError(
            "the DataLoader's collate_fn makes different values of an example in different batches, but trials shuffle "
            "examples into other batches; compute what depends on the batch in the model or the loss"
        )


def require_row_each(batch: Column, count: int, *, dropped: bool = False) -> None:
    """Refuse a batch without one row for each example: with time first, or with several rows per example.

    Trials cut batches along the first axis. If examples may be `dropped`, fewer rows pass, unless another axis is as
    long as the number of examples.
    """
    for place, tensor in named_tensors(batch):
        if not tensor.dim() or len(tensor) == count:
            continue
        name = f"'{place}'" if place else "a tensor"
        axis = next((axis for axis in range(1, tensor.dim()) if tensor.shape[axis] == count), None)
        if axis is not None:
            raise InputError(
                f"the DataLoader's collate_fn makes {name} of shape {tuple(tensor.shape)} from {count} examples: axis "
                f"{axis} looks like the batch, but trials cut batches along axis 0; put examples there "
                f"(pad_sequence(..., batch_first=True), or .transpose(0, {axis})), and transpose in the model if it "
                "wants time first"
            )
        if len(tensor) > count or not dropped:
            raise InputError(
                f"the DataLoader's collate_fn makes {len(tensor)} rows from {count} examples ({name} of shape "
                f"{tuple(tensor.shape)}), but trials shuffle rows; return one row for each example, with views or "
                "parts along another axis, and leave examples out in the data set"
            )


def rows_of(batch: Any) -> int:
    """Return how many rows the longest tensor of a batch has."""
    return max((len(tensor) for _, tensor in named_tensors(column(batch, 0)) if tensor.dim()), default=1)


def _loose(example: Any) -> Any:
    """Return a copy of an example that entries can be removed from."""
    return copy.copy(example) if isinstance(example, Mapping | list) else example


def _copy_of(value: Any) -> Any:
    """Return a copy of an example, tensors included, that can be changed in place.

    A deep copy of a row would copy the whole tensor that it belongs to.
    """
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, numpy.ndarray):
        return value.copy()
    if type(value) is dict:
        return {name: _copy_of(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy_of(part) for part in value)
    return _loose(value)


def _collated(examples: list[Any]) -> Any:
    """Collate examples as torch does, including Python numbers."""
    first = examples[0]
    if isinstance(first, Tensor):
        return torch.stack(examples)
    if isinstance(first, Mapping):
        return {name: _collated([example[name] for example in examples]) for name in first}
    if isinstance(first, list | tuple):
        if any(len(example) != len(first) for example in examples):
            raise ValueError("examples hold different numbers of tensors")
        if isinstance(first, list) and all(isinstance(part, int | float) for part in first):
            return torch.as_tensor(examples)  # a list of numbers, such as tokens, becomes one tensor
        return tuple(_collated([example[place] for example in examples]) for place in range(len(first)))
    if isinstance(first, str | bytes):
        return list(examples)
    return torch.stack([torch.as_tensor(example) for example in examples])


def joined(batches: list[Any]) -> Any:
    """Join batches into one."""
    if not batches:
        raise InputError("data is empty; give at least one example")
    try:
        return _concatenated(batches)
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError) as error:
        raise _unlike("the DataLoader", error) from None


def _concatenated(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: _concatenated([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(_concatenated([part[place] for part in parts]) for place in range(len(parts[0])))
    return torch.cat(parts)


def plain(value: Any, data: Any, name: str = "") -> Any:
    """Return tensors in plain tuples and dictionaries; anything else raises."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(part, data, f"{name}.{key}" if name else str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple) and not (value and isinstance(value[0], str | bytes)):
        return tuple(plain(part, data, f"{name}.{place}" if name else str(place)) for place, part in enumerate(value))
    if hasattr(value, "__array__"):
        return torch.as_tensor(value)
    what = "str" if isinstance(value, list) else type(value).__name__
    if not name:
        raise InputError(f"data is {kind_of(data)}; give a pair of tensors {FORMS}")
    raise InputError(f"'{name}' of {kind_of(data)} holds {what}; give tensors only, or leave that entry out")


def kind_of(data: object) -> str:
    """Return what kind of data these are, for an error."""
    return type(data).__name__


def _unlike(name: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:300]
    return InputError(
        f"the examples of {name} do not stack into tensors ({reason}); give pairs (inputs, targets) of one shape, "
        "or a DataLoader whose collate_fn pads them"
    )
