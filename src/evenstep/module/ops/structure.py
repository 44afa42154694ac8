"""Operators that move, join, pool or normalise entries."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evenstep.graph.model import Edge, Parameter
from evenstep.graph.operators import (
    Activation,
    Average,
    ConcatBlock,
    Maximum,
    Norm,
    Operator,
    Padding,
    RMSNorm,
    RunningSum,
    Slice,
    scaled,
)
from evenstep.module.handler_types import (
    Call,
    ConstantValue,
    Handler,
    Outcome,
    ParameterValue,
    SignalValue,
    carried,
    edge_from,
)
from evenstep.module.ops.pointwise import identity
from evenstep.module.ops.registry import handle_each, handler_of, handles

_MOVES = """
    aten.view aten._unsafe_view aten.reshape aten.flatten aten.unflatten aten.permute aten.transpose aten.t
    aten.mT aten.numpy_T aten.squeeze aten.unsqueeze aten.expand aten.expand_as aten.gather aten.roll aten.flip
    aten.repeat aten.repeat_interleave aten.tile aten.movedim aten.moveaxis aten.swapaxes aten.swapdims
    aten.unfold aten.im2col aten.pixel_shuffle aten.pixel_unshuffle aten.channel_shuffle aten.diagonal aten.tril
    aten.triu aten.reflection_pad1d aten.reflection_pad2d aten.reflection_pad3d aten.replication_pad1d
    aten.replication_pad2d aten.replication_pad3d aten.upsample_nearest1d aten.upsample_nearest2d
    aten.upsample_nearest3d aten.upsample_bilinear2d aten.upsample_linear1d aten.upsample_trilinear3d
    aten.upsample_bicubic2d aten.interpolate aten.grid_sampler aten.sort aten.topk aten.take_along_dim
    aten._pack_padded_sequence aten._pad_packed_sequence
    aten.masked_select aten.view_as aten.reshape_as aten.atleast_1d aten.atleast_2d aten.ravel aten.as_strided
    aten.rot90 aten.column_stack aten.meshgrid aten._adaptive_max_pool aten.complex aten.view_as_real
    aten.view_as_complex aten.real aten.col2im aten.resolve_conj aten.resolve_neg aten.atleast_3d aten.mH
    aten.adjoint aten.upsample_nearest_exact1d aten._upsample_nearest_exact1d aten._upsample_nearest_exact2d
    aten._upsample_nearest_exact3d aten._upsample_bilinear2d_aa aten._upsample_bicubic2d_aa aten.take aten.diag
    aten.diag_embed aten.diagonal_copy aten.imag aten.polar aten.grid_sampler_2d aten.grid_sampler_3d
    aten.affine_grid_generator aten.index_fill aten.cummax aten.cummin aten._pad_circular aten.hsplit aten.vsplit
