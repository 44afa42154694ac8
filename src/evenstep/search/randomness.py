"""Random numbers by trial and moment: what a trial draws does not depend on which trials train beside it, or where."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy
import torch

Value = TypeVar("Value")

# What modules draw from that hold no generator of their own; functions such as random.gauss are methods of these.
GLOBAL_GENERATORS: tuple[Any, ...] = (
    torch.default_generator,
    random.gauss.__self__,  # type: ignore[attr-defined]
    numpy.random.random.__self__,  # type: ignore[attr-defined]
)


def copied(value: Value) -> Value:
    """Return a deep copy that draws where the original draws: a global generator is not copied with its state."""
    return copy.deepcopy(value, {id(generator): generator for generator in GLOBAL_GENERATORS})


@contextlib.contextmanager
def own_randomness(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch, NumPy and Python for a while, and put the user's random states back."""
    python, arrays = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
        seed_(seed)
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(arrays)


def seed_(number: int) -> None:
    """Seed every generator that a module may draw from without naming one."""
    torch.default_generator.manual_seed(number)  # a hundredth of what torch.manual_seed takes
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number % 2**32)


def seed_moment_(seed: int, moment: str) -> None:
    """Seed for one moment of a trial, such as its third step: all learning rates of a seed draw alike there."""
    digest = hashlib.sha256(f"{seed} {moment}".encode()).digest()
    seed_(int.from_bytes(digest[:8], "big") >> 1)


def random_states(device: torch.device | None = None) -> tuple[Any, ...]:
    """Return the states of those generators; they differ where something was drawn in between."""
    arrays: Any = numpy.random.get_state()
    on_device = (torch.cuda.get_rng_state(device).tolist(),) if device is not None and device.type == "cuda" else ()
    python = random.getstate()
    return (torch.get_rng_state().tolist(), python, arrays[1].tolist(), *arrays[2:], *on_device)
