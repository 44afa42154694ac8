"""Operators with weights: linear, convolution, embedding, bilinear, matrix products, recurrent blocks, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    gain: float = 1.0,
    note: str = "",
) -> Outcome:
    """Return the outcome of multiplying a signal by a weight and adding a bias."""
    names, uses = _names(matrix), []
    for name in names:
        uses.append(ParameterUse(name, "weight", fan_in, fan_out, kernel_size, note))
    for name in _names(bias):
        uses.append(ParameterUse(name, "bias", fan_in, fan_out))
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
    if isinstance(value, ParameterValue):
        return value.names
    if isinstance(value, Constant) and value.buffer:
        return (value.buffer,)
    return ()


def _is_signal(*values: Any) -> bool:
    return all(isinstance(value, Signal) for value in values)


@handles("aten.linear")
def _linear(call: Call) -> Outcome:
    signal, matrix = call.args[0], call.args[1]
    if not isinstance(signal, Signal):  # a constant input through a signal-dependent weight: a product
        return _contraction(signal, matrix, call.shape)
    if isinstance(matrix, Signal):
        return _contraction(signal, matrix, call.shape, size=signal.shape[-1])
    out, into = matrix.shape[-2:] if len(matrix.shape) > 1 else (1, matrix.shape[-1])
    return weight(signal, matrix, fan_in=into, fan_out=out, bias=call.argument(2, "bias"))


@handles("aten.matmul", "aten.mm", "aten.bmm", "aten.mv", "aten.dot")
def _matmul(call: Call) -> Outcome:
    return _product(call.args[0], call.args[1], call.shape)


@handles("aten.addmm", "aten.baddbmm", "aten.addbmm")
def _addmm(call: Call) -> Outcome:
    added, first, second = call.args[:3]
    outcome = _product(first, second, call.shape)
    names = _names(added)
    if outcome.incoming and outcome.incoming[0].op == "weight" and names:
        edge = outcome.incoming[0]
        uses = tuple(ParameterUse(name, "bias", edge.fan_in, edge.fan_out) for name in names)
        return weight(
            edge.signal,
            ParameterValue(edge.parameters, ()),
            fan_in=edge.fan_in,
            fan_out=edge.fan_out,
            bias=ParameterValue(tuple(use.name for use in uses), ()),
        )
    return outcome


def _product(first: Any, second: Any, shape: tuple[int, ...]) -> Outcome:
    """Return the outcome of a matrix product: a weight if one side is a parameter, else a contraction."""
    if _is_signal(first, second):
        return _contraction(first, second, shape, size=first.shape[-1])
    if isinstance(first, Signal):
        rows, columns = second.shape[-2:] if len(second.shape) > 1 else (second.shape[-1], 1)
        if _names(second):
            return weight(first, second, fan_in=rows, fan_out=columns)
        return Outcome((Incoming(first),))
    rows, columns = first.shape[-2:] if len(first.shape) > 1 else (1, first.shape[-1])
    if _names(first):
        return weight(second, first, fan_in=columns, fan_out=rows)
    return Outcome((Incoming(second),))


def _contraction(first: Any, second: Any, shape: tuple[int, ...], *, size: int = 1) -> Outcome:
    """Multiply two signals and sum over `size` terms; a softmax's rows average what they multiply."""
    del shape
    if not _is_signal(first, second):
        return Outcome(tuple(Incoming(value) for value in (first, second) if isinstance(value, Signal)))
    if first.probability or second.probability:
        carried, steering = (second, first) if first.probability else (first, second)
        return Outcome((Incoming(carried), Incoming(steering, "modulate")), merge="product")
    return Outcome((Incoming(first, window=size), Incoming(second, window=size)), merge="product")


@handles("aten.einsum")
def _einsum(call: Call) -> Outcome:
    equation, operands = call.args[0], list(call.args[1])
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    sizes = {
        letter: size
        for term, operand in zip(terms, operands, strict=False)
        for letter, size in zip(term.replace("...", ""), operand.shape[-len(term.replace("...", "")) :], strict=False)
    }
    summed = math.prod(size for letter, size in sizes.items() if letter not in right)
    signals = [operand for operand in operands if isinstance(operand, Signal)]
    matrices = [operand for operand in operands if _names(operand) and not isinstance(operand, Signal)]
    if len(signals) == 1 and matrices:
        term = terms[operands.index(matrices[0])].replace("...", "")
        writes = math.prod(sizes[letter] for letter in term if letter in right)
        return weight(signals[0], matrices[0], fan_in=summed, fan_out=max(writes, 1))
    if len(signals) == 2:
        return _contraction(signals[0], signals[1], call.shape, size=summed)
    return identity(call)


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
        note="bilinear",
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
    return weight(
        signal,
        kernel,
        fan_in=kernel.shape[1] * taps,
        fan_out=kernel.shape[0] // groups * taps,
        bias=call.argument(2, "bias"),
        kernel_size=taps ** (1 / len(sides)),
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
def _recurrent(call: Call) -> Outcome:
    kind = call.op.split(".")[1].removeprefix("rnn_")
    signal = call.signals()[0]
    values = [value for argument in call.args for value in _list(argument) if isinstance(value, ParameterValue)]
    uses, hidden = [], 1
    for value in values:
        for name in value.names:
            if len(value.shape) == 2:
                hidden = value.shape[0] // {"lstm": 4, "gru": 3}.get(kind, 1)
                uses.append(ParameterUse(name, "weight", value.shape[1], hidden, note=f"in an opaque {kind} block"))
            else:
                uses.append(ParameterUse(name, "bias", hidden, hidden))
    edge = Incoming(
        signal,
        "recurrent",
        parameters=tuple(use.name for use in uses),
        fan_in=signal.shape[-1],
        fan_out=hidden,
        depth=1,
        activation=kind,
    )
    return Outcome((edge,), uses=tuple(uses))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


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
