"""Properties of a node in an exported graph: the module that called it, its name, its outputs' shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

from evenstep.errors import TraceError
from evenstep.module.handler_types import Call, ConstantValue, ParameterValue, Shape, flattened
from evenstep.module.ops import op_name

_VALUES = (ParameterValue, ConstantValue)


def require_fixed_size(node: fx.Node, result: Any) -> None:
    """Refuse tensors whose size depends on other tensors' values, as with `nonzero` or masks as indices."""
    sizes = (size for value in flattened(result) if isinstance(value, torch.Tensor) for size in value.shape)
    if any(isinstance(size, torch.SymInt) for size in sizes):
        line = str(node.meta.get("stack_trace") or "").strip().splitlines()
        where = f", at `{line[-1].strip()}`" if line else ""
        raise TraceError(
            f"operator '{op_name(node.target)}' in {place_of(node)} returns a tensor whose size depends on the "
            f"data{where}; use torch.where or multiply by a mask there, or plan the parts before and after it"
        )


def shape_of(value: Any) -> Shape | None:
    """Return a tensor's shape; None for anything else."""
    return tuple(int(size) for size in value.shape) if isinstance(value, torch.Tensor) else None


def each_output(result: Any, make: Any) -> Any:
    """Return a value for every tensor that an operator returns, in the same nesting."""
    if isinstance(result, list | tuple):
        return type(result)(each_output(item, make) for item in result)
    shape = shape_of(result)
    return None if shape is None else make(shape)


def written_by(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose tensors an operator overwrites in place."""
    return [
        value
        for argument, value in zip(_schema_arguments(node), node.args, strict=False)
        if isinstance(value, fx.Node) and argument.alias_info is not None and argument.alias_info.is_write
    ]


def viewed_by(node: fx.Node) -> fx.Node | None:
    """Return the node whose memory an operator's output shares (a slice's tensor); None if it shares none."""
    for argument, value in zip(_schema_arguments(node), node.args, strict=False):
        if isinstance(value, fx.Node) and argument.alias_info is not None and not argument.alias_info.is_write:
            return value
    return None


def _schema_arguments(node: fx.Node) -> Any:
    schema = getattr(node.target, "_schema", None)
    return () if schema is None else schema.arguments


def repeated(node: fx.Node, call: Call) -> Callable[[], Any] | None:
    """Return a function that computes an operator once on real values; None if it reads a signal or draws.

    An operator that writes in place gets copies.
    """
    target = node.target
    schema, tags = getattr(target, "_schema", None), getattr(target, "tags", ())
    operands = [v for v in flattened((call.args, tuple(call.kwargs.values()))) if isinstance(v, _VALUES)]
    if schema is None or call.signals() or torch.Tag.nondeterministic_seeded in tags:
        return None
    if any(value.tensor is None for value in operands):
        return None

    def values(value: Any) -> Any:
        if not isinstance(value, _VALUES) or value.tensor is None:
            return value
        return value.tensor().clone() if schema.is_mutable else value.tensor()

    @cache
    def compute() -> Any:
        args = map_aggregate(call.args, values)
        kwargs = map_aggregate(dict(call.kwargs), values)
        with torch.no_grad():
            return target(*args, **kwargs)  # type: ignore[operator]

    return compute


def attribute(module: nn.Module, target: str) -> Any:
    """Return the attribute of a module with a dotted name, tensors as constants."""
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return ConstantValue(tuple(value.shape), tensor=lambda: value) if isinstance(value, torch.Tensor) else value


def module_path(node: fx.Node) -> str:
    """Return the path of the innermost module that called the operator; '' for the traced module itself."""
    stack = node.meta.get("nn_module_stack") or {}
    entry = next(reversed(stack.values()), None) if stack else None
    path = entry[0] if entry else ""
    return str(path).removeprefix("L['self']").strip(".")


def module_class(node: fx.Node) -> str:
    """Return the class of the innermost module that called the operator."""
    stack = node.meta.get("nn_module_stack") or {}
    entry = next(reversed(stack.values()), None) if stack else None
    return str(entry[1]) if entry else ""


def place_of(node: fx.Node) -> str:
    """Say which module called the operator."""
    path, kind = module_path(node), module_class(node).rpartition(".")[2]
    return f"module '{path}' ({kind})" if path else f"the module itself ({kind})" if kind else "the module"


def vertex_name(node: fx.Node) -> str:
    """Name a vertex after the layer that makes it, or after the module and the operator."""
    path = module_path(node)
    short = op_name(node.target).split(".")[1] if "." in op_name(node.target) else str(node.target)
    if path and module_class(node).startswith("torch.nn.modules."):
        return path
    return f"{path}.{short}" if path else short
