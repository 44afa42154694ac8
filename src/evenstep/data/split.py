"""Training and test images as tensors, each channel standardised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from evenstep.errors import InputError

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]
_AT_ONCE = 4096


@dataclass(frozen=True)
class Split:
    """Hold training and test images [n, channels, side, side] with their labels [n]."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def check_side(side: int, whole: int) -> None:
    """Refuse a side to which pixels cannot be averaged in whole blocks."""
    if side < 1 or whole % side:
        raise InputError(f"side is {side}; give a divisor of {whole}")


def standardised(train: Labelled, test: Labelled, *, side: int) -> Split:
    """Return bytes [n, channels, side, side] as numbers, each channel of mean 0 and standard deviation 1 over `train`.

    A `side` smaller than the images' averages pixels after standardising.
    """
    tables = _tables(train[0])
    return Split(
        (_numbers(train[0], tables, side), torch.from_numpy(train[1])),
        (_numbers(test[0], tables, side), torch.from_numpy(test[1])),
    )


def _tables(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the number that each of the 256 bytes becomes, for each channel [channels, 256]."""
    tables = np.empty((images.shape[1], 256), np.float32)
    values = np.arange(256) / 255
    for channel in range(images.shape[1]):
        # Counting bytes gives exact moments without a floating-point copy of the images.
        counts = sum(np.bincount(part[:, channel].ravel(), minlength=256) for part in _parts(images))
        total = int(np.sum(counts))
        mean = float(np.dot(counts, values)) / total
        spread = math.sqrt(float(np.dot(counts, (values - mean) ** 2)) / max(total - 1, 1))
        if not spread:
            raise InputError(f"channel {channel} is {mean:.3g} in every training image; give images that differ")
        tables[channel] = (values - mean) / spread
    return tables


def _numbers(images: NDArray[np.uint8], tables: NDArray[np.float32], side: int) -> Tensor:
    count, channels, whole, _ = images.shape
    numbers = torch.empty((count, channels, side, side))
    done = 0
    for part in _parts(images):
        looked_up = np.stack([tables[channel][part[:, channel]] for channel in range(channels)], axis=1)
        wide = torch.from_numpy(looked_up)
        numbers[done : done + len(part)] = wide if side == whole else functional.avg_pool2d(wide, whole // side)
        done += len(part)
    return numbers


def _parts(images: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, len(images), _AT_ONCE):
        yield images[start : start + _AT_ONCE]
