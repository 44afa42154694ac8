"""Read data once into tensors, and check them before anything trains on them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from evenstep.errors import InputError
from evenstep.module.exported import explained, split_inputs
from evenstep.search.base.recording import run
from evenstep.search.collating import FORMS, joined, kind_of, plain, rows_of, stacked
from evenstep.search.fields import LABELS, Column, Data, column, each, named_tensors, own_loss
from evenstep.search.loaders import first_batches, indices_of, takes_all
from evenstep.search.randomness import copied, own_randomness
from evenstep.search.recipe import Loss
from evenstep.search.trying import require_values
from evenstep.search.undisturbed import undisturbed


@dataclass(frozen=True)
class Loaded:
    """Hold data that were read, with the loss to train with and their loader's batch size."""

    data: Data
    loss: Loss
    batch_size: int | None = None

    @classmethod
    def of(cls, data: Any, loss: Loss | None = None, *, limit: int | None = None) -> Loaded:
        """Read data once for several searches."""
        tensors, chosen = as_tensors(data, loss, limit=limit)
        return cls(tensors, chosen, loader_batch_size(data))


def loader_batch_size(data: Any) -> int | None:
    """Return a loader's batch size, or None for other data."""
    if not isinstance(data, DataLoader) or data.batch_size is not None:
        return data.batch_size if isinstance(data, DataLoader | Loaded) else None
    with undisturbed(data), own_randomness(0):
        if data.batch_sampler is not None:  # the user's batch sampler
            return max((len(batch) for batch in islice(data.batch_sampler, 1)), default=None)
        batch = next(iter(data), None)
    return None if batch is None else rows_of(plain(batch, data))


def as_tensors(
    data: Any, loss: Loss | None = None, *, limit: int | None = None, enough: int | None = None
) -> tuple[Data, Loss]:
    """Return the inputs and targets that `data` holds, and the loss to train with.

    `data` is a pair of tensors, a tuple of several inputs and the targets, a dictionary of tensors, a map-style
    `Dataset` of such examples, or a `DataLoader`, whose `collate_fn` is used. A dictionary holds keyword arguments of
    the model.

    A `loss` with one argument takes the model's output alone, and all of an example goes to the model. By default the
    loss is the cross entropy of outputs and targets, or for dictionaries the loss that the model computes itself. At
    most `limit` examples are read, and from a loader without a length no more than are `enough`.
    """
    if isinstance(data, Loaded):
        return data.data, data.loss
    if isinstance(loss, type):
        raise InputError(f"loss is the class {loss.__name__}; give an instance of it, such as {loss.__name__}()")
    value = _read(data, limit, enough)
    count = _require_sound(value, data)
    inputs, targets, chosen = _split(value, loss, data)
    return (each(column(inputs, count), Tensor.detach), each(column(targets, count), Tensor.detach)), chosen


def _split(value: Any, loss: Loss | None, data: Any) -> tuple[Any, Any, Loss]:
    """Return what goes to the model, what goes to the loss, and the loss."""
    # A loss that may take targets gets them if the data are pairs; a whole dictionary goes to the model.
    alone = loss is not None and takes_output_alone(loss, strictly=not isinstance(value, dict))
    if isinstance(value, dict):
        labels = next((name for name in LABELS if name in value), None)
        if loss is None:
            return value, None, own_loss
        if alone:
            return value, None, loss
        if labels is None:
            raise InputError(
                f"the loss takes outputs and targets, but a batch holds {_listed(value)}; name the targets 'labels', "
                "or give a loss of the output alone"
            )
        return {name: part for name, part in value.items() if name != labels}, value[labels], loss
    if not isinstance(value, tuple):
        if loss is not None and alone:
            return value, None, loss
        raise InputError(f"data is {kind_of(data)} without targets; give {FORMS}, or a loss of the output alone")
    if loss is not None and alone:
        return value[0] if len(value) == 1 else value, None, loss
    if len(value) < 2:
        raise InputError(f"an example holds {len(value)} tensor and no target; give {FORMS}")
    inputs = value[0] if len(value) == 2 else value[:-1]
    if loss is None:
        _require_classes(value[-1])
    return inputs, value[-1], loss or functional.cross_entropy


def _require_classes(targets: Any) -> None:
    """Refuse targets that do not suit cross entropy, which is the default loss."""
    if not isinstance(targets, Tensor) or not targets.is_floating_point():
        return
    probabilities = targets.dim() > 1 and targets.shape[1] > 1 and bool((targets >= 0).all())
    if not probabilities or not torch.allclose(targets.sum(1).float(), torch.ones(()), atol=1e-3):
        raise InputError(
            f"the targets are {targets.dtype}, neither classes nor probabilities, and no loss is given; give loss=, "
            "such as torch.nn.functional.mse_loss, or whole numbers for cross entropy"
        )


def takes_output_alone(loss: Callable[..., Any], *, strictly: bool = False) -> bool:
    """Say whether a loss takes the model's output alone: its signature has no parameter for targets.

    Parameters with a default do not count, unless `strictly` asks that there be none at all.
    """
    function = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built-in functions without a signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return False
    places = [p for p in parameters if p.kind in kinds]
    required = [p for p in places if p.default is inspect.Parameter.empty]
    return len(places) == 1 or (len(required) == 1 and not strictly)


