"""Operators that act on single entries: activations, arithmetic, dropout, casts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from evenstep.graph import expressions
from evenstep.graph.activations import require_known
from evenstep.graph.expression_names import name_of
from evenstep.graph.expressions import Expression, X
from evenstep.graph.model import Parameter
from evenstep.graph.operators import (
    Activation,
    ConcatBlock,
    Dropout,
    Gate,
    LogSoftmax,
    Offset,
    Operator,
    Scale,
    Slice,
    Steer,
    scaled,
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
from evenstep.module.ops.registry import handle_each, handles

# Activations without parameters, by operator. They have depth 1: the paper counts them as a path's ReLUs.
_ACTIVATIONS = {
    "aten.relu": "relu",
    "aten.relu6": "relu6",
    "aten.selu": "selu",
    "aten.silu": "silu",
    "aten.mish": "mish",
    "aten.tanh": "tanh",
    "aten.sigmoid": "sigmoid",
    "aten.log_sigmoid": "logsigmoid",
    "aten.hardswish": "hardswish",
    "aten.hardsigmoid": "hardsigmoid",
    "aten.rrelu": "leaky_relu:0.229",
    "aten.softsign": "softsign",
}
# Functions that shape a signal but do not count as activations: they have no depth.
_FUNCTIONS = {
    "aten.abs": "abs",
    "aten.square": "square",
    "aten.exp": "exp",
    "aten.sqrt": "sqrt",
    "aten.rsqrt": "rsqrt",
    "aten.reciprocal": "reciprocal",
    "aten.log": "log",
    "aten.log1p": "log1p",
    "aten.sin": "sin",
    "aten.cos": "cos",
    "aten.erf": "erf",
    "aten.erfc": "1 - erf(x)",
    "aten.expm1": "exp(x) - 1",
    "aten.exp2": "exp(0.6931471805599453 * x)",
    "aten.log2": "1.4426950408889634 * log(x)",
    "aten.log10": "0.4342944819032518 * log(x)",
    "aten.sinh": "0.5 * exp(x) - 0.5 * exp(-1 * x)",
    "aten.cosh": "0.5 * exp(x) + 0.5 * exp(-1 * x)",
    "aten.sign": "x / abs(x)",
    "aten.sgn": "x / abs(x)",
    "aten.tanhshrink": "x - tanh(x)",
    "aten.logit": "log(x) - log(1 - x)",
}
_COPIES = """
    aten.alpha_dropout aten.clone aten.contiguous
    aten.detach aten.alias aten.to aten._to_copy aten.type_as aten.lift_fresh_copy aten.lift_fresh
    aten.bernoulli aten.round aten.nan_to_num aten.requires_grad_ aten.float aten.half
    aten.bfloat16 aten.double aten.feature_alpha_dropout aten.positive aten.floor aten.ceil aten.trunc
    aten.conj aten._conj aten.conj_physical aten.detach_copy aten.frac aten.remainder aten.fmod
""".split()
# Operators that only use the shape of their argument.
_FRESH = """
    aten.zeros_like aten.ones_like aten.full_like aten.empty_like aten.rand_like aten.randn_like
    aten.randint_like aten.new_zeros aten.new_ones aten.new_full aten.new_empty aten.new_empty_strided
    aten.fill aten.zero aten.histc aten.bincount
""".split()
# Losses: a model that returns its loss is read up to the outputs that the loss compares.
_LOSSES = """
    aten.cross_entropy_loss aten.nll_loss aten.nll_loss_nd aten.nll_loss2d aten.mse_loss aten.l1_loss
    aten.smooth_l1_loss aten.huber_loss aten.binary_cross_entropy aten.binary_cross_entropy_with_logits
    aten.kl_div aten.ctc_loss aten.poisson_nll_loss aten.soft_margin_loss aten.cosine_embedding_loss
    aten.hinge_embedding_loss aten.margin_ranking_loss aten.multi_margin_loss aten.multilabel_margin_loss
    aten.multilabel_margin_loss_forward aten.triplet_margin_loss aten.dist aten._ctc_loss
