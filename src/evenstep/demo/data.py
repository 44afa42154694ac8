"""Load the demo's data, without a download: scikit-learn's digits, and the source of Python's standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from evenstep.demo.networks import LENGTH, VOCABULARY
from evenstep.errors import InputError

WINDOWS = 4000  # texts
_BYTES = 2_000_000
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib"})


def require_digits() -> None:
    """Raise if scikit-learn is not installed."""
    _load_digits()


def _load_digits() -> tuple[object, object]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError("the demo's digits need scikit-learn; pip install 'evenstep[demo]'") from None
    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


def digits() -> tuple[Tensor, Tensor]:
    """Return the 1,797 handwritten digits [n, 1, 8, 8], of mean 0 and standard deviation 1, and their classes [n]."""
    pixels, labels = _load_digits()
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return (images - images.mean()) / images.std(), torch.tensor(labels, dtype=torch.long)


def text() -> tuple[Tensor, Tensor]:
    """Return texts as bytes [n, 32] and the byte that follows each of them, from places all over the source."""
    source = _standard_library()
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(len(source) - LENGTH, (WINDOWS, 1), generator=generator)
    windows = source[starts + torch.arange(LENGTH + 1)]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def _standard_library() -> Tensor:
    """Return the source of the standard library as bytes below 128, files sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    content = bytearray()
    for path in sorted(root.rglob("*.py")):
        if len(content) < _BYTES and not _LEFT_OUT.intersection(path.relative_to(root).parts):
            content += path.read_bytes()
    if len(content) <= LENGTH:
        raise InputError(f"the demo reads the source of Python's standard library, but '{root}' holds none")
    source = torch.frombuffer(content[:_BYTES], dtype=torch.uint8).long()
    return source[source < VOCABULARY]
