"""Set for a while how many CPU threads torch's operators run on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def threads(count: int, device: torch.device) -> Iterator[None]:
    """Run torch's operators on `count` CPU threads inside the context; on another device change nothing."""
    if device.type != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