""".split()


def activation(name: str, *, depth: int = 1) -> Handler:
    """Return a handler for an activation of one signal, named as in `evenstep.graph.activations`."""
    require_known(name)

    def handler(call: Call) -> Outcome:
        return Outcome((edge_from(call.signals()[0], Activation(name, depth=depth)),))

    return handler


def identity(call: Call) -> Outcome:
    """Pass the first signal on unchanged."""
    return carried(call.signals()[0])


for _op, _name in _ACTIVATIONS.items():
    handles(_op)(activation(_name))
for _op, _name in _FUNCTIONS.items():
    handles(_op)(activation(_name, depth=0))
handle_each([*_COPIES, *_LOSSES], identity)


def _fresh(call: Call) -> Outcome:  # noqa: ARG001
    """Drop the signal: the output is a constant or noise."""
    return Outcome()


handle_each(_FRESH, _fresh)


@handles("aten.dropout", "aten.feature_dropout", "aten.native_dropout")
def _dropout(call: Call) -> Outcome:
    rate, training = call.argument(1, "p", 0.5), call.argument(2, "train", default=True)
    if not training or rate == 0:
        return identity(call)
    return Outcome((edge_from(call.signals()[0], Dropout(float(rate)) if rate < 1 else Scale(0.0)),))


@handles("aten.gelu")
def _gelu(call: Call) -> Outcome:
    tanh = call.kwargs.get("approximate", call.argument(1, "approximate", "none")) == "tanh"
    return activation("gelu_tanh" if tanh else "gelu")(call)


@handles("aten.leaky_relu")
def _leaky_relu(call: Call) -> Outcome:
    return activation(f"leaky_relu:{call.argument(1, 'negative_slope', 0.01)}")(call)


@handles("aten.prelu")
def _prelu(call: Call) -> Outcome:
    slope = call.args[1]
    if not isinstance(slope, ParameterValue):
        return activation("leaky_relu:0.25")(call)
    size = call.rms(slope.names[0])
    uses = tuple(Parameter(name, "unscaled", note="slope of a PReLU") for name in slope.names)
    operator = Activation(f"leaky_relu:{0.25 if size is None else size}")
    return Outcome((edge_from(call.signals()[0], operator, parameters=slope.names),), uses=uses)


@handles("aten.elu", "aten.celu")
def _elu(call: Call) -> Outcome:
    kind = "celu" if "celu" in call.op else "elu"
    return activation(f"{kind}:{call.argument(1, 'alpha', 1.0)}")(call)


@handles("aten.softshrink")
def _softshrink(call: Call) -> Outcome:
    return activation(f"softshrink:{call.argument(1, 'lambd', 0.5)}")(call)


@handles("aten.softplus")
def _softplus(call: Call) -> Outcome:
    return activation(f"softplus:{call.argument(1, 'beta', 1.0)}")(call)


@handles("aten.hardtanh")
def _hardtanh(call: Call) -> Outcome:
    return _bounded(call, call.argument(1, "min_val", -1.0), call.argument(2, "max_val", 1.0))


@handles("aten.clamp", "aten.clip", "aten.clamp_min", "aten.clamp_max")
def _clamp(call: Call) -> Outcome:
    if "clamp_max" in call.op:
        return _bounded(call, None, call.argument(1, "max"))
    return _bounded(call, call.argument(1, "min"), None if "clamp_min" in call.op else call.argument(2, "max"))


@handles("aten.threshold")
def _threshold(call: Call) -> Outcome:
    least, value = call.argument(1, "threshold"), call.argument(2, "value")
    if least == value == 0:
        return activation("relu")(call)
    above = expressions.compared(">", X, expressions.number(least))
    return activation(name_of(expressions.chosen(above, X, expressions.number(value))))(call)


# A bound larger than this, or a lower bound alone that is smaller than this, only guards against extremes and zeros.
_SMALLEST_BOUND, _LARGEST_BOUND = 1e-2, 8.0


def _bounded(call: Call, low: Any, high: Any) -> Outcome:
    """Cut a signal off below and above; bounds that are only guards do not count."""
    if not isinstance(call.args[0], SignalValue):
        return identity(call)
    function = X
    if _bounds(low) and not (0 < low < _SMALLEST_BOUND and not _bounds(high)):
        function = expressions.larger(function, expressions.number(low))
    if _bounds(high):
        function = expressions.smaller(function, expressions.number(high))
    if function == X:
        return replace(identity(call), formula=Formula(lambda x: x, (call.args[0],)))
    return activation(name_of(function))(call)


def _bounds(bound: Any) -> bool:
    return isinstance(bound, int | float) and not isinstance(bound, bool) and abs(bound) <= _LARGEST_BOUND


@handles("aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax", "aten.softmin")
def _softmax(call: Call) -> Outcome:
    signal = call.signals()[0]
    entries = signal.shape[call.argument(1, "dim", -1)] if signal.shape else 1
    if "log" in call.op:
        return Outcome((edge_from(signal, LogSoftmax(entries)),))
    return Outcome((edge_from(signal, Activation(f"softmax:{entries}")),), probability=True)


@handles("aten.pow", "aten.float_power")
def _pow(call: Call) -> Outcome:
    exponent = call.argument(1, "exponent")
    if not isinstance(call.args[0], SignalValue) or not isinstance(exponent, int | float):
        return identity(call)
    if exponent == 1:
        return identity(call)
    named = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    return activation(named.get(exponent, f"pow:{exponent}"), depth=0)(call)


# Arithmetic


@handles("aten.add", "aten.sub", "aten.rsub")
def _add(call: Call) -> Outcome:
    first, second = call.args[0], call.argument(1, "other")
    alpha = float(call.kwargs.get("alpha", 1.0))
    signs = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[call.op.split(".")[1].rstrip("_")]
    signals = [(v, sign) for v, sign in zip((first, second), signs, strict=True) if isinstance(v, SignalValue)]
    names = [n for value in (first, second) if isinstance(value, ParameterValue) for n in value.names]
    uses = tuple(Parameter(name, "unscaled", note="added to the signal") for name in names)
    formula = Formula(lambda a, b: _weighted_sum((a, b), signs), (first, second))
    if len(signals) == 1:
        ((signal, sign),) = signals
        fixed, factor = (second, signs[1]) if signal is first else (first, signs[0])
        offset = _offset(fixed, factor)
        if not uses and not offset and sign == 1.0:
            return replace(carried(signal), formula=formula)
        # An edge of its own keeps the parameter on the path.
        edge = edge_from(signal, *scaled(sign), *offset, parameters=tuple(names))
        return Outcome((edge,), uses=uses, formula=formula)
    # Entries of one field that were moved before they meet are as good as independent.
    moved = () if _in_place(first, second) else (Slice(),)
    edges = (edge_from(first, *scaled(signs[0])), edge_from(second, *scaled(signs[1]), *moved))
    return Outcome(edges, uses=uses, formula=formula)


# Larger numbers exclude entries, as in attention masks; smaller ones guard against zero.
_LARGEST_OFFSET, _SMALLEST_OFFSET = 1e3, 1e-3


def _offset(fixed: Any, factor: float) -> tuple[Operator, ...]:
    """Return the operator that adds fixed numbers to a signal; none if they are unknown or not part of it."""
    mean = std = 0.0
    if isinstance(fixed, int | float):
        mean = float(fixed)
    elif isinstance(fixed, ConstantValue) and fixed.fill is not None:
        mean = fixed.fill
    elif isinstance(fixed, ParameterValue | ConstantValue) and fixed.tensor is not None:
        values = fixed.tensor()
        if values.is_meta or values.is_complex() or not values.numel() or values.dtype == torch.bool:
            return ()
        mean, std = float(values.float().mean()), float(values.float().std(correction=0))
    size = abs(factor) * math.hypot(mean, std)
    if not _SMALLEST_OFFSET < size < _LARGEST_OFFSET:
        return ()
    # Numbers that are mostly a constant are meant to be; numbers around zero were drawn, and may be drawn otherwise.
    alone = isinstance(fixed, ParameterValue) and fixed.made is None and len(fixed.names) == 1
    table = fixed.names[0] if alone and std > abs(mean) and abs(factor) == 1.0 else ""
    return (Offset(factor * mean, abs(factor) * std, table),)


def _weighted_sum(terms: tuple[Expression, Expression], factors: tuple[float, float]) -> Expression:
    first, second = (expressions.scaled_by(term, factor) for term, factor in zip(terms, factors, strict=True))
    return expressions.total(first, second)


@handles("aten.mul", "aten.div")
def _multiply(call: Call) -> Outcome:
    first, second = call.args[0], call.argument(1, "other")
    divide = "div" in call.op
    formula = Formula(expressions.quotient if divide else expressions.product, (first, second))
    if isinstance(first, SignalValue) and isinstance(second, SignalValue):
        # Entries of one field that were moved before they meet are as good as independent.
        other = (Steer(),) if divide else () if _in_place(first, second) else (Slice(),)
        return Outcome((edge_from(first), edge_from(second, *other)), merge="product", formula=formula)
    signal, other = (first, second) if isinstance(first, SignalValue) else (second, first)
    if isinstance(other, ParameterValue):
        size = call.rms(other.made or other.names[0])
        gate = Gate(None if size is None else _sign(other) * size, inverse=divide)
        uses = tuple(Parameter(name, "unscaled", note="multiplies the signal") for name in other.names)
        return Outcome((edge_from(signal, gate, parameters=other.names),), uses=uses)
    factor = _factor(call, other, divide=divide and signal is first)
    outcome = carried(signal) if factor == 1.0 else Outcome((edge_from(signal, *scaled(factor)),))
    return replace(outcome, formula=formula)


def _in_place(first: SignalValue, second: SignalValue) -> bool:
    """Return whether two tensors hold a field's entries in the same places, if they hold the same field at all."""
    places = [value.entrywise for value in (first, second)]
    layouts = {"" if known is None or known.root != first.vertex else known.layout for known in places}
    return first.vertex != second.vertex or len(layouts) == 1