""".split()
handle_each(_MOVES, identity)


@handles(
    "aten.split",
    "aten.split_with_sizes",
    "aten.chunk",
    "aten.tensor_split",
    "aten.unbind",
    "aten.unsafe_split",
)
@handles("aten.unsafe_chunk", "aten.slice", "aten.narrow", "aten.select")
def _part(call: Call) -> Outcome:
    """Take entries out of a signal: they have its moments, but are independent of its other entries."""
    signal = call.signals()[0]
    if math.prod(call.shape) >= math.prod(signal.shape):
        return identity(call)
    return Outcome((edge_from(signal, Slice()),), probability=signal.probability, parts=True)


@handles("aten.cat", "aten.stack", "aten.hstack", "aten.vstack", "aten.dstack", "aten.pad_sequence")
def _concat(call: Call) -> Outcome:
    """Join blocks side by side; each counts by its share of the entries."""
    blocks = [value for value in call.args[0] if isinstance(value, SignalValue | ParameterValue | ConstantValue)]
    total = sum(math.prod(block.shape) for block in blocks) or 1
    if len(blocks) == 1 and isinstance(blocks[0], SignalValue):
        return carried(blocks[0])
    names = tuple(name for block in blocks if isinstance(block, ParameterValue) for name in block.names)
    uses = tuple(Parameter(name, "unscaled", note="joined to the signal") for name in names)
    edges: list[Edge] = []
    for block in blocks:
        if isinstance(block, SignalValue):
            share = math.prod(block.shape) / total
            edges.append(edge_from(block, ConcatBlock(share), parameters=() if edges else names))
    return Outcome(tuple(edges), merge="concat", uses=uses)


_LOOKS_UP = ("aten.index.", "aten.index_select.", "aten.embedding.")


def moves_entries(op: str) -> bool:
    """Return whether an operator only moves, copies or joins entries, so that a drawn weight stays as drawn."""
    return handler_of(op) in (identity, _part, _concat) or op.startswith(_LOOKS_UP)


def cuts_entries(op: str) -> bool:
    """Return whether an operator takes entries out of a signal without changing them."""
    return handler_of(op) is _part


@handles("aten.pad", "aten.constant_pad_nd")
def _pad(call: Call) -> Outcome:
    """Append zeros to a signal; padding that repeats entries or removes some changes nothing."""
    signal = call.signals()[0]
    mode = call.argument(2, "mode", "constant") if call.op.startswith("aten.pad") else "constant"
    value = call.argument(3 if call.op.startswith("aten.pad") else 2, "value", 0.0)
    kept = math.prod(signal.shape) / max(math.prod(call.shape), 1)
    if mode != "constant" or value or any(side < 0 for side in call.args[1]) or kept >= 1:
        return identity(call)
    return Outcome((edge_from(signal, Padding(kept)),))


_WRITTEN = {"slice_scatter": 1, "select_scatter": 1, "diagonal_scatter": 1, "index_put": 2, "masked_scatter": 2}
_WRITTEN |= {"copy": 1, "scatter": 3, "index_copy": 3}


@handles("aten.slice_scatter", "aten.select_scatter", "aten.diagonal_scatter", "aten.index_put", "aten.masked_scatter")
@handles("aten.copy", "aten.scatter", "aten.index_copy")
def _overwrite(call: Call) -> Outcome:
    """Replace some entries of a tensor: each part counts by its share, and a new tensor is filled part by part."""
    before = call.args[0]
    position = _WRITTEN[call.op.split(".")[1].rstrip("_")]
    source = call.args[position] if position < len(call.args) else None
    if not isinstance(source, SignalValue):
        return identity(call)
    share = math.prod(source.shape) / max(math.prod(call.shape), 1)
    if not isinstance(before, SignalValue) or share >= 1 or call.op.startswith("aten.copy"):
        return carried(source)
    return Outcome((edge_from(before, ConcatBlock(1 - share)), edge_from(source, ConcatBlock(share))), merge="concat")


@handles("aten.scatter_add", "aten.index_add", "aten.scatter_reduce", "aten.index_reduce")
def _scatter_add(call: Call) -> Outcome:
    """Add entries of one tensor to those of another."""
    signals = [value for value in (call.args[0], call.args[3]) if isinstance(value, SignalValue)]
    return Outcome(tuple(map(edge_from, signals))) if len(signals) == 2 else identity(call)


# Averages and maxima


@handles("aten.mean", "aten.nanmean")
def _mean(call: Call) -> Outcome:
    return Outcome((edge_from(call.signals()[0], Average(_window(call))),))


@handles("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d")
def _adaptive_average(call: Call) -> Outcome:
    signal = call.signals()[0]
    window = max(math.prod(signal.shape) // max(math.prod(call.shape), 1), 1)
    return Outcome((edge_from(signal, Average(window)),))


@handles("aten.sum", "aten.nansum")
def _sum(call: Call) -> Outcome:
    """Sum n entries: n times their mean."""
    window = _window(call)
    return Outcome((edge_from(call.signals()[0], Average(window)),), scale=float(window))


@handles("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
def _average_pool(call: Call) -> Outcome:
    """Average over windows: over all positions like any mean; over neighbours, nearly alike, a coherent copy."""
    signal = call.signals()[0]
    kernel = _sides(call.args[1], call.op)
    if any(side < whole for side, whole in zip(kernel, signal.shape[-len(kernel) :], strict=True)):
        return Outcome((edge_from(signal, Average(math.prod(kernel), correlated=True)),))
    return Outcome((edge_from(signal, Average(math.prod(signal.shape[-len(kernel) :]))),))


@handles("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d", "aten.max_pool2d_with_indices")
def _max_pool(call: Call) -> Outcome:
    window = math.prod(_sides(call.args[1], call.op))
    return Outcome((edge_from(call.signals()[0], Maximum(window)),))


@handles("aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def _adaptive_maximum(call: Call) -> Outcome:
    signal = call.signals()[0]
    window = max(math.prod(signal.shape) // max(math.prod(call.shape), 1), 1)
    return Outcome((edge_from(signal, Maximum(window)),))


@handles("aten.amax", "aten.max", "aten.amin", "aten.min")
def _extreme(call: Call) -> Outcome:
    """Take the largest entry, or the smallest, which is minus the largest of the negatives."""
    sign = -1.0 if "min" in call.op.split(".")[1] else 1.0
    return Outcome((edge_from(call.signals()[0], Maximum(_window(call))),), scale=sign)


@handles("aten.cumsum")
def _running_sum(call: Call) -> Outcome:
    signal = call.signals()[0]
    window = signal.shape[call.argument(1, "dim", -1)] if signal.shape else 1
    return Outcome((edge_from(signal, RunningSum(window)),))


@handles("aten.logsumexp")
def _log_of_sum(call: Call) -> Outcome:
    """Take the logarithm of n times the mean of the exponentials."""
    window = _window(call)
    operators = (Activation("exp", window, depth=0), *scaled(float(window)), Activation("log", depth=0))
    return Outcome((edge_from(call.signals()[0], *operators),))


_TRANSFORMS = ("fft_fft", "fft_fft2", "fft_fftn", "fft_rfft", "fft_rfft2", "fft_rfftn")
_INVERSES = ("fft_ifft", "fft_ifft2", "fft_ifftn", "fft_irfft", "fft_irfft2", "fft_irfftn")


@handles(*(f"aten.{name}" for name in (*_TRANSFORMS, *_INVERSES)))
def _fourier(call: Call) -> Outcome:
    """Sum n entries with phases; `norm` says by what the sum is divided, and in which direction."""
    signal, name = call.signals()[0], call.op.split(".")[1]
    dims = call.argument(2, "dim", None if name.endswith("n") else [-2, -1] if name.endswith("2") else -1)
    listed = range(len(signal.shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    window = max(math.prod(signal.shape[dim] for dim in listed), 1)
    norm = call.argument(3, "norm") or "backward"
    whole = norm == ("backward" if name in _TRANSFORMS else "forward")
    scale = math.sqrt(window) if norm == "ortho" else float(window) if whole else 1.0
    return Outcome((edge_from(signal, Average(window)),), scale=scale)


@handles("aten.var", "aten.std")
def _spread(call: Call) -> Outcome:
    """Average squares of entries taken as centred, which gives a number that hardly fluctuates."""
    root = () if call.op.startswith("aten.var") else (Activation("sqrt", depth=0),)
    return Outcome((edge_from(call.signals()[0], Activation("square", _window(call), depth=0), *root),))


@handles("aten.norm", "aten.linalg_vector_norm", "aten.frobenius_norm")
def _vector_norm(call: Call) -> Outcome:
    """Sum absolute values to a power, and take the root; an infinite power takes the largest."""
    signal = call.signals()[0]
    power = 2.0 if "frobenius" in call.op else call.argument(1, "ord", call.kwargs.get("p", 2))
    position = 1 if "frobenius" in call.op else 2
    window = _window(call, position)
    if not isinstance(power, int | float) or power == 2:
        operators: tuple[Operator, ...] = (
            Activation("square", window, depth=0),
            *scaled(window),
            Activation("sqrt", depth=0),
        )
    elif power == math.inf:
        operators = (Activation("abs", depth=0), Maximum(window))
    elif power == 1:
        operators = (Activation("abs", window, depth=0), *scaled(window))
    else:
        return identity(call)
    return Outcome((edge_from(signal, *operators),))


def _window(call: Call, position: int = 1) -> int:
    """Return how many entries an operator reduces to one; `position` is that of its argument for the axes."""
    signal, dims = call.signals()[0], call.argument(position, "dim")
    if dims is None or isinstance(dims, bool) or dims == []:
        return max(math.prod(signal.shape), 1)
    listed = [dims] if isinstance(dims, int) else list(dims)
    return max(math.prod(signal.shape[dim] for dim in listed), 1)


def _sides(value: int | Sequence[int], op: str) -> tuple[int, ...]:
    """Return a size per axis for a pool whose name ends in its number of axes."""
    axes = next(n for n in (1, 2, 3) if f"pool{n}d" in op)
    if isinstance(value, int):
        return (value,) * axes
    values = tuple(value)
    return values * axes if len(values) == 1 else values


# Normalisation


def _norm(position: int, operator: Norm = Norm()) -> Handler:  # noqa: B008
    """Return a handler for a norm whose gain and bias follow at `position`."""

    def handler(call: Call) -> Outcome:
        uses: list[Parameter] = []
        gain = call.argument(position, "weight")
        bias = None if isinstance(operator, RMSNorm) else call.argument(position + 1, "bias")
        if isinstance(gain, ParameterValue):
            uses += [Parameter(name, "gain") for name in gain.names]
        if isinstance(bias, ParameterValue):
            uses += [Parameter(name, "bias") for name in bias.names]
        edge = edge_from(call.signals()[0], operator, parameters=tuple(use.name for use in uses))
        return Outcome((edge,), uses=tuple(uses))

    return handler


norm = _norm(1)
batch_norm = _norm(1, Norm(over_batch=True))
handles("aten.batch_norm", "aten.native_batch_norm", "aten._native_batch_norm_legit", "aten.cudnn_batch_norm")(
    batch_norm
)
handles("aten._native_batch_norm_legit_functional", "aten._batch_norm_with_update")(batch_norm)
handles("aten.instance_norm", "aten.native_group_norm")(norm)
handles("aten.layer_norm", "aten.native_layer_norm", "aten.group_norm")(_norm(2))
handles("aten.rms_norm", "aten._fused_rms_norm")(_norm(2, RMSNorm()))
handles("aten.local_response_norm")(identity)
