"""Operators with weights: linear, convolution, embedding, bilinear, matrix products, recurrent blocks, attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from evenstep.graph.windows import tap_coverage, transposed_coverage
from evenstep.module.ops.pointwise import identity
from evenstep.module.ops.registry import handles
from evenstep.module.values import Call, Constant, Incoming, Outcome, ParameterUse, ParameterValue, Signal


def weight(
    signal: Signal,
    matrix: Any,
    *,
    fan_in: int,
    fan_out: int,
    bias: Any = None,
    kernel_size: float = 1.0,
    kernel_axes: int = 0,
    gain: float = 1.0,
    note: str = "",
) -> Outcome:
    """Return the outcome of multiplying a signal by a weight and adding a bias.

    A weight that is computed from parameters has the size they give it, and they stay as they are; a matrix of unknown
    size lets the signal through.
    """
    names = _names(matrix)
    if not names:
        return Outcome((Incoming(signal),))
    uses = [ParameterUse(name, "weight", fan_in, fan_out, kernel_size, kernel_axes, note) for name in names]
    if isinstance(matrix, ParameterValue) and matrix.made:
        uses += [ParameterUse(name, "raw", note="a weight is computed from it") for name in matrix.names]
    if isinstance(bias, ParameterValue) and bias.made:
        uses += [ParameterUse(name, "raw", note="a bias is computed from it") for name in bias.names]
    else:
        uses += [ParameterUse(name, "bias", fan_in, fan_out) for name in _names(bias)]
    edge = Incoming(
        signal,
        "weight",
        parameters=tuple(use.name for use in uses),
        fan_in=fan_in,
        fan_out=fan_out,
        kernel_size=kernel_size,
        gain=gain,
    )
    return Outcome((edge,), uses=tuple(uses))


def _names(value: Any) -> tuple[str, ...]:
    """Return the names under which the sizes of a parameter or buffer are known."""
    if isinstance(value, ParameterValue):
        return (value.made,) if value.made else value.names
    if isinstance(value, Constant) and value.buffer:
        return (value.buffer,)
    return ()


def _is_signal(*values: Any) -> bool:
    return all(isinstance(value, Signal) for value in values)


@handles("aten.linear")
def _linear(call: Call) -> Outcome:
    signal, matrix = call.args[0], call.args[1]
    if not isinstance(signal, Signal):  # a constant input through a signal-dependent weight: a product
        return _contraction(signal, matrix)
    if isinstance(matrix, Signal):
        return _contraction(signal, matrix, size=signal.shape[-1])
    out, into = matrix.shape[-2:] if len(matrix.shape) > 1 else (1, matrix.shape[-1])
    return weight(signal, matrix, fan_in=into, fan_out=out, bias=call.argument(2, "bias"))


@handles("aten.matmul", "aten.mm", "aten.bmm", "aten.mv", "aten.dot")
def _matmul(call: Call) -> Outcome:
    return _product(call.args[0], call.args[1])


@handles("aten.addmm", "aten.baddbmm", "aten.addbmm")
def _addmm(call: Call) -> Outcome:
    added, first, second = call.args[:3]
    beta, alpha = float(call.argument(3, "beta", 1.0)), float(call.argument(4, "alpha", 1.0))
    if not isinstance(first, Signal) and not isinstance(second, Signal):  # the product of two parameters is added
        return Outcome((Incoming(added, amplitude=beta),))
    outcome = _product(first, second, bias=added)
    if not isinstance(added, Signal):
        return replace(outcome, scale=alpha)
    if outcome.merge == "sum":
        terms = (replace(e, gain=e.gain * alpha**2, amplitude=e.amplitude * alpha) for e in outcome.incoming)
        return replace(outcome, incoming=(Incoming(added, amplitude=beta), *terms))
    # A bias on the scores of attention, as a rule: it steers them.
    return replace(outcome, incoming=(*outcome.incoming, Incoming(added, "modulate")), scale=alpha)


def _product(first: Any, second: Any, *, bias: Any = None) -> Outcome:
    """Return the outcome of a matrix product: a weight if one side is a parameter, else a contraction."""
    if _is_signal(first, second):
        return _contraction(first, second, size=first.shape[-1])
    if isinstance(first, Signal):
        rows, columns = second.shape[-2:] if len(second.shape) > 1 else (second.shape[-1], 1)
        return weight(first, second, fan_in=rows, fan_out=columns, bias=bias)
    rows, columns = first.shape[-2:] if len(first.shape) > 1 else (1, first.shape[-1])
    return weight(second, first, fan_in=columns, fan_out=rows, bias=bias)


def _contraction(first: Any, second: Any, *, size: int = 1) -> Outcome:
    """Multiply two signals and sum over `size` terms; a softmax's rows average what they multiply."""
    if not _is_signal(first, second):
        return Outcome(tuple(Incoming(value) for value in (first, second) if isinstance(value, Signal)))
    if first.probability or second.probability:
        carried, steering = (second, first) if first.probability else (first, second)
        return Outcome((Incoming(carried), Incoming(steering, "modulate")), merge="product")
    return Outcome((Incoming(first, window=size), Incoming(second, window=size)), merge="product")


