"""The effect of zero padding: how many taps of a sliding window meet the signal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod


def _taps(size: int, kernel: int, stride: int, padding: int, dilation: int) -> Iterator[int]:
    """Yield, for every output position along one axis, the number of taps that fall inside the signal."""
    outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    for output in range(outputs):
        start = output * stride - padding
        yield sum(0 <= start + tap * dilation < size for tap in range(kernel))


@lru_cache(maxsize=4096)
def _axis(size: int, kernel: int, stride: int, padding: int, dilation: int) -> float:
    """Return the mean over positions of (taps inside / kernel) along one axis."""
    counts = list(_taps(size, kernel, stride, padding, dilation)) or [kernel]
    return sum(counts) / (kernel * len(counts))


def tap_coverage(
    size: Sequence[int],
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> float:
    """Return the share of a kernel's taps that meet no padding, averaged over output positions.

    >>> round(tap_coverage((8, 8), (3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1)), 4)
    0.8403
    """
    return prod(_axis(*axis) for axis in zip(size, kernel, stride, padding, dilation, strict=True))


def transposed_coverage(
    size: Sequence[int],
    kernel: Sequence[int],
    outputs: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> float:
    """Return the share of a transposed kernel's taps that reach an output position, averaged over positions.

    >>> transposed_coverage((8, 8), (2, 2), (16, 16), stride=(2, 2), padding=(0, 0), dilation=(1, 1))
    0.25
    """
    share = 1.0
    for s, k, out, step, pad, spread in zip(size, kernel, outputs, stride, padding, dilation, strict=True):
        met = sum(0 <= i * step + tap * spread - pad < out for i in range(s) for tap in range(k))
        share *= met / (k * out)
    return share
