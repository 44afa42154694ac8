"""GPU kernels for cells of NAS-Bench-201, in Triton: a convolution with its neighbours' work folded in.

A field is [pixels, C], the channels of a pixel side by side (channels last), pixels = images x SIDE x SIDE. Sums over
all pixels go in two steps, partial sums by program and a small kernel that adds them up, so that a training repeats bit
for bit. `C` is a power of two from 16 up.
"""

# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

NONE = tl.constexpr(0)
CONV = tl.constexpr(1)
SKIP = tl.constexpr(2)
POOL = tl.constexpr(3)


@triton.jit
def _places(tile, pixels, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Return a tile's pixel numbers, rows and columns, and which of them there are."""
    number = tile * BLOCK + tl.arange(0, BLOCK)
    return number, (number // SIDE) % SIDE, number % SIDE, number < pixels


@triton.jit
def _moved(field, number, row, column, there, dy, dx, C: tl.constexpr, SIDE: tl.constexpr):
    """Load the tile that lies (dy, dx) away, [BLOCK, C]; zero outside of the image."""
    inside = there & (row + dy >= 0) & (row + dy < SIDE) & (column + dx >= 0) & (column + dx < SIDE)
    at = (number + dy * SIDE + dx)[:, None] * C + tl.arange(0, C)[None, :]
    return tl.load(field + at, mask=inside[:, None], other=0.0)


@triton.jit
def _neighbours(row, column, SIDE: tl.constexpr):
    """Return how many pixels of a window of 3 x 3 lie inside of the image."""
    rows = 3 - (row == 0).to(tl.int32) - (row == SIDE - 1).to(tl.int32)
    columns = 3 - (column == 0).to(tl.int32) - (column == SIDE - 1).to(tl.int32)
    return (rows * columns).to(tl.float32)


@triton.jit
def convolve(
    field, weight, out, partials, pixels,
    C: tl.constexpr, SIDE: tl.constexpr, KERNEL: tl.constexpr,
    BACKWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write conv(relu(field)), and by program the sums and sums of squares of each channel, [programs, 2, C].

    `BACKWARD` writes the gradient of the convolution's input from that of its output instead, and no sums. The weight
    is [C out, KERNEL, KERNEL, C in].
    """
    channel = tl.arange(0, C)
    total = tl.zeros([C], tl.float32)
    squares = tl.zeros([C], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, BLOCK), tl.num_programs(0)):
        number, row, column, there = _places(tile, pixels, SIDE, BLOCK)
        found = tl.zeros([BLOCK, C], tl.float32)
        for tap in tl.static_range(KERNEL * KERNEL):
            x = _moved(
                field, number, row, column, there, tap // KERNEL - KERNEL // 2, tap % KERNEL - KERNEL // 2, C, SIDE
            )
            if BACKWARD:
                flipped = KERNEL * KERNEL - 1 - tap
                w = tl.load(weight + (channel[:, None] * (KERNEL * KERNEL) + flipped) * C + channel[None, :])
            else:
                x = tl.maximum(x, 0.0).to(weight.dtype.element_ty)
                w = tl.load(weight + (channel[None, :] * (KERNEL * KERNEL) + tap) * C + channel[:, None])
            found = tl.dot(x, w, found, input_precision="ieee")
        rounded = found.to(out.dtype.element_ty)
        tl.store(out + number[:, None] * C + channel[None, :], rounded, mask=there[:, None])
        if not BACKWARD:
            kept = rounded.to(tl.float32)  # rows that are not there are zero, for they read nothing
            total += tl.sum(kept, 0)
            squares += tl.sum(kept * kept, 0)
    if not BACKWARD:
        at = partials + tl.program_id(0) * 2 * C + channel
        tl.store(at, total)
        tl.store(at + C, squares)


@triton.jit
def convolve_weight(
    field, gradient, partials, pixels,
    C: tl.constexpr, SIDE: tl.constexpr, KERNEL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write by program the gradient of a row of a convolution's weight, [programs, C out, KERNEL, KERNEL, C in].

    The grid is (programs, KERNEL), the second saying which row.
    """
    channel = tl.arange(0, C)
    dy = tl.program_id(1) - KERNEL // 2
    left = tl.zeros([C, C], tl.float32)
    middle = tl.zeros([C, C], tl.float32)
    right = tl.zeros([C, C], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, BLOCK), tl.num_programs(0)):
        number, row, column, there = _places(tile, pixels, SIDE, BLOCK)
        g = tl.trans(tl.load(gradient + number[:, None] * C + channel[None, :], mask=there[:, None], other=0.0))
        x = _moved(field, number, row, column, there, dy, 0, C, SIDE)
        middle = tl.dot(g, tl.maximum(x, 0.0).to(g.dtype), middle, input_precision="ieee")
        if KERNEL == 3:
            x = _moved(field, number, row, column, there, dy, -1, C, SIDE)
            left = tl.dot(g, tl.maximum(x, 0.0).to(g.dtype), left, input_precision="ieee")
            x = _moved(field, number, row, column, there, dy, 1, C, SIDE)
            right = tl.dot(g, tl.maximum(x, 0.0).to(g.dtype), right, input_precision="ieee")
    tap = tl.program_id(1) * KERNEL
    at = (tl.program_id(0) * C + channel[:, None]) * (KERNEL * KERNEL * C) + tap * C + channel[None, :]
    if KERNEL == 3:
        tl.store(partials + at, left)
        tl.store(partials + at + C, middle)
        tl.store(partials + at + 2 * C, right)
    else:
        tl.store(partials + at, middle)


@triton.jit
def _added_up(partials, programs, row, ROWS: tl.constexpr, C: tl.constexpr, MOST: tl.constexpr):
    """Add up one row of partial sums [programs, ROWS, C]; MOST is a power of two, programs at most that."""
    number = tl.arange(0, MOST)
    at = (number[:, None] * ROWS + row) * C + tl.arange(0, C)[None, :]
    return tl.sum(tl.load(partials + at, mask=(number < programs)[:, None], other=0.0), 0)


@triton.jit
def settle_norm(
    partials, gain, bias, running_mean, running_var, settled, programs, pixels, momentum, eps,
    C: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Write a batch norm's scale, shift, mean and inverse deviation, [4, C], and move its running statistics."""
    channel = tl.arange(0, C)
    mean = _added_up(partials, programs, 0, 2, C, MOST) / pixels
    variance = tl.maximum(_added_up(partials, programs, 1, 2, C, MOST) / pixels - mean * mean, 0.0)
    inverse = 1 / tl.sqrt(variance + eps)
    scale = tl.load(gain + channel) * inverse
    tl.store(settled + channel, scale)
    tl.store(settled + C + channel, tl.load(bias + channel) - mean * scale)
    tl.store(settled + 2 * C + channel, mean)
    tl.store(settled + 3 * C + channel, inverse)
    old = tl.load(running_mean + channel)
    tl.store(running_mean + channel, old + momentum * (mean - old))
    old = tl.load(running_var + channel)
    tl.store(running_var + channel, old + momentum * (variance * (pixels / (pixels - 1.0)) - old))


@triton.jit
def _term(
    field, settled, number, row, column, there, KIND: tl.constexpr, C: tl.constexpr, SIDE: tl.constexpr
):  # fmt: skip
    """Return what one edge brings to a vertex, [BLOCK, C]."""
    found = _moved(field, number, row, column, there, 0, 0, C, SIDE).to(tl.float32)
    if KIND == CONV:
        channel = tl.arange(0, C)
        found = found * tl.load(settled + channel)[None, :] + tl.load(settled + C + channel)[None, :]
    if KIND == POOL:
        for tap in tl.static_range(9):
            if tap != 4:
                found += _moved(field, number, row, column, there, tap // 3 - 1, tap % 3 - 1, C, SIDE)
        found = found / _neighbours(row, column, SIDE)[:, None]
    return found


@triton.jit
def join(
    a, b, c, settled_a, settled_b, settled_c, out, pixels,
    A: tl.constexpr, B: tl.constexpr, D: tl.constexpr,
    C: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a vertex's field: the sum of its edges, convolutions' outputs normed on the way."""
    number, row, column, there = _places(tl.program_id(0), pixels, SIDE, BLOCK)
    found = _term(a, settled_a, number, row, column, there, A, C, SIDE)
    if B != NONE:
        found += _term(b, settled_b, number, row, column, there, B, C, SIDE)
    if D != NONE:
        found += _term(c, settled_c, number, row, column, there, D, C, SIDE)
    at = number[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out + at, found.to(out.dtype.element_ty), mask=there[:, None])


@triton.jit
def _returned(
    gradient, live, number, row, column, there, KIND: tl.constexpr, C: tl.constexpr, SIDE: tl.constexpr
):  # fmt: skip
    """Return what one edge sends back to the vertex that it reads, [BLOCK, C]."""
    found = _moved(gradient, number, row, column, there, 0, 0, C, SIDE).to(tl.float32)
    if KIND == CONV:
        found = tl.where(live, found, 0.0)
    if KIND == POOL:
        found = found / _neighbours(row, column, SIDE)[:, None]
        for tap in tl.static_range(9):
            if tap != 4:
                dy = tap // 3 - 1
                dx = tap % 3 - 1
                beside = _moved(gradient, number, row, column, there, dy, dx, C, SIDE).to(tl.float32)
                found += beside / _neighbours(row + dy, column + dx, SIDE)[:, None]
    return found


@triton.jit
def gather(
    a, b, c, field, out, z0, z1, z2, partials, pixels,
    A: tl.constexpr, B: tl.constexpr, D: tl.constexpr, NORMS: tl.constexpr, WRITE: tl.constexpr,
    C: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a vertex's gradient, the sum of what its readers send back, and the sums that its norms need.

    By program, [programs, 1 + NORMS, C]: the gradient's sum, and the sum of its products with each convolution's
    output that came in.
    """
    channel = tl.arange(0, C)
    total = tl.zeros([C], tl.float32)
    with0 = tl.zeros([C], tl.float32)
    with1 = tl.zeros([C], tl.float32)
    with2 = tl.zeros([C], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(pixels, BLOCK), tl.num_programs(0)):
        number, row, column, there = _places(tile, pixels, SIDE, BLOCK)
        at = number[:, None] * C + channel[None, :]
        if A == CONV or B == CONV or D == CONV:
            live = tl.load(field + at, mask=there[:, None], other=0.0) > 0
        else:
            live = there[:, None]
        found = _returned(a, live, number, row, column, there, A, C, SIDE)
        if B != NONE:
            found += _returned(b, live, number, row, column, there, B, C, SIDE)
        if D != NONE:
            found += _returned(c, live, number, row, column, there, D, C, SIDE)
        if WRITE:
            rounded = found.to(out.dtype.element_ty)
            tl.store(out + at, rounded, mask=there[:, None])
            found = rounded.to(tl.float32)
        if NORMS > 0:
            total += tl.sum(found, 0)
            with0 += tl.sum(found * tl.load(z0 + at, mask=there[:, None], other=0.0), 0)
        if NORMS > 1:
            with1 += tl.sum(found * tl.load(z1 + at, mask=there[:, None], other=0.0), 0)
        if NORMS > 2:
            with2 += tl.sum(found * tl.load(z2 + at, mask=there[:, None], other=0.0), 0)
    to = partials + tl.program_id(0) * (1 + NORMS) * C + channel
    if NORMS > 0:
        tl.store(to, total)
        tl.store(to + C, with0)
    if NORMS > 1:
        tl.store(to + 2 * C, with1)
    if NORMS > 2:
        tl.store(to + 3 * C, with2)


@triton.jit
def settle_gradient(
    partials, gain, settled, gain_gradient, bias_gradient, parts, programs, pixels,
    NORM: tl.constexpr, NORMS: tl.constexpr, C: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a norm's gain and bias, and [3, C]: what makes its input's gradient p g + q z + r."""
    channel = tl.arange(0, C)
    total = _added_up(partials, programs, 0, 1 + NORMS, C, MOST)
    product = _added_up(partials, programs, 1 + NORM, 1 + NORMS, C, MOST)
    mean = tl.load(settled + 2 * C + channel)
    inverse = tl.load(settled + 3 * C + channel)
    own = inverse * (product - mean * total)
    tl.store(gain_gradient + channel, own)
    tl.store(bias_gradient + channel, total)
    p = tl.load(gain + channel) * inverse
    q = -p * inverse * own / pixels
    tl.store(parts + channel, p)
    tl.store(parts + C + channel, q)
    tl.store(parts + 2 * C + channel, -p * total / pixels - q * mean)


@triton.jit
def _unnormed(g, z, parts, out, at, there, C: tl.constexpr):
    channel = tl.arange(0, C)
    p = tl.load(parts + channel)[None, :]
    q = tl.load(parts + C + channel)[None, :]
    r = tl.load(parts + 2 * C + channel)[None, :]
    found = p * g + q * tl.load(z + at, mask=there, other=0.0).to(tl.float32) + r
    tl.store(out + at, found.to(out.dtype.element_ty), mask=there)


@triton.jit
def spread(
    gradient, z0, z1, z2, parts0, parts1, parts2, out0, out1, out2, pixels,
    NORMS: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the convolutions' outputs that a vertex adds up, through their norms."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = number[:, None] * C + tl.arange(0, C)[None, :]
    there = (number < pixels)[:, None]
    g = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
    _unnormed(g, z0, parts0, out0, at, there, C)
    if NORMS > 1:
        _unnormed(g, z1, parts1, out1, at, there, C)
    if NORMS > 2:
        _unnormed(g, z2, parts2, out2, at, there, C)
