"""CUDA for networks side by side: streams, recorded steps, lower precision, and the fastest convolutions."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor

Precision = Literal["float32", "tf32", "bfloat16"]
_STREAMS = 8
_WARM_UP_STEPS = 3
Answer = TypeVar("Answer")


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


@contextlib.contextmanager
def put_back(state: Callable[[], Sequence[Tensor]]) -> Iterator[None]:
    """Leave all tensors of a state as they were before, whatever becomes of them inside."""
    before = [tensor.detach().clone() for tensor in state()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(state(), before, strict=True):
                tensor.copy_(value)


def warm_up(step_: Callable[[], object], device: torch.device) -> None:
    """Take a step a few times on a side stream, which lets libraries choose their kernels before a recording."""
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP_STEPS):
            step_()
    torch.cuda.current_stream().wait_stream(side)


def recorded(step_: Callable[[], Answer]) -> tuple[Callable[[], None], Answer]:
    """Record a step, and return how to replay it, and what it returns: tensors that every replay fills anew."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = step_()
    return graph.replay, answer


def free_memory(device: torch.device) -> None:
    """Give a GPU's memory back for others: recorded steps hold it until they are collected, and torch keeps it then."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


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
