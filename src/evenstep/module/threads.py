"""How many of a CPU's threads torch's operators run on, for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def threads(count: int, device: torch.device) -> Iterator[None]:
    """Run torch's operators on so many of a CPU's threads for a while; on another device as they are."""
    if device.type != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