@handles("aten.cosine_similarity", "aten.cdist", "aten.pairwise_distance", "aten.vdot", "aten.inner")
def _compared(call: Call) -> Outcome:
    """Compare two signals entry by entry: both are on the path."""
    signals = call.signals()
    return _contraction(*signals) if len(signals) == 2 else identity(call)


@handles("aten.einsum")
def _einsum(call: Call) -> Outcome:
    equation, operands = call.args[0], list(call.args[1])
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:  # implicit output: the letters that occur once
        right = "".join(letter for letter in left if letter.isalpha() and left.count(letter) == 1)
    sizes = {
        letter: size
        for term, operand in zip(terms, operands, strict=True)
        for letter, size in _letters(term, operand.shape)
    }
    summed = math.prod(size for letter, size in sizes.items() if letter not in right)
    signals = [operand for operand in operands if isinstance(operand, Signal)]
    matrices = [operand for operand in operands if _names(operand) and not isinstance(operand, Signal)]
    if len(signals) == 1 and matrices:
        term = terms[operands.index(matrices[0])].replace("...", "")
        writes = math.prod(sizes[letter] for letter in term if letter in right)
        return weight(signals[0], matrices[0], fan_in=summed, fan_out=max(writes, 1))
    if len(signals) == 2:
        return _contraction(signals[0], signals[1], size=summed)
    return identity(call)


