"""CUDA settings for networks side by side: streams, lower precision, and the fastest convolutions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bfloat16"]
_STREAMS = 8


def streams_for(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """Return a side stream for each lane, up to a few; none on a CPU or for a single lane."""
    wanted = min(_STREAMS, count) if device.type == "cuda" and count > 1 else 0
    return [torch.cuda.Stream(device) for _ in range(wanted)]  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def fanned_out(streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Make side streams wait for the current stream's work, then make the current stream wait for theirs."""
    if not streams:
        yield
        return
    current = torch.cuda.current_stream()
    for stream in streams:
        stream.wait_stream(current)
    yield
    for stream in streams:
        current.wait_stream(stream)


def on(streams: Sequence[torch.cuda.Stream], place: int) -> contextlib.AbstractContextManager[object]:
    """Work on the stream of a place, or on the current stream if there are no others."""
    return torch.cuda.stream(streams[place % len(streams)]) if streams else contextlib.nullcontext()


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Run convolutions and matrix products in bfloat16, if asked to."""
    if precision != "bfloat16":
        return contextlib.nullcontext()
    # No cache of cast weights: a recorded step would read the weights of the step in which it was recorded.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


@contextlib.contextmanager
def cuda_settings(precision: Precision, device: torch.device, *, timed: bool = False) -> Iterator[None]:
    """Let CUDA use TF32, if asked to, in this context; with `timed`, time its convolutions once for each shape.

    Timing pays if the same shapes repeat for many epochs.
    """
    if device.type != "cuda":
        yield
        return
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = products.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    products.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    cudnn.benchmark = timed or cudnn.benchmark
    try:
        yield
    finally:
        products.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
