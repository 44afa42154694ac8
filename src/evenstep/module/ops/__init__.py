"""Operators: a table of small pure handlers, one for each operator, which users extend with `register_op`."""

from evenstep.graph.model import Parameter
from evenstep.graph.operators import (
    Activation,
    Average,
    ConcatBlock,
    Contraction,
    Gate,
    Maximum,
    Norm,
    Recurrent,
    RMSNorm,
    Scale,
    Slice,
    Steer,
    Unknown,
    Weight,
)
from evenstep.module.handler_types import (
    Call,
    ConstantValue,
    Formula,
    Handler,
    Outcome,
    ParameterValue,
    SignalValue,
    carried,
    edge_from,
)
from evenstep.module.ops.pointwise import activation, identity
from evenstep.module.ops.registry import handler_of, known_ops, op_name, register_op
from evenstep.module.ops.structure import moves_entries, norm
from evenstep.module.ops.weights import weight

__all__ = [
    "Activation",
    "Average",
    "Call",
    "ConcatBlock",
    "ConstantValue",
    "Contraction",
    "Formula",
    "Gate",
    "Handler",
    "Maximum",
    "Norm",
    "Outcome",
    "Parameter",
    "ParameterValue",
    "RMSNorm",
    "Recurrent",
    "Scale",
    "SignalValue",
    "Slice",
    "Steer",
    "Unknown",
    "Weight",
    "activation",
    "carried",
    "edge_from",
    "handler_of",
    "identity",
    "known_ops",
    "moves_entries",
    "norm",
    "op_name",
    "register_op",
    "weight",
]
