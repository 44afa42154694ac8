"""Export a module to a graph of operators, or say in one sentence why that cannot be done."""

from __future__ import annotations

import contextlib
import io
import linecache
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from evenstep.errors import InputError, TraceError
from evenstep.planning.unwrap import sharded_by

# Frames of torch, of evenstep and of Python itself say nothing about where the user's code went wrong.
_NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parent.parent)
_PYTHON = Path(os.__file__).parent
_DATA_DEPENDENT = ("datadependent", "data-dependent", "dynamic control flow", "symbolically traced variables")


def split_inputs(example_inputs: Any, extra: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments from a tensor, a sequence of arguments, or a mapping of keywords."""
    if example_inputs is None and extra is None:
        raise InputError(
            "example_inputs is missing; a module is read by running it symbolically once: give a batch as its forward "
            "takes it, such as torch.zeros(2, 3, 32, 32)"
        )
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    if example_inputs is None:
        args, kwargs = (), {}
    elif isinstance(example_inputs, torch.Tensor):
        args, kwargs = (example_inputs,), {}
    elif isinstance(example_inputs, Mapping):
        args, kwargs = (), dict(example_inputs)
    elif isinstance(example_inputs, list | tuple):
        args, kwargs = tuple(example_inputs), {}
    else:
        raise InputError(
            f"example_inputs is {type(example_inputs).__name__}; give a tensor, a tuple of the module's arguments, or "
            "a mapping of its keyword arguments"
        )
    if extra is not None and not isinstance(extra, Mapping):
        raise InputError(f"example_kwargs is {type(extra).__name__}; give a mapping of the module's keyword arguments")
    kwargs |= extra or {}
    tensors = list(_tensors((args, kwargs)))
    if not tensors:
        raise InputError("example_inputs holds no tensor; give at least one, as the module's forward takes it")
    for tensor in tensors:
        if tensor.numel() == 0:
            raise InputError(
                f"an example input has shape {tuple(tensor.shape)}, of size zero; give a batch of at least 1"
            )
    return args, kwargs


def check_parameters(model: nn.Module) -> None:
    """Refuse parameters that have no size or no values yet, or that lie in shards on several devices."""
    # Before the export: one that fails half-way leaves a sharded module unable to train.
    if sharder := sharded_by(model):
        raise TraceError(
            f"{type(model).__name__} is sharded by {sharder} already; make the plan of the plain module before, then "
            "shard it, and give the sharded one to initialize_ and param_groups"
        )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise TraceError(
                f"parameter '{name}' of {type(model).__name__} is lazy and has no shape yet; run a forward once"
            )
        if parameter.numel() == 0:
            raise TraceError(
                f"parameter '{name}' has shape {tuple(parameter.shape)}, of size zero; remove it or give it a size"
            )


def export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """Return the exported program of a module on example inputs; its values and buffers stay untouched."""
    said = io.StringIO()
    try:
        with warnings.catch_warnings(), _torch_silenced(), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")  # notes on attributes assigned during export; nothing a user can act on
            program = torch.export.export(model, args, kwargs, strict=False)
    except Exception as error:
        raise _explained(model, args, kwargs, error) from error
    sys.stderr.write(said.getvalue())  # what the module itself had to say
    return program


@contextlib.contextmanager
def _torch_silenced() -> Iterator[None]:
    """Keep torch's own loggers quiet: a failed export logs pages, and our error says it in a sentence."""
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.split(".")[0] == "torch" and isinstance(logger, logging.Logger) and not logger.disabled
    ]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in loggers:
            logger.disabled = False


def _explained(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> TraceError:
    kind = type(model).__name__
    where = _users_line(error)
    text = f"{type(error).__name__} {error}".lower()
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"{kind} holds a ScriptModule, '{name}'" if name else f"{kind} is a ScriptModule"
            return TraceError(
                f"{what}, and compiled code cannot be read as a graph; plan the plain module it was made from, and "
                "compile that after initialize_"
            )
    if "numpy() is not supported" in text:
        return TraceError(
            f"{kind} cannot be read as a graph: it hands a tensor to numpy{where}, and what happens there is not seen; "
            "use torch's own operators, or plan the parts on either side of it"
        )
    if any(mark in text for mark in _DATA_DEPENDENT):
        dropped = ", or call eval() first if it drops layers at random" if model.training else ""
        return TraceError(
            f"{kind} cannot be read as a graph: its control flow depends on the data{where}; use torch.where there, "
            f"or plan the parts on either side of it{dropped}"
        )
    if "register a pytree" in text:
        return TraceError(
            f"{kind} takes or returns a type torch.export does not know ({said.split(', which')[0]}); return tensors "
            "in tuples, lists or dictionaries, or register a dataclass with torch.export.register_dataclass"
        )
    if "more than 1 value per channel" in text:
        return TraceError(
            f"{kind} is in train mode, where its batch norm takes more than one example{where}; give a batch of two, "
            "or call eval() before the plan"
        )
    given = ", ".join(_shown(value) for value in (*args, *kwargs.values()))
    return TraceError(
        f"{kind} does not run on the example inputs ({given}){where}: {said[:300]}; give inputs as its forward takes "
        "them, on the module's device"
    )


def _users_line(error: Exception) -> str:
    """Return ' at file:line `source`' for the deepest frame of the user's own code."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        own = any(place in path.parents for place in _NOT_THE_USERS)
        python = _PYTHON in path.parents and "site-packages" not in path.parts
        if frame.filename.startswith("<") or own or python:
            continue
        source = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
        return f" at {path.name}:{frame.lineno} `{source}`"
    return ""


def _shown(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)[:40]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _tensors(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
