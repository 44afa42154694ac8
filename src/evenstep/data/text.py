"""Text that needs no download: the running Python's standard library, as bytes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from evenstep.errors import InputError

_LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib"})


def standard_library(*, limit: int = 8_000_000) -> Tensor:
    """Return the source of Python's standard library as one row of bytes [n], files sorted by name.

    At most `limit` bytes: the whole library is about twice as long. Installed packages and the library's tests are left
    out. The text depends on the version of Python, which records should state.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    parts, size = [], 0
    for path in sorted(root.rglob("*.py")):
        if _LEFT_OUT.intersection(path.relative_to(root).parts):
            continue
        try:
            content = path.read_bytes()
        except OSError:
            continue
        parts.append(content)
        size += len(content)
        if size >= limit:
            break
    if not parts:
        raise InputError(f"Python's standard library has no source files in '{root}'; give your own text")
    return torch.frombuffer(bytearray(b"".join(parts)[:limit]), dtype=torch.uint8)
