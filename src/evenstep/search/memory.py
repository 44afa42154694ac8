"""Fit work into memory: estimate its size on a CPU, where the kernel kills without an error; halve it on a shortage."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from evenstep.search.fields import Data, called, copy_of, loss_of, tensors_of
from evenstep.search.job import Job
from evenstep.search.recipe import Recipe

_SHARE = 0.5  # of the available memory: the estimate leaves out what single operators allocate


Item = TypeVar("Item")
Answer = TypeVar("Answer")


def in_parts(
    items: Sequence[Item], size: int, work: Callable[[Sequence[Item]], Answer]
) -> Iterator[tuple[Sequence[Item], Answer]]:
    """Work on items in parts, smaller ones from where memory runs out, and yield each part with its answer."""
    while items:
        part = items[:size]
        try:
            answer = work(part)
        except (RuntimeError, MemoryError) as error:
            if size == 1 or not _is_shortage(error):
                raise
            size = max(min(size, len(part)) // 2, 1)
        else:
            yield part, answer
            items = items[len(part) :]
            continue
        gc.collect()  # a recorded step holds its memory until it is collected
        torch.cuda.empty_cache()


def _is_shortage(error: Exception) -> bool:
    """Say whether an error means that memory ran out; torch's allocator for CPUs has no type of its own for that."""
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def trials_that_fit(job: Job, data: Data, *, processes: int = 1, share: float = _SHARE) -> int:
    """Return how many stacked trials may train at once in each process, at least one."""
    return max(int(share * available_bytes() / (bytes_of_trial(job, data) * max(processes, 1))), 1)


def available_bytes() -> int:
    """Return the memory that this process can still take, by the machine and by the limits of its control groups."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        line = next(line for line in _lines("/proc/meminfo") if line.startswith("MemAvailable"))
        limits.append(1024 * int(line.split()[1]))
    limits += _left_in_groups()
    return max(min(limits), 0) if limits else 1 << 62


def _left_in_groups(root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> Iterator[int]:
    """Yield the memory that each control group of this process leaves, in both versions of the interface."""
    paths = {"memory": {""}, "": {""}}  # by controller: the root group and the process's group
    with contextlib.suppress(OSError, ValueError):
        for _, controllers, path in (line.split(":", 2) for line in _lines(membership)):
            if controllers in paths:
                paths[controllers].add(path)
    for controller, limit, used, cache in (
        ("", "memory.max", "memory.current", "inactive_file "),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    ):
        for path in paths[controller]:
            group = f"{root}/{controller}{path}"
            with contextlib.suppress(OSError, ValueError):  # no such group, or no limit ('max')
                most, now = (int(_lines(f"{group}/{name}")[0]) for name in (limit, used))
                given_back = [line for line in _lines(f"{group}/memory.stat") if line.startswith(cache)]
                yield most - now + sum(int(line.split()[1]) for line in given_back)


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def bytes_of_trial(job: Job, data: Data) -> int:
    """Return the memory of one more stacked trial in a step: its parameters in all their roles, and its activations."""
    model = job.start(0).to(data[0].device).train()
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    size = min(job.recipe.batch_size, len(data[0]))
    inputs, targets = copy_of(data[0][:size]), copy_of(data[1][:size])
    shared = {_place(tensor) for tensor in (*tensors_of(inputs), *tensors_of(targets), *model.parameters())}
    saved: dict[int, Tensor] = {}  # kept alive, or a later tensor could take an earlier one's address

    def note(tensor: Tensor) -> int:
        if _place(tensor) not in shared:
            saved[_place(tensor)] = tensor
        return _place(tensor)

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(note, saved.__getitem__):
        loss_of(job.recipe.loss, called(model, inputs, copied=True), targets, copied=True)
    sizes = [tensor.untyped_storage().nbytes() for tensor in saved.values()]
    # In the backward pass, the gradients of the largest activation and of the next one add to all that was saved.
    activations = sum(sizes) + 2 * max(sizes, default=0)
    return _roles(job.recipe) * parameters + buffers + activations


def _roles(recipe: Recipe) -> int:
    """Return how many tensors of its size a parameter needs: value, gradient, step, and the optimiser's state."""
    if recipe.optimizer in ("adam", "muon"):
        return 7
    if recipe.optimizer == "lion":
        return 5
    return 3 + 2 * bool(recipe.momentum_used) + bool(recipe.weight_decay)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
