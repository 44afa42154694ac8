"""Operators: a table of small pure handlers, one for each, that users extend with `register_op`."""

from evenstep.module.ops.pointwise import activation, identity
from evenstep.module.ops.registry import handler_of, known_ops, op_name, register_op
from evenstep.module.ops.structure import moves_entries, norm
from evenstep.module.ops.weights import weight
from evenstep.module.values import (
    Call,
    Constant,
    Handler,
    Incoming,
    Outcome,
    ParameterUse,
    ParameterValue,
    Signal,
)

__all__ = [
    "Call",
    "Constant",
    "Handler",
    "Incoming",
    "Outcome",
    "ParameterUse",
    "ParameterValue",
    "Signal",
    "activation",
    "handler_of",
    "identity",
    "known_ops",
    "moves_entries",
    "norm",
    "op_name",
    "register_op",
    "weight",
]