def _letters(term: str, shape: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """Yield the letters of one operand of an einsum with their sizes; `...` stands for any number of axes."""
    before, _, behind = term.partition("...")
    yield from zip(before, shape, strict=False)
    yield from zip(reversed(behind), reversed(shape), strict=False)


@handles("aten.bilinear")
def _bilinear(call: Call) -> Outcome:
    first, second, matrix = call.args[:3]
    out, left, right = matrix.shape
    # W is drawn for the product of both inputs: one edge carries the first, the second steers it.
    made = weight(
        first if isinstance(first, Signal) else second,
        matrix,
        fan_in=left * right,
        fan_out=out,
        bias=call.argument(3, "bias"),
    )
    others = (Incoming(second, "modulate"),) if _is_signal(first, second) else ()
    return Outcome((*made.incoming, *others), uses=made.uses)


@handles("aten.embedding", "aten.embedding_bag", "aten._embedding_bag")
def _embedding(call: Call) -> Outcome:
    table, index = call.args[0], call.args[1]
    if isinstance(index, Signal):
        return weight(index, table, fan_in=1, fan_out=table.shape[-1], note="embedding")
    # Looked up by position, not by data: on no path, added to the signal later.
    return Outcome(uses=tuple(ParameterUse(name, "raw", note="looked up by position") for name in _names(table)))


# Convolutions


@handles("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution", "aten._convolution")
def _convolution(call: Call) -> Outcome:
    signal, kernel = call.args[0], call.args[1]
    if not isinstance(signal, Signal) or isinstance(kernel, Signal):
        return identity(call)
    sides = kernel.shape[2:]
    stride = _each(call.argument(3, "stride", 1), len(sides))
    padding = call.argument(4, "padding", 0)
    dilation = _each(call.argument(5, "dilation", 1), len(sides))
    if "convolution" in call.op:
        transposed, groups = call.args[6], call.args[8]
        if transposed:
            spread = _each(padding, len(sides))
            return _transposed(call, stride=stride, padding=spread, dilation=dilation, groups=groups)
    else:
        groups = call.argument(6, "groups", 1)
    if padding == "same":
        padding = [d * (k - 1) // 2 for k, d in zip(sides, dilation, strict=True)]
    elif padding == "valid":
        padding = 0
    taps = math.prod(sides)
    coverage = tap_coverage(
        signal.shape[-len(sides) :],
        sides,
        stride=stride,
        padding=_each(padding, len(sides)),
        dilation=dilation,
    )
    # Patches that neither overlap nor touch padding are read by a plain matrix, as at the foot of a vision transformer.
    patches = taps > 1 and tuple(stride) == tuple(sides) and not any(_each(padding, len(sides)))
    return weight(
        signal,
        kernel,
        fan_in=kernel.shape[1] * taps,
        fan_out=kernel.shape[0] // groups * (1 if patches else taps),
        bias=call.argument(2, "bias"),
        kernel_size=1.0 if patches else taps ** (1 / len(sides)),
        kernel_axes=0 if patches else len(sides),
        gain=coverage,
    )


@handles("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def _conv_transpose(call: Call) -> Outcome:
    axes = len(call.args[1].shape[2:])
    return _transposed(
        call,
        stride=_each(call.argument(3, "stride", 1), axes),
        padding=_each(call.argument(4, "padding", 0), axes),
        dilation=_each(call.argument(7, "dilation", 1), axes),
        groups=call.argument(6, "groups", 1),
    )


def _transposed(
    call: Call, *, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Outcome:
    """Read the kernel as [in, out / groups, sides]; about taps / stride of them meet an output."""
    signal, kernel = call.args[0], call.args[1]
    sides = kernel.shape[2:]
    taps = math.prod(sides)
    coverage = transposed_coverage(
        signal.shape[-len(sides) :],
        sides,
        call.shape[-len(sides) :],
        stride=stride,
        padding=padding,
        dilation=dilation,
    )
    return weight(
        signal,
        kernel,
        fan_in=kernel.shape[0] // groups * taps,
        fan_out=kernel.shape[1] * taps,
        bias=call.argument(2, "bias"),
        kernel_size=taps ** (1 / len(sides)),
        kernel_axes=len(sides),
        gain=coverage,
    )


def _each(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Spread a size over the axes."""
    if isinstance(value, int):
        return (value,) * count
    values = tuple(value)
    return values * count if len(values) == 1 else values


# Blocks


@handles("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu")
@handles("aten.lstm_cell", "aten.gru_cell", "aten.rnn_tanh_cell", "aten.rnn_relu_cell")
def _recurrent(call: Call) -> Outcome:
    """Draw one opaque edge from the sequence (or the step); states handed in steer it."""
    name, is_cell = call.op.split(".")[1].removesuffix("_cell"), "_cell" in call.op
    kind = name.removeprefix("rnn_")
    given = call.args[2:] if is_cell else [a for a in call.args if isinstance(a, list | tuple)][-1]
    values = [value for value in given if isinstance(value, ParameterValue)]
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    hidden = values[0].shape[0] // gates if values else 1
    uses = []
    for value in values:
        # A projection of the state (LSTM's `proj_size`) has no gates.
        writes = hidden if value.shape[0] == gates * hidden else value.shape[0]
        for name in value.names:
            if len(value.shape) == 2:
                uses.append(ParameterUse(name, "weight", value.shape[1], writes, note=f"in an opaque {kind} block"))
            else:
                uses.append(ParameterUse(name, "bias", hidden, hidden))
    signal, *states = {signal.vertex: signal for signal in call.signals()}.values()
    edge = Incoming(
        signal,
        "recurrent",
        parameters=tuple(use.name for use in uses),
        fan_in=signal.shape[-1],
        fan_out=hidden,
        depth=1,
        activation=kind,
    )
    return Outcome((edge, *(Incoming(state, "modulate") for state in states)), uses=tuple(uses))


@handles(
    "aten.scaled_dot_product_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
)
def _attention(call: Call) -> Outcome:
    """Carry the values; queries and keys steer them through a softmax.

    The rows of the softmax sum to one and tokens are taken as fully correlated, so the values keep their size.
    """
    query, key, value = call.args[:3]
    steering = tuple(Incoming(s, "modulate", depth=1) for s in (query, key) if isinstance(s, Signal))
    if not isinstance(value, Signal):
        return Outcome(tuple(Incoming(s.signal) for s in steering))
    return Outcome((Incoming(value), *steering), merge="product")