def _read(data: Any, limit: int | None, enough: int | None) -> Any:
    """Return all examples as tensors in tuples and dictionaries; random states stay as they were."""
    # Random examples come out the same each time, because a store recognises a search by its data.
    with undisturbed(data), own_randomness(0):
        if isinstance(data, DataLoader):
            return _of_loader(data, limit, enough)
        if isinstance(data, IterableDataset):
            raise InputError(f"{type(data).__name__} has no length; give a map-style Dataset, a DataLoader or tensors")
        if isinstance(data, Tensor | Mapping):
            return plain(data, data)
        if isinstance(data, Dataset) and not isinstance(data, tuple):
            return stacked(data, None, limit)
        if isinstance(data, list | tuple) and data and all(isinstance(part, Tensor | Mapping | tuple) for part in data):
            if isinstance(data, list) and not all(isinstance(part, Tensor) for part in data):
                return stacked(data, None, limit)  # a list of examples
            return plain(tuple(data), data)
        if not isinstance(data, str | bytes | list | tuple) and _is_sequence(data):
            return stacked(data, None, limit)
    kinds = {kind_of(part) for part in data} if isinstance(data, list | tuple) else set()
    held = f" of {' and '.join(sorted(kinds))}" if kinds else ""
    raise InputError(f"data is {kind_of(data)}{held}; give a pair of tensors {FORMS}")


def _of_loader(loader: DataLoader[Any], limit: int | None, enough: int | None) -> Any:
    """Return a loader's examples, collated by its `collate_fn`."""
    ready = loader.batch_size is None and loader.batch_sampler is None  # the data set holds batches already
    if ready or isinstance(loader.dataset, IterableDataset):
        return joined(first_batches(loader, limit, enough))
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    indices = None if takes_all(loader) else indices_of(loader, limit, enough)
    return stacked(loader.dataset, collate, limit, indices)


def _is_sequence(data: object) -> bool:
    return all(hasattr(data, name) for name in ("__len__", "__getitem__"))


def _require_sound(value: Any, data: Any) -> int:
    """Refuse tensors that cannot be trained on; return how many examples they hold."""
    named = list(named_tensors(column(value, 0), "tensor"))
    pair = isinstance(value, tuple) and len(value) == 2
    if not named:
        raise InputError(f"data is {kind_of(data)} and holds no tensor; give {FORMS}")
    names = {"tensor.0": "inputs", "tensor.1": "targets"} if pair else {}
    for place, tensor in named:
        _require_usable(names.get(place, f"values of '{place.removeprefix('tensor.')}'"), tensor)
    shapes = ", ".join(f"{names.get(p, p.removeprefix('tensor.'))} of shape {tuple(t.shape)}" for p, t in named)
    if any(tensor.dim() == 0 for _, tensor in named) or len({len(tensor) for _, tensor in named}) > 1:
        if pair and len(named) == 2:
            shapes = shapes.replace(", targets", " and targets")
            raise InputError(f"data holds {shapes}; give as many targets as inputs")
        raise InputError(f"data holds {shapes}; give tensors of one length, with an entry for every example")
    if not len(named[0][1]):
        raise InputError("data is empty; give at least one example")
    return len(named[0][1])


def _require_usable(name: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise InputError(f"the {name} are on the device 'meta' and hold no values; give tensors with values")
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else f"sparse ({str(tensor.layout).removeprefix('torch.')})"
        raise InputError(f"the {name} are {kind}; give dense ones, such as {name.split()[0]}.to_dense()")
    if tensor.is_quantized:
        raise InputError(f"the {name} are quantized; give plain ones: {name.split()[0]}.dequantize()")
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise InputError(f"the {name} hold values that are not finite; clean the data first")


def example_of(inputs: Column, model: nn.Module | None = None, *, count: int = 2, batch: int | None = None) -> Any:
    """Return inputs of a few examples, as a plan takes them.

    Labels are left out: a model that computes its loss from them is planned by its predictions. A model that does not
    run without them keeps them, such as T5, which makes its decoder's inputs from the labels. A model that does not run
    on a few examples of a batch gets a whole `batch`, as where sizes depend on the longest example; if it does not run
    on that either, an error is raised.
    """
    few = _examples_of(inputs, count)
    if model is None:
        return few[0]
    require_values(model)
    error: Exception | None = None
    tried: list[Any] = [*few, *(_examples_of(inputs, batch) if batch and count < min(batch, len(inputs)) else ())]
    for example in tried:
        try:
            trial = copied(model)
        except Exception:  # copying it will report this
            return few[0]
        error = _error_of(trial, *split_inputs(example, None))
        if error is None:
            return example
    assert error is not None
    raise explained(model, *split_inputs(tried[-1], None), error, what="a batch of the data") from error


def runs_on(model: nn.Module, inputs: Column, count: int) -> bool:
    """Say whether a model, on whatever device, runs on `count` examples of a batch."""
    device = next((parameter.device for parameter in model.parameters()), None)
    there = each(inputs[:count], lambda tensor: tensor.to(device))
    examples = (split_inputs(example, None) for example in _examples_of(there, count))
    return any(_error_of(copied(model), *example) is None for example in examples)


def _examples_of(inputs: Column, count: int) -> list[Any]:
    """Return the first examples: without labels if they have some, then unchanged."""
    first = inputs[: min(count, len(inputs))]
    if isinstance(first, Tensor):
        return [first]
    held = first.value
    if not isinstance(held, dict) or not any(name in LABELS for name in held):
        return [held]
    return [{name: part for name, part in held.items() if name not in LABELS}, held]


def _error_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """Return the error that a model raises on inputs, or None; the inputs and all random states stay as they were."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training or planning the network repeats these warnings
        try:
            run(model, args, kwargs)
        except Exception as error:
            return error
    return None


def _listed(value: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in value)
