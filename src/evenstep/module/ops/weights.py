"""Operators with weights: linear, convolution, embedding, bilinear, matrix products, recurrent blocks, attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from evenstep.graph.model import COMPUTED_FROM, EMBEDDING, Edge, Parameter
from evenstep.graph.operators import Average, Contraction, Maximum, Operator, Recurrent, Steer, Weight, scaled
from evenstep.graph.windows import tap_coverage, transposed_coverage
from evenstep.module.handler_types import Call, ConstantValue, Outcome, ParameterValue, SignalValue, carried, edge_from
from evenstep.module.ops.pointwise import identity
from evenstep.module.ops.registry import handles


def weight(signal: SignalValue, matrix: Any, operator: Weight, *, bias: Any = None, note: str = "") -> Outcome:
    """Return the outcome of multiplying a signal by a weight and adding a bias.

    A weight that is computed from parameters has the size that they give it, and they are kept; a matrix of unknown
    size lets the signal through.
    """
    names = _names(matrix)
    if not names:
        return carried(signal)
    fan_in, fan_out = operator.fan_in, operator.fan_out
    uses = [Parameter(name, "weight", fan_in=fan_in, fan_out=fan_out, note=note) for name in names]
    if isinstance(matrix, ParameterValue) and matrix.made:
        uses += [Parameter(name, "unscaled", note=COMPUTED_FROM) for name in matrix.names]
    if isinstance(bias, ParameterValue) and bias.made:
        uses += [Parameter(name, "unscaled", note="a bias is computed from it") for name in bias.names]
    else:
        uses += [Parameter(name, "bias", fan_in=fan_in, fan_out=fan_out) for name in _names(bias)]
    return Outcome((edge_from(signal, operator, parameters=tuple(use.name for use in uses)),), uses=tuple(uses))


def _names(value: Any) -> tuple[str, ...]:
    """Return the names under which the sizes of a parameter or buffer are known."""
    if isinstance(value, ParameterValue):
        return (value.made,) if value.made else value.names
    if isinstance(value, ConstantValue) and value.buffer:
        return (value.buffer,)
    return ()


def _is_signal(*values: Any) -> bool:
    return all(isinstance(value, SignalValue) for value in values)


@handles("aten.linear")
def _linear(call: Call) -> Outcome:
    signal, matrix = call.args[0], call.args[1]
    if not isinstance(signal, SignalValue):  # a constant input through a signal-dependent weight: a product
        return _contraction(signal, matrix)
    if isinstance(matrix, SignalValue):
        return _contraction(signal, matrix, size=signal.shape[-1])
    out, into = matrix.shape[-2:] if len(matrix.shape) > 1 else (1, matrix.shape[-1])
    return weight(signal, matrix, Weight(into, out), bias=call.argument(2, "bias"))


@handles("aten.matmul", "aten.mm", "aten.bmm", "aten.mv", "aten.dot")
def _matmul(call: Call) -> Outcome:
    return _product(call.args[0], call.args[1])


@handles("aten.addmm", "aten.baddbmm", "aten.addbmm", "aten.addmv")
def _addmm(call: Call) -> Outcome:
    added, first, second = call.args[:3]
    beta, alpha = float(call.argument(3, "beta", 1.0)), float(call.argument(4, "alpha", 1.0))
    if not isinstance(first, SignalValue) and not isinstance(
        second, SignalValue
    ):  # the product of two parameters is added
        return carried(added) if beta == 1.0 else Outcome((edge_from(added, *scaled(beta)),))
    outcome = _product(first, second, bias=added)
    if not isinstance(added, SignalValue):
        return replace(outcome, scale=alpha)
    if outcome.merge == "sum":
        terms = (_times(edge, alpha) for edge in outcome.edges)
        return replace(outcome, edges=(edge_from(added, *scaled(beta)), *terms))
    # Usually a bias on attention scores, which steers them.
    return replace(outcome, edges=(*outcome.edges, edge_from(added, Steer())), scale=alpha)


def _times(edge: Edge, factor: float) -> Edge:
    """Return an edge multiplied by a factor: a weight is drawn for its output after the factor."""
    if edge.weight is None:
        return replace(edge, operators=(*edge.operators, *scaled(factor)))
    larger = replace(edge.weight, gain=edge.weight.gain * factor**2)
    return replace(edge, operators=tuple(larger if o is edge.weight else o for o in edge.operators))


def _product(first: Any, second: Any, *, bias: Any = None) -> Outcome:
    """Return the outcome of a matrix product: a weight if one side is a parameter, else a contraction."""
    if _is_signal(first, second):
        return _contraction(first, second, size=first.shape[-1])
    if isinstance(first, SignalValue):
        rows, columns = second.shape[-2:] if len(second.shape) > 1 else (second.shape[-1], 1)
        return weight(first, second, Weight(rows, columns), bias=bias)
    rows, columns = first.shape[-2:] if len(first.shape) > 1 else (1, first.shape[-1])
    return weight(second, first, Weight(columns, rows), bias=bias)


def _contraction(first: Any, second: Any, *, size: int = 1) -> Outcome:
    """Multiply two signals and sum over `size` terms; a softmax's rows average the other factor, taken as alike."""
    if not _is_signal(first, second):
        return carried(first if isinstance(first, SignalValue) else second)
    if first.probability or second.probability:
        values, steering = (second, first) if first.probability else (first, second)
        alike = Average(max(size, 1), correlated=True)
        return Outcome((edge_from(values, alike), edge_from(steering, Steer())), merge="product")
    summed = (Contraction(size),) if size > 1 else ()
    return Outcome((edge_from(first, *summed), edge_from(second, *summed)), merge="product")


