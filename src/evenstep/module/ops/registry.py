"""The table of operator handlers, and how users add to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from evenstep.errors import InputError
from evenstep.module.handler_types import Handler

_HANDLERS: dict[str, Handler] = {}

# Torch's aliases of operators, which share one handler.
_ALIASES = {
    "absolute": "abs",
    "broadcast_to": "expand",
    "concatenate": "cat",
    "concat": "cat",
    "divide": "div",
    "fold": "col2im",
    "ger": "outer",
    "linalg_matmul": "matmul",
    "linalg_norm": "linalg_vector_norm",
    "multiply": "mul",
    "negative": "neg",
    "row_stack": "vstack",
    "_safe_softmax": "softmax",
    "special_erf": "erf",
    "special_expit": "sigmoid",
    "special_expm1": "expm1",
    "special_log_softmax": "log_softmax",
    "special_log1p": "log1p",
    "special_logit": "logit",
    "special_logsumexp": "logsumexp",
    "special_round": "round",
    "special_softmax": "softmax",
    "subtract": "sub",
    "true_divide": "div",
}

Made = TypeVar("Made", bound=Handler)


def handles(*ops: str) -> Callable[[Made], Made]:
    """Register a handler for operators by name, such as `aten.linear` (all overloads) or `aten.add.Tensor`."""

    def put(handler: Made) -> Made:
        for op in ops:
            _HANDLERS[op] = handler
        return handler

    return put


def handle_each(ops: Iterable[str], handler: Handler) -> None:
    """Register one handler for many operators."""
    handles(*ops)(handler)


@overload
def register_op(target: Any, handler: Handler) -> Handler: ...
@overload
def register_op(target: Any, handler: None = None) -> Callable[[Handler], Handler]: ...


def register_op(target: Any, handler: Handler | None = None) -> Any:
    """Teach the tracer an operator; call it with a handler, or use it as a decorator.

    `target` is an operator (`torch.ops.mylib.swish.default`) or its name (`"mylib.swish"` for all overloads,
    `"mylib.swish.default"` for one). The handler takes a `Call` and returns an `Outcome`; ready ones are
    `evenstep.ops.identity`, `evenstep.ops.activation("silu")` and `evenstep.ops.norm`. A later registration replaces
    an earlier one.
    """
    name = op_name(target)
    if not name or "." not in name:
        raise InputError(f"operator {target!r} has no name such as 'library.operator'; give the operator or a name")
    if handler is None:
        return lambda made: register_op(target, made)
    if not callable(handler):
        raise InputError(f"the handler of operator '{name}' is {handler!r}; give a function of a Call")
    _HANDLERS[name] = handler
    return handler


def op_name(target: Any) -> str:
    """Return an operator's name in the form `library.operator.overload` (`higher_order.cond` for control flow).

    If torch has several names for one operator, the result is always the same one.
    """
    name = str(target).replace("::", ".").removeprefix("torch.ops.")
    library = getattr(target, "namespace", "")
    name = f"{library}.{name}" if library and "." not in name else name
    space, _, rest = name.partition(".")
    operator, dot, overload_name = rest.partition(".")
    known = _ALIASES.get(operator.rstrip("_")) if space == "aten" else None
    return f"aten.{known}{'_' * operator.endswith('_')}{dot}{overload_name}" if known else name


def handler_of(op: str) -> Handler | None:
    """Return an operator's handler: for this overload, for all overloads, or for the out-of-place version."""
    op = op_name(op)
    packet, _, overload_name = op.rpartition(".")
    for name in (op, packet, packet.removesuffix("_") + "." + overload_name, packet.removesuffix("_")):
        if name in _HANDLERS:
            return _HANDLERS[name]
    return None


def known_ops() -> tuple[str, ...]:
    """Return the names of all operators that have a handler."""
    return tuple(sorted(_HANDLERS))
