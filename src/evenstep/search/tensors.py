"""Data as a pair of tensors, whatever it came as, and checked before anything is trained on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from evenstep.errors import InputError
from evenstep.search.job import Data


def as_tensors(data: Any) -> Data:
    """Return (inputs, targets) from such a pair, a map-style `Dataset` of pairs, or a `DataLoader`'s data set."""
    with torch.random.fork_rng(devices=[]):  # loaders, and data sets that vary their examples, draw random numbers
        if isinstance(data, DataLoader):
            data = _joined(list(data)) if isinstance(data.dataset, IterableDataset) else data.dataset
        if isinstance(data, Dataset) and not isinstance(data, tuple):
            data = _stacked(data)
    if not (isinstance(data, list | tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)):
        raise InputError(
            f"data is {type(data).__name__}; give a pair of tensors (inputs, targets), a Dataset or a DataLoader"
        )
    inputs, targets = data
    for name, part in (("inputs", inputs), ("targets", targets)):
        if part.is_meta:
            raise InputError(f"the {name} are on the device 'meta' and hold no values; give tensors with values")
        if part.layout != torch.strided or part.is_nested:
            raise InputError(f"the {name} are {_kind(part)}; give dense ones, such as {name}.to_dense()")
        if part.is_quantized:
            raise InputError(f"the {name} are quantized; give plain ones: {name}.dequantize()")
    if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) != len(targets):
        raise InputError(
            f"data holds inputs of shape {tuple(inputs.shape)} and targets of shape {tuple(targets.shape)}; give as "
            "many targets as inputs"
        )
    if not len(inputs):
        raise InputError("data is empty; give at least one example")
    for name, part in (("inputs", inputs), ("targets", targets)):
        if part.is_floating_point() and not bool(part.isfinite().all()):
            raise InputError(f"the {name} hold values that are not finite; clean the data first")
    return inputs.detach(), targets.detach()


def _kind(tensor: Tensor) -> str:
    return "nested" if tensor.is_nested else f"sparse ({str(tensor.layout).removeprefix('torch.')})"


def _stacked(data: Dataset[Any]) -> Data:
    try:
        pairs = [data[index] for index in range(len(data))]  # type: ignore[arg-type]
    except TypeError:
        raise InputError(
            f"{type(data).__name__} has no length; give a map-style Dataset, a DataLoader or tensors"
        ) from None
    if not pairs:
        raise InputError("data is empty; give at least one example")
    try:
        inputs, targets = zip(*((torch.as_tensor(x), torch.as_tensor(y)) for x, y in pairs), strict=True)
        return torch.stack(inputs), torch.stack(targets)
    except (RuntimeError, TypeError, ValueError) as error:
        raise _unlike(type(data).__name__, error) from None


def _joined(batches: list[Any]) -> Data:
    if not batches:
        raise InputError("data is empty; give at least one example")
    try:
        return torch.cat([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches])
    except (RuntimeError, TypeError, ValueError) as error:
        raise _unlike("the DataLoader", error) from None


def _unlike(name: str, error: Exception) -> InputError:
    return InputError(
        f"the examples of {name} do not stack to tensors ({error}); give pairs (inputs, targets), all of one shape"
    )