def _factor(call: Call, other: Any, *, divide: bool) -> float:
    """Return the scalar that multiplies a signal: for a buffer its root mean square, for other tensors one."""
    if isinstance(other, ConstantValue) and other.mean is not None:
        other = other.mean
    elif isinstance(other, ConstantValue):
        other = _sign(other) * ((other.buffer and call.rms(other.buffer)) or 1.0)
    if not isinstance(other, int | float):
        return 1.0
    return (1.0 / other if other else 0.0) if divide else float(other)


@handles("aten.lerp")
def _lerp(call: Call) -> Outcome:
    """Mix two signals, a + weight (b - a); a weight that is itself a signal is taken as a half-open gate."""
    first, second, weight = call.args[0], call.args[1], call.argument(2, "weight")
    share = float(weight) if isinstance(weight, int | float) else 0.5
    mixed = [(s, a) for s, a in ((first, 1 - share), (second, share)) if isinstance(s, SignalValue)]
    edges = [edge_from(signal, *scaled(amplitude)) for signal, amplitude in mixed]
    if isinstance(weight, SignalValue):
        edges.append(edge_from(weight, Steer()))
    return Outcome(tuple(edges))


def _sign(factor: ParameterValue | ConstantValue) -> float:
    """Return -1 for a tensor that is mostly negative, so that an exponential after it decays as it should."""
    values = factor.tensor() if factor.tensor else None
    if values is None or not values.is_floating_point():
        return 1.0
    return -1.0 if float(values.float().mean()) < -0.5 * float(values.float().square().mean().sqrt()) else 1.0


