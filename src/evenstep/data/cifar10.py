"""CIFAR-10 from its official binary version, `cifar-10-batches-bin`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from evenstep.data.digits import Split
from evenstep.errors import InputError

TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
_RECORD = 1 + 3 * 32 * 32


def cifar10(directory: Path | str, *, side: int = 32) -> Split:
    """Return the images [n, 3, side, side], each channel standardised over the training images.

    `directory` is `cifar-10-batches-bin` or the folder that holds it. A smaller `side` that divides 32 averages pixels.
    """
    if side < 1 or 32 % side:
        raise InputError(f"side is {side}; give a divisor of 32")
    folder = Path(directory)
    if (folder / "cifar-10-batches-bin").is_dir():
        folder = folder / "cifar-10-batches-bin"
    parts = [_read(folder / name) for name in TRAIN_FILES]
    train = torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])
    test = _read(folder / TEST_FILE)
    means = train[0].mean(dim=(0, 2, 3), keepdim=True)
    spreads = train[0].std(dim=(0, 2, 3), keepdim=True)
    return Split(
        (_smaller((train[0] - means) / spreads, side), train[1]),
        (_smaller((test[0] - means) / spreads, side), test[1]),
    )


def _smaller(images: Tensor, side: int) -> Tensor:
    return images if side == 32 else functional.avg_pool2d(images, 32 // side)


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Return images [n, 3, 32, 32] between 0 and 1 and labels [n] of one file."""
    if not path.is_file():
        raise InputError(f"there is no file '{path}'; give the folder of CIFAR-10's binary version as --data")
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % _RECORD:
        raise InputError(f"'{path}' has {len(content)} bytes, not a multiple of {_RECORD}; fetch it again")
    records = content.reshape(-1, _RECORD)
    labels = torch.from_numpy(records[:, 0].astype(np.int64))
    if int(labels.max()) > 9:
        raise InputError(f"'{path}' holds the label {int(labels.max())}, above 9; it is no file of CIFAR-10")
    return torch.from_numpy(records[:, 1:].astype(np.float32) / 255).reshape(-1, 3, 32, 32), labels
