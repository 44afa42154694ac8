"""Run a NAS-Bench-201 network by the kernels beside, forwards and backwards, on a GPU.

A cell is one autograd function. Forwards every vertex is written once, from its edges together; backwards its gradient
is gathered once, from its readers together. Libraries are slow at what a cell consists of: few channels, small windows,
and norms that read a field three times.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenstep_research.spaces.nasbench201 import NasBench201

_CONV, _SKIP, _POOL = 1, 2, 3  # kinds of edges, as the kernels number them
_PROGRAMS = 528  # four to each multiprocessor of the largest GPUs
_ELEMENTS = 4096  # of a tile, in kernels that pass over fields
_WIDTHS = (16, 32, 64)

Sent = tuple[int, Tensor]  # what an edge brings or sends back, with the edge's kind


@lru_cache(maxsize=1)
def kernels() -> Any:
    """Return the module of kernels, None where Triton is not installed."""
    if find_spec("triton") is None:
        return None
    from evenstep_research.study.nas import kernels as module

    return module


def fused_for(model: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor] | None:
    """Return a function that computes what a network computes in training mode, faster, where there is one.

    That needs 16, 32 or 64 channels in every cell, Triton, and a GPU with a C compiler beside it, or Triton's
    interpreter. The batch norms' counts of batches, which nothing reads, stay as they are.
    """
    if not isinstance(model, NasBench201) or not _can_run(device):
        return None
    if not {model.stem.conv.out_channels, model.readout.in_features} <= {*_WIDTHS} or kernels() is None:
        return None
    cells = [_edges_of(block) if hasattr(block, "edges") else None for block in model.cells]

    def forward(x: Tensor) -> Tensor:
        x = _normed(model.stem.conv(x), model.stem.norm)
        for block, edges in zip(model.cells, cells, strict=True):
            x = _reduced(block, x) if edges is None else _run(block, edges, x)
        logits: Tensor = model.readout(functional.relu(_normed(x, model.norm)).mean(dim=(2, 3)))
        return logits

    return forward


def _can_run(device: torch.device) -> bool:
    """Say whether Triton can run kernels there: it builds what launches them with a C compiler."""
    if device.type != "cuda":
        return os.environ.get("TRITON_INTERPRET") == "1"
    return any(os.environ.get("CC") or shutil.which(name) for name in ("cc", "gcc", "clang"))


@dataclass(frozen=True)
class _FusedEdge:
    """An edge of a cell; `conv` says which of the cell's convolutions it is, -1 none."""

    source: int
    target: int
    kind: int
    conv: int = -1


def _edges_of(cell: Any) -> tuple[_FusedEdge, ...]:
    """Return a cell's live edges by target, convolutions first, for they are normed together."""
    kinds = {nn.Identity: _SKIP, nn.AvgPool2d: _POOL}
    run = [(t, kinds.get(type(cell.edges[f"{s}_{t}"]), _CONV), s) for t, s in cell._run]
    edges: list[_FusedEdge] = []
    for target, kind, source in sorted(run):
        convs = sum(edge.kind == _CONV for edge in edges)
        edges.append(_FusedEdge(source, target, kind, convs if kind == _CONV else -1))
    return tuple(edges)


def _run(cell: Any, edges: tuple[_FusedEdge, ...], x: Tensor) -> Tensor:
    layers = [cell.edges[f"{edge.source}_{edge.target}"] for edge in edges if edge.kind == _CONV]
    parameters = [p for layer in layers for p in (layer.conv.weight, layer.norm.weight, layer.norm.bias)]
    output: Tensor = _FusedCell.apply(x, edges, [layer.norm for layer in layers], *parameters)  # type: ignore[no-untyped-call]
    return output