@handles("aten.outer")
def _outer(call: Call) -> Outcome:
    return _contraction(call.args[0], call.args[1])


@handles("aten.linalg_solve", "aten.linalg_solve_triangular")
def _solved(call: Call) -> Outcome:
    """Pass the right-hand side on: a matrix that depends on the signal is near the identity, as in delta rules."""
    system, right = call.args[:2]
    if not _is_signal(system, right):
        return carried(right if isinstance(right, SignalValue) else system)
    return Outcome((edge_from(right), edge_from(system, Steer())), merge="product")


@handles("aten.tensordot")
def _tensordot(call: Call) -> Outcome:
    """Multiply two tensors and sum over the axes given for each."""
    first, second, axes, others = call.args[:4]
    size = math.prod(first.shape[axis] for axis in axes)
    if _is_signal(first, second):
        return _contraction(first, second, size=size)
    signal, matrix, summed = (first, second, others) if isinstance(first, SignalValue) else (second, first, axes)
    writes = math.prod(matrix.shape) // max(math.prod(matrix.shape[axis] for axis in summed), 1)
    return weight(signal, matrix, Weight(max(size, 1), max(writes, 1)))


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
    if not arrow:  # implicit output: letters that occur once
        right = "".join(letter for letter in left if letter.isalpha() and left.count(letter) == 1)
    sizes = {
        letter: size
        for term, operand in zip(terms, operands, strict=True)
        for letter, size in _letters(term, operand.shape)
    }
    summed = math.prod(size for letter, size in sizes.items() if letter not in right)
    signals = [operand for operand in operands if isinstance(operand, SignalValue)]
    matrices = [operand for operand in operands if _names(operand) and not isinstance(operand, SignalValue)]
    if len(signals) == 1 and matrices:
        term = terms[operands.index(matrices[0])].replace("...", "")
        writes = math.prod(sizes[letter] for letter in term if letter in right)
        return weight(signals[0], matrices[0], Weight(summed, max(writes, 1)))
    if len(signals) == 2:
        return _contraction(signals[0], signals[1], size=summed)
    if len(operands) == 1 and summed > 1:
        return Outcome((edge_from(signals[0], Average(summed)),), scale=float(summed))
    return identity(call)


