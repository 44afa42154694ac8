"""Put examples together to tensors with a row for each: as torch does, or by a function of the user's own."""

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
    """Return examples put together as one batch."""
    name = type(data).__name__
    try:
        count = len(data)
    except (TypeError, NotImplementedError):
        raise InputError(f"{name} has no length; give a map-style Dataset, a DataLoader or tensors") from None
    if indices is None:
        indices = range(count)
        if limit is not None and limit < count:  # spread over all: data sets may be sorted
            generator = torch.Generator().manual_seed(0)
            indices = torch.randperm(count, generator=generator)[:limit].tolist()
    examples = _taken(data, indices)
    if not examples:
        raise InputError("data is empty; give at least one example")
    try:
        if collate is None:
            return plain(_collated(examples), data)
        _require_rows_alike_in_any_batch(collate, examples[:2])
        # A function may take entries out of examples, which may be those that the data set keeps.
        value = plain(collate([_loose(example) for example in examples]), data)
    except InputError:
        raise
    except Exception as error:
        raise _unlike(name, error) from None
    require_row_each(column(value, 0), _count(examples))
    return value


def _taken(data: Any, indices: Sequence[int]) -> list[Any]:
    """Return the examples at indices, many at once where a data set can, as torch's loaders take them."""
    try:
        if callable(many := getattr(data, "__getitems__", None)):
            return list(many(list(indices)))
        return [data[index] for index in indices]
    except NotImplementedError:
        raise InputError(
            f"{type(data).__name__} does not say what its examples are; give its class a __getitem__ that returns the "
            "example at an index"
        ) from None


def _count(examples: list[Any]) -> int:
    """Return how many examples there are; functions leave out those that a data set returned None for."""
    return sum(example is not None for example in examples)


def _require_rows_alike_in_any_batch(collate: Collate, examples: list[Any]) -> None:
    """Refuse a `collate_fn` that makes other values of an example in other company: trials batch examples anew.

    Padding is no other value, and what is drawn at random cannot be compared.
    """

    def batch(part: list[Any]) -> Column:
        return column(plain(collate([_copy_of(example) for example in part]), None), len(part))

    def same(one: Column, other: list[Tensor]) -> bool:
        pairs = zip(tensors_of(one), other, strict=True)
        return all(a.shape != b.shape or torch.equal(a, b) for a, b in pairs)

    try:
        together = batch(examples)
    except Exception:  # what is wrong with it is said of all examples
        return
    require_row_each(together, _count(examples))
    try:
        again = tensors_of(batch(examples))
        apart = [torch.cat(tensors) for tensors in zip(*(tensors_of(batch([e])) for e in examples), strict=True)]
    except Exception:  # it takes no batches of one, or of tensors of different lengths
        return
    if same(together, again) and not same(together, apart):
        raise InputError(
            "the DataLoader's collate_fn makes other values of an example in another batch; trials shuffle examples "
            "into batches of their own: compute what depends on the batch in the model or the loss"
        )


def require_row_each(batch: Column, count: int, *, dropped: bool = False) -> None:
    """Refuse a batch that has no row for each of its examples: with time first, or with several rows of an example.

    Trials cut batches of their own along the first axis. Fewer rows pass where examples may be `dropped`, unless
    another axis has as many places as there are examples.
    """
    for place, tensor in named_tensors(batch):
        if not tensor.dim() or len(tensor) == count:
            continue
        name = f"'{place}'" if place else "a tensor"
        axis = next((axis for axis in range(1, tensor.dim()) if tensor.shape[axis] == count), None)
        if axis is not None:
            raise InputError(
                f"the DataLoader's collate_fn makes {name} of shape {tuple(tensor.shape)} from {count} examples: axis "
                f"{axis} looks like the batch, and trials cut batches along axis 0; put examples there "
                f"(pad_sequence(..., batch_first=True), or .transpose(0, {axis})), and let the model turn its inputs "
                "if it wants time first"
            )
        if len(tensor) > count or not dropped:
            raise InputError(
                f"the DataLoader's collate_fn makes {len(tensor)} rows from {count} examples ({name} of shape "
                f"{tuple(tensor.shape)}), and trials shuffle rows; return a row for each example, its views or parts "
                "along an axis of their own, and leave examples out in the data set"
            )


def rows_of(batch: Any) -> int:
    """Return how many rows the longest tensor of a batch has."""
    return max((len(tensor) for _, tensor in named_tensors(column(batch, 0)) if tensor.dim()), default=1)


def _loose(example: Any) -> Any:
    """Return an example that entries can be taken out of."""
    return copy.copy(example) if isinstance(example, Mapping | list) else example


def _copy_of(value: Any) -> Any:
    """Return an example that can be changed in place, tensors and all.

    A deep copy of a row would be one of the whole tensor that it is a row of.
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
    """Put examples together as torch does, numbers of Python's among them."""
    first = examples[0]
    if isinstance(first, Tensor):
        return torch.stack(examples)
    if isinstance(first, Mapping):
        return {name: _collated([example[name] for example in examples]) for name in first}
    if isinstance(first, list | tuple):
        if any(len(example) != len(first) for example in examples):
            raise ValueError("examples hold different numbers of tensors")
        if isinstance(first, list) and all(isinstance(part, int | float) for part in first):
            return torch.as_tensor(examples)  # a list of numbers, such as tokens, is one tensor
        return tuple(_collated([example[place] for example in examples]) for place in range(len(first)))
    if isinstance(first, str | bytes):
        return list(examples)
    return torch.stack([torch.as_tensor(example) for example in examples])


def joined(batches: list[Any]) -> Any:
    """Return batches as one."""
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
    """Return tensors in plain tuples and dictionaries; what is no tensor raises."""
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
    raise InputError(f"'{name}' of {kind_of(data)} holds {what}; give tensors alone, or leave that entry out")


def kind_of(data: object) -> str:
    """Return what data are, for an error."""
    return type(data).__name__


def _unlike(name: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:300]
    return InputError(
        f"the examples of {name} do not stack to tensors ({reason}); give pairs (inputs, targets), all of one shape, "
        "or a DataLoader whose collate_fn pads them"
    )