def _reduced(block: Any, x: Tensor) -> Tensor:
    """Run a reduction block; the mean of 2 x 2 pixels is taken over a view, which has a fast gradient."""
    n, c, h, w = x.shape
    pooled = x.permute(0, 2, 3, 1).reshape(n, h // 2, 2, w // 2, 2, c).mean(dim=(2, 4)).permute(0, 3, 1, 2)
    first = _normed(block.first.conv(functional.relu(x)), block.first.norm)
    shortcut: Tensor = block.shortcut.conv(pooled)
    return _normed(block.second.conv(functional.relu(first)), block.second.norm) + shortcut


def _normed(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    output: Tensor = _FusedNorm.apply(x, norm, norm.weight, norm.bias)  # type: ignore[no-untyped-call]
    return output


class _FusedNorm(torch.autograd.Function):
    """A batch norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: nn.BatchNorm2d, gain: Tensor, bias: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        _, sums = _gathered([(_SKIP, x)], None, [x])
        settled = _settled(sums, gain, bias, norm, x)
        ctx.save_for_backward(x, settled, gain)
        return _joined([(_CONV, x)], [settled])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, settled, gain = ctx.saved_tensors
        gradient, sums = _gathered([(_SKIP, gradients[0].contiguous(memory_format=torch.channels_last))], None, [x])
        parts, of_gain, of_bias = _settled_gradient(sums, gain, settled, x, 0, 1)
        return *_spread(gradient, [x], [parts]), None, of_gain, of_bias


class _FusedCell(torch.autograd.Function):
    """A cell's fields and gradients; parameters come as weight, gain and bias of each convolution."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, edges: tuple[_FusedEdge, ...], norms: Sequence[nn.BatchNorm2d], *parameters: Tensor
    ) -> Tensor:
        fields = {0: x.contiguous(memory_format=torch.channels_last)}
        weights = [w.to(x.dtype, memory_format=torch.channels_last) for w in parameters[::3]]
        outputs: list[Tensor] = []
        settled: list[Tensor] = []
        for target in sorted({edge.target for edge in edges}):
            terms: list[Sent] = []
            for edge in edges:
                if edge.target != target:
                    continue
                if edge.kind == _CONV:
                    output, sums = _convolved(fields[edge.source], weights[edge.conv])
                    gain, bias = parameters[3 * edge.conv + 1 : 3 * edge.conv + 3]
                    outputs.append(output)
                    settled.append(_settled(sums, gain, bias, norms[edge.conv], x))
                terms.append((edge.kind, outputs[-1] if edge.kind == _CONV else fields[edge.source]))
            normed = sum(kind == _CONV for kind, _ in terms)
            fields[target] = _joined(terms, settled[len(settled) - normed :])
        ctx.edges, ctx.last, ctx.convs = edges, max(fields), len(weights)
        result = fields.pop(ctx.last)
        ctx.vertices = list(fields)
        ctx.save_for_backward(*fields.values(), *weights, *outputs, *settled, *parameters[1::3])
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        vertices, convs, saved = len(ctx.vertices), ctx.convs, ctx.saved_tensors
        fields = dict(zip(ctx.vertices, saved[:vertices], strict=True))
        weights, outputs, settled, gains = (
            saved[vertices + part * convs : vertices + (part + 1) * convs] for part in range(4)
        )
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        sent: dict[int, list[Sent]] = {ctx.last: [(_SKIP, gradient)]}
        of_parameters: list[Tensor | None] = [None] * (3 * convs)
        for vertex in sorted((*fields, ctx.last), reverse=True):
            edges = [edge for edge in ctx.edges if edge.target == vertex]
            normed = [edge.conv for edge in edges if edge.kind == _CONV]
            of_vertex = [outputs[conv] for conv in normed]
            gradient, sums = _gathered(sent[vertex], fields.get(vertex), of_vertex)
            parts = []
            for place, conv in enumerate(normed):
                part, *of_norm = _settled_gradient(sums, gains[conv], settled[conv], gradient, place, len(normed))
                of_parameters[3 * conv + 1 : 3 * conv + 3] = of_norm
                parts.append(part)
            spread = dict(zip(normed, _spread(gradient, of_vertex, parts), strict=True))
            for edge in edges:
                back = gradient
                if edge.kind == _CONV:
                    weight = weights[edge.conv]
                    of_parameters[3 * edge.conv] = _weight_gradient(
                        fields[edge.source], spread[edge.conv], weight.shape[-1]
                    )
                    back = _convolved_back(spread[edge.conv], weight)
                sent.setdefault(edge.source, []).append((edge.kind, back))
        return gradient, None, None, *of_parameters


def _sizes(field: Tensor) -> tuple[int, dict[str, int]]:
    n, c, h, _ = field.shape
    return n * h * h, {"C": c, "SIDE": h}


def _tiles(pixels: int, block: int) -> int:
    return -(-pixels // block)


def _convolved(field: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return conv(relu(field)), and by program the sums of its channels and of their squares."""
    pixels, sizes = _sizes(field)
    block = 128 if sizes["C"] < 64 else 64
    programs = min(_PROGRAMS, _tiles(pixels, block))
    out, sums = torch.empty_like(field), field.new_empty((programs, 2, sizes["C"]), dtype=torch.float32)
    kernels().convolve[(programs,)](
        field, weight, out, sums, pixels, **sizes, KERNEL=weight.shape[-1], BACKWARD=False, BLOCK=block, num_stages=1
    )
    return out, sums


def _convolved_back(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of a convolution's input."""
    pixels, sizes = _sizes(gradient)
    out = torch.empty_like(gradient)
    kernels().convolve[(_tiles(pixels, 128),)](
        gradient, weight, out, out, pixels, **sizes, KERNEL=weight.shape[-1], BACKWARD=True, BLOCK=128, num_stages=1
    )
    return out


def _weight_gradient(field: Tensor, gradient: Tensor, kernel: int) -> Tensor:
    """Return the gradient of a convolution's weight, in float32."""
    pixels, sizes = _sizes(field)
    c = sizes["C"]
    if c == 64:
        block, most, launch = 128, _PROGRAMS // 8, {"num_warps": 4, "num_stages": 1}
    elif kernel == 1:
        block, most, launch = 128, _PROGRAMS // 4, {"num_warps": 4, "num_stages": 2}
    else:
        block, most, launch = 64, _PROGRAMS // 2, {"num_warps": 2, "num_stages": 2}
    programs = min(most, _tiles(pixels, block))
    sums = field.new_empty((programs, c, kernel, kernel, c), dtype=torch.float32)
    kernels().convolve_weight[(programs, kernel)](
        field, gradient, sums, pixels, **sizes, KERNEL=kernel, BLOCK=block, **launch
    )
    return sums.sum(0).permute(0, 3, 1, 2)


def _settled(sums: Tensor, gain: Tensor, bias: Tensor, norm: nn.BatchNorm2d, field: Tensor) -> Tensor:
    """Return what a norm makes of its sums: scale, shift, mean and inverse deviation; its running statistics move."""
    pixels, sizes = _sizes(field)
    settled = sums.new_empty((4, sizes["C"]))
    kernels().settle_norm[(1,)](
        sums, gain, bias, norm.running_mean, norm.running_var, settled, len(sums), float(pixels),
        norm.momentum, norm.eps, C=sizes["C"], MOST=_power_of_two(len(sums)), num_warps=8,
    )  # fmt: skip
    return settled


def _joined(terms: Sequence[Sent], settled: Sequence[Tensor]) -> Tensor:
    """Return a vertex's field; the terms of convolutions come first, each with its norm."""
    pixels, sizes = _sizes(terms[0][1])
    block = _ELEMENTS // sizes["C"]
    out = torch.empty_like(terms[0][1])
    a, b, c = _three([kind for kind, _ in terms], 0)
    kernels().join[(_tiles(pixels, block),)](
        *_three([field for _, field in terms], out), *_three(settled, out), out, pixels, A=a, B=b, D=c, **sizes,
        BLOCK=block,
    )  # fmt: skip
    return out


def _gathered(sent: Sequence[Sent], field: Tensor | None, outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return a vertex's gradient, and by program its sums alone and times the outputs of convolutions that came in."""
    first = sent[0][1]
    given = len(sent) == 1 and sent[0][0] == _SKIP
    if given and not outputs:
        return first, first
    pixels, sizes = _sizes(first)
    block = _ELEMENTS // sizes["C"]
    programs = min(_PROGRAMS, _tiles(pixels, block))
    out = first if given else torch.empty_like(first)
    sums = first.new_empty((programs, 1 + len(outputs), sizes["C"]), dtype=torch.float32)
    a, b, c = _three([kind for kind, _ in sent], 0)
    kernels().gather[(programs,)](
        *_three([gradient for _, gradient in sent], out), out if field is None else field, out, *_three(outputs, out),
        sums, pixels, A=a, B=b, D=c, NORMS=len(outputs), WRITE=not given, **sizes, BLOCK=block, num_stages=1,
    )  # fmt: skip
    return out, sums


def _settled_gradient(
    sums: Tensor, gain: Tensor, settled: Tensor, field: Tensor, norm: int, norms: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what turns a gradient into that of a norm's input, and the gradients of its gain and bias."""
    pixels, sizes = _sizes(field)
    parts, of_gain, of_bias = settled.new_empty((3, sizes["C"])), torch.empty_like(gain), torch.empty_like(gain)
    kernels().settle_gradient[(1,)](
        sums, gain, settled, of_gain, of_bias, parts, len(sums), float(pixels),
        NORM=norm, NORMS=norms, C=sizes["C"], MOST=_power_of_two(len(sums)), num_warps=8,
    )  # fmt: skip
    return parts, of_gain, of_bias


def _spread(gradient: Tensor, outputs: Sequence[Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of norms' inputs from that of the vertex that adds them up."""
    if not outputs:
        return []
    pixels, sizes = _sizes(gradient)
    block = _ELEMENTS // sizes["C"]
    spread = [torch.empty_like(output) for output in outputs]
    kernels().spread[(_tiles(pixels, block),)](
        gradient, *_three(outputs, gradient), *_three(parts, gradient), *_three(spread, gradient), pixels,
        NORMS=len(outputs), C=sizes["C"], BLOCK=block,
    )  # fmt: skip
    return spread


def _three(values: Sequence[Any], filler: Any) -> list[Any]:
    """Fill a sequence up: kernels take three of everything."""
    return [*values, *[filler] * (3 - len(values))]


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below a count."""
    return 1 << (count - 1).bit_length()