def _letters(term: str, shape: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """Yield the letters of one operand of an einsum with their sizes; `...` stands for any number of axes."""
    before, _, after = term.partition("...")
    yield from zip(before, shape, strict=False)
    yield from zip(reversed(after), reversed(shape), strict=False)


@handles("aten.bilinear")
def _bilinear(call: Call) -> Outcome:
    first, second, matrix = call.args[:3]
    out, left, right = matrix.shape
    # W is drawn for the product of both inputs: one edge carries the first, the second steers it.
    made = weight(
        first if isinstance(first, SignalValue) else second,
        matrix,
        Weight(left * right, out),
        bias=call.argument(3, "bias"),
    )
    others = (edge_from(second, Steer()),) if _is_signal(first, second) else ()
    return Outcome((*made.edges, *others), uses=made.uses)


@handles("aten.embedding", "aten.embedding_bag", "aten._embedding_bag")
def _embedding(call: Call) -> Outcome:
    table, index = call.args[0], call.args[1]
    if isinstance(index, SignalValue):
        made = weight(index, table, Weight(1, table.shape[-1]), note=EMBEDDING)
        return _bagged(call, made, index) if "embedding_bag" in call.op and made.uses else made
    # Looked up by position, not by data: it is on no path, but added to the signal later.
    return Outcome(uses=tuple(Parameter(name, "unscaled", note="looked up by position") for name in _names(table)))


@handles("aten.index", "aten.index_select")
def _indexed(call: Call) -> Outcome:
    """Look up rows of a table, or choose among matrices such as experts', in which case the result is a matrix."""
    table = call.args[0]
    if isinstance(table, SignalValue) or not isinstance(table, ParameterValue):
        return identity(call)
    if len(table.shape) < 3 and not table.made:
        return weight(call.signals()[0], table, Weight(1, table.shape[-1]), note=EMBEDDING)
    return Outcome()


@handles("aten._grouped_mm", "aten.grouped_mm", "transformers.grouped_mm_fallback")
def _grouped(call: Call) -> Outcome:
    """Multiply every row by the matrix of its group."""
    return _product(call.args[0], call.args[1])


def _bagged(call: Call, looked_up: Outcome, index: SignalValue) -> Outcome:
    """Return the rows of a bag summed, averaged, or reduced to their maximum."""
    rows = max(math.prod(index.shape) // max(call.shape[0], 1), 1)
    (edge,) = looked_up.edges
    joined: tuple[Operator, ...] = (Maximum(rows),) if call.argument(4, "mode", 0) == 2 else (Average(rows),)
    scale = float(rows) if call.argument(4, "mode", 0) == 0 else 1.0
    return replace(looked_up, edges=(replace(edge, operators=(*edge.operators, *joined)),), scale=scale)


# Convolutions


@handles("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution", "aten._convolution")
def _convolution(call: Call) -> Outcome:
    signal, kernel = call.args[0], call.args[1]
    if not isinstance(signal, SignalValue) or isinstance(kernel, SignalValue):
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
    # Patches that neither overlap nor touch padding are each read once, as at the input of a vision transformer.
    patches = taps > 1 and tuple(stride) == tuple(sides) and not any(_each(padding, len(sides)))
    operator = Weight(
        fan_in=kernel.shape[1] * taps,
        fan_out=kernel.shape[0] // groups * (1 if patches else taps),
        kernel_size=taps ** (1 / len(sides)),
        kernel_axes=len(sides),
        groups=groups,
        gain=coverage,
        patches=patches,
    )
    return weight(signal, kernel, operator, bias=call.argument(2, "bias"))


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
    operator = Weight(
        fan_in=kernel.shape[0] // groups * taps,
        fan_out=kernel.shape[1] * taps,
        kernel_size=taps ** (1 / len(sides)),
        kernel_axes=len(sides),
        groups=groups,
        gain=coverage,
    )
    return weight(signal, kernel, operator, bias=call.argument(2, "bias"))


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
    """Draw one opaque edge from the sequence (or the step); given states steer it."""
    name, is_cell = call.op.split(".")[1].removesuffix("_cell"), "_cell" in call.op
    kind = name.removeprefix("rnn_")
    given = call.args[2:] if is_cell else [a for a in call.args if isinstance(a, list | tuple)][-1]
    values = [value for value in given if isinstance(value, ParameterValue)]
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    hidden = values[0].shape[0] // gates if values else 1
    note = f"in an opaque {kind} block"
    uses: list[Parameter] = []
    reads, begins = 1, True
    for value in values:
        if len(value.shape) == 1:  # a bias goes with the matrix that reads its layer's input
            uses += [Parameter(name, "bias", fan_in=reads, fan_out=hidden) for name in value.names]
            begins = True
            continue
        rows, columns = value.shape
        if begins and rows == gates * hidden:
            reads, begins = columns, False
        # A projection of the state (LSTM's `proj_size`) has no gates.
        writes = hidden if rows == gates * hidden else rows
        uses += [Parameter(name, "weight", fan_in=columns, fan_out=writes, note=note) for name in value.names]
    signal, *others = call.signals()  # a packed sequence also has its batch sizes here
    states = {other.vertex: other for other in others if other.vertex != signal.vertex}.values()
    operator = Recurrent(signal.shape[-1], hidden, kind=kind)
    edge = edge_from(signal, operator, parameters=tuple(use.name for use in uses))
    return Outcome((edge, *(edge_from(state, Steer()) for state in states)), uses=tuple(uses))


@handles(
    "aten.scaled_dot_product_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
)
def _attention(call: Call) -> Outcome:
    """Pass the values on; queries and keys steer them through a softmax.

    The softmax's rows sum to one and tokens are taken as fully correlated, so the values keep their size.
    """
    query, key, value = call.args[:3]
    steering = [s for s in (query, key) if isinstance(s, SignalValue)]
    if not isinstance(value, SignalValue):
        return Outcome(tuple(map(edge_from, steering))) if len(steering) > 1 else carried(steering[0])
    alike = Average(max(value.shape[-2], 1) if len(value.shape) > 1 else 1, correlated=True)
    return Outcome((edge_from(value, alike), *(edge_from(s, Steer(depth=1)) for s in steering)), merge="product")