@handles("aten.neg")
def _negate(call: Call) -> Outcome:
    return Outcome((edge_from(call.signals()[0], *scaled(-1.0)),))


@handles("aten.maximum", "aten.minimum", "aten.max.other", "aten.min.other", "aten.fmax", "aten.fmin")
def _larger(call: Call) -> Outcome:
    signals = call.signals()
    function = expressions.smaller if "min" in call.op else expressions.larger
    formula = Formula(function, (call.args[0], call.argument(1, "other")))
    if len(signals) == 1:  # with any constant it is a rectifier
        return replace(activation("relu")(call), formula=formula)
    edges = tuple(edge_from(s, ConcatBlock(1 / len(signals))) for s in signals)
    return Outcome(edges, merge="concat", formula=formula)


@handles("aten.where")
def _where(call: Call) -> Outcome:
    signals = [value for value in call.args[1:] if isinstance(value, SignalValue)]
    formula = Formula(expressions.chosen, call.args[:3]) if len(call.args) > 2 else None
    if len(signals) <= 1:
        return replace(carried(signals[0]) if signals else identity(call), formula=formula)
    return Outcome(tuple(edge_from(s, ConcatBlock(0.5)) for s in signals), merge="concat", formula=formula)


@handles("aten.masked_fill")
def _masked_fill(call: Call) -> Outcome:
    signal, mask, value = call.args[:3]
    if not isinstance(signal, SignalValue):
        return identity(call)
    return replace(carried(signal), formula=Formula(expressions.chosen, (mask, value, signal)))


# Comparisons make masks. They have no handlers, because masks are not signals.
COMPARED = {"aten.gt": ">", "aten.lt": "<", "aten.ge": ">=", "aten.le": "<="}


@handles("aten.glu")
def _glu(call: Call) -> Outcome:
    # a * sigmoid(b) with a and b the halves of one signal: gated by a mean square of E[sigmoid(z)^2].
    return activation("glu", depth=1)(call)
