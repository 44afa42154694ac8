"""Export a module to a graph of operators, or explain in one sentence why that is impossible."""

from __future__ import annotations

import contextlib
import io
import linecache
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenstep.errors import InputError, TraceError
from evenstep.module.draws import Draws
from evenstep.module.program import Program, has_fixed_sizes, of_export
from evenstep.module.recorded import NumpyError, record, run_plain
from evenstep.planning.unwrap import sharded_by

# Frames of torch, evenstep and Python itself do not show where the user's code fails.
_NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parent.parent)
_PYTHON = Path(os.__file__).parent
_DATA_DEPENDENT = ("datadependent", "data-dependent", "dynamic control flow", "symbolically traced variables")


def split_inputs(example_inputs: Any, extra: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments from a tensor, a sequence of arguments, or a mapping of keywords."""
    if example_inputs is None and extra is None:
        raise InputError(
            "example_inputs is missing; reading a module needs one symbolic run: give a batch as its forward takes it, "
            "such as torch.zeros(2, 3, 32, 32)"
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
    """Refuse parameters that have no size or no values yet, or that are sharded over several devices."""
    # Check before the export: an export that fails half-way leaves a sharded module unable to train.
    if sharder := sharded_by(model):
        raise TraceError(
            f"{type(model).__name__} is already sharded by {sharder}; plan the plain module first, then shard it, and "
            "give the sharded module to initialize_ and param_groups"
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


def program_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """Return a module's operators on example inputs as one graph; its values, buffers and random state do not change.

    A symbolic run shows what a module does for any data. If it fails, or if sizes depend on the data or random draws
    decide which layers run, a real run on the example inputs is recorded instead.
    """
    program, gave_up = None, None
    try:
        program, drew = _exported(model, args, kwargs)
        if not drew and has_fixed_sizes(program):
            return program
    except Exception as error:
        gave_up = error
    if (gave_up is None or _scripted(model) is None) and _have_values(model, args, kwargs):
        try:
            with _quiet():
                return record(model, args, kwargs)
        except Exception as error:
            if gave_up is not None:
                raise explained(model, args, kwargs, _reason(model, args, kwargs, gave_up, error)) from error
    if program is None:
        raise explained(model, args, kwargs, gave_up or TraceError()) from gave_up
    return program


def _exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Program, bool]:
    """Return the exported program, and whether a number that Python or numpy drew affected it."""
    with _quiet(), Draws(model) as draws:
        program = of_export(torch.export.export(model, args, kwargs, strict=False))
    return program, draws.drew


def _reason(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], gave_up: Exception, failed: Exception
) -> Exception:
    """Return why a module could be read in neither way: it does not run, or else the symbolic run's error."""
    if isinstance(failed, NumpyError):
        return failed
    try:
        with _quiet():
            run_plain(model, args, kwargs)
    except Exception as error:
        return error
    return gave_up


def _have_values(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether all tensors have values, that is, none is on the device 'meta'."""
    return not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers(), *_tensors((args, kwargs))))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's notes, and pass the module's own warnings on if nothing fails."""
    output = io.StringIO()
    with warnings.catch_warnings(), _torch_silenced(), contextlib.redirect_stderr(output):
        warnings.simplefilter("ignore")  # notes on attributes assigned during export, which users can do nothing about
        yield
    sys.stderr.write(output.getvalue())


@contextlib.contextmanager
def _torch_silenced() -> Iterator[None]:
    """Silence torch's loggers: a failed export logs pages, and our error explains it in a sentence."""
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


def explained(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: Exception,
    *,
    what: str = "the example inputs",
) -> TraceError:
    """Return an error that explains in one sentence why a module cannot be run or read."""
    kind = type(model).__name__
    where = _users_line(error)
    text = f"{type(error).__name__} {error}".lower()
    first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if (name := _scripted(model)) is not None:
        scripted = f"{kind} holds a ScriptModule, '{name}'" if name else f"{kind} is a ScriptModule"
        return TraceError(
            f"{scripted}, and compiled code cannot be read as a graph; plan the plain module it was made from, and "
            "compile it after initialize_"
        )
    if isinstance(error, NumpyError) or "numpy() is not supported" in text:
        return TraceError(
            f"{kind} cannot be read as a graph: it passes a tensor to numpy{where}, which cannot be traced; use "
            "torch's operators, or plan the parts before and after it"
        )
    if any(mark in text for mark in _DATA_DEPENDENT):
        dropped = ", or call eval() first if it drops layers at random" if model.training else ""
        return TraceError(
            f"{kind} cannot be read as a graph: its control flow depends on the data{where}; plan it on a device where "
            f"it can run, so that a real run can be recorded, or use torch.where there{dropped}"
        )
    if "register a pytree" in text:
        return TraceError(
            f"{kind} takes or returns a type torch.export does not know ({first_line.split(', which')[0]}); return "
            "tensors in tuples, lists or dictionaries, or register a dataclass with torch.export.register_dataclass"
        )
    if "more than 1 value per channel" in text:
        return TraceError(
            f"{kind} is in train mode, where its batch norm needs more than one example{where}; give a batch of two, "
            "or call eval() before planning"
        )
    given = ", ".join(_shown(value) for value in (*args, *kwargs.values()))
    remedy = remedy_of_types(model, (args, kwargs), first_line)
    remedy = remedy or "give inputs as its forward takes them, on the module's device"
    return TraceError(f"{kind} does not run on {what} ({given}){where}: {first_line[:300]}; {remedy}")


def remedy_of_types(model: nn.Module, inputs: Any, reason: str) -> str:
    """Return a remedy if an error's reason is that the inputs' dtype is not the module's."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    types = [tensor.dtype for tensor in _tensors(inputs) if tensor.dtype != dtype]
    if dtype is None or not types or not re.search(r"dtype|scalar type|[Ii]nput type", reason):
        return ""
    given = next((kind for kind in types if kind.is_floating_point), types[0])
    call = {torch.float32: ".float()", torch.float64: ".double()"}.get(dtype, f".to({dtype})")
    return f"the inputs are {given} and the parameters {dtype}: give inputs{call}"


def _scripted(model: nn.Module) -> str | None:
    """Return the name of the first module that is compiled code; None if there is none."""
    return next((name for name, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule)), None)


def _users_line(error: Exception) -> str:
    """Return ' at file:line `source`' for the deepest frame of the user's own code."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        foreign = any(place in path.parents for place in _NOT_THE_USERS)
        python = _PYTHON in path.parents and "site-packages" not in path.parts
        if frame.filename.startswith("<") or foreign or python:
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
