"""Random numbers by trial and moment: a trial's draws do not depend on what else trains, or where."""

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

# Generators for modules that hold none of their own; functions such as random.gauss are their methods.
GLOBAL_GENERATORS: tuple[Any, ...] = (
    torch.default_generator,
    random.gauss.__self__,  # type: ignore[attr-defined]
    numpy.random.random.__self__,  # type: ignore[attr-defined]
)


def copied(value: Value) -> Value:
    """Return a deep copy that shares global generators with the original, instead of copying their state."""
    return copy.deepcopy(value, {id(generator): generator for generator in GLOBAL_GENERATORS})


@contextlib.contextmanager
def own_randomness(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch, NumPy and Python in this context, then restore the user's random states."""
    python, arrays = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
        seed_(seed)
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(arrays)


def seed_(number: int) -> None:
    """Seed every global generator that a module may draw from."""
    torch.default_generator.manual_seed(number)  # takes a hundredth of the time of torch.manual_seed
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number % 2**32)


def seed_moment_(seed: int, moment: str) -> None:
    """Seed for one moment of a trial, such as its third step: trials with this seed draw alike there at all rates."""
    digest = hashlib.sha256(f"{seed} {moment}".encode()).digest()
    seed_(int.from_bytes(digest[:8], "big") >> 1)


def random_states(device: torch.device | None = None) -> tuple[Any, ...]:
    """Return the states of those generators, which differ if something was drawn in between."""
    arrays: Any = numpy.random.get_state()
    on_device = (torch.cuda.get_rng_state(device).tolist(),) if device is not None and device.type == "cuda" else ()
    python = random.getstate()
    return (torch.get_rng_state().tolist(), python, arrays[1].tolist(), *arrays[2:], *on_device)
