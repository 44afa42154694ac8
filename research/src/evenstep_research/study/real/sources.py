"""What networks are trained on: CIFAR-10 enlarged, the digits, or the text of Python's standard library."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from evenstep.data.digits import digits
from evenstep.data.text import standard_library
from evenstep.errors import InputError
from evenstep_research.data.files import located, read_file
from evenstep_research.data.official import CIFAR10
from evenstep_research.study.real.training import Batches

_MEAN, _SPREAD = 0.473, 0.251  # of CIFAR-10's pixels, all channels together
_AT_ONCE = 2500


class Source(Protocol):
    """What networks are trained on, in so large batches."""

    @property
    def words(self) -> str:
        """All that batches follow from, in words; runs are found by it."""

    @property
    def needs_folder(self) -> bool:
        """Whether it is read from a folder that somebody has to give."""

    def load(self, device: torch.device, folder: str | None) -> Batches:
        """Return it on a device."""


@dataclass(frozen=True)
class Cifar10Source:
    """The first images of CIFAR-10, enlarged bilinearly, in bfloat16 on a GPU."""

    count: int = 25_000
    side: int = 64
    batch: int = 128
    needs_folder: bool = True

    @property
    def words(self) -> str:
        """The count of images, their side and the batch."""
        return f"CIFAR-10, {self.count} images at {self.side} x {self.side}, batch {self.batch}"

    def load(self, device: torch.device, folder: str | None) -> Batches:
        """Return the images [n, 3, side, side] and their labels."""
        if folder is None:
            raise InputError("CIFAR-10 is read from its files; give their folder as --data")
        images, labels = _first_of_cifar10(Path(folder), self.count)
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        enlarged = torch.empty((len(images), 3, self.side, self.side), dtype=kind, device=device)
        for start in range(0, len(images), _AT_ONCE):  # in parts: the whole in float32 is twice as much memory
            part = (images[start : start + _AT_ONCE].to(device).float() / 255 - _MEAN) / _SPREAD
            size = (self.side, self.side)
            enlarged[start : start + _AT_ONCE] = functional.interpolate(
                part, size, mode="bilinear", align_corners=False
            )
        return Batches("images", enlarged, labels.to(device), size=self.batch)


@dataclass(frozen=True)
class DigitsSource:
    """The digits of scikit-learn, which need no file."""

    batch: int = 32
    needs_folder: bool = False

    @property
    def words(self) -> str:
        """The side of the images and the batch."""
        return f"digits, 8 x 8, batch {self.batch}"

    def load(self, device: torch.device, folder: str | None) -> Batches:
        """Return the images [n, 1, 8, 8] and their labels."""
        del folder
        images, labels = digits().train
        return Batches("images", images.to(device), labels.to(device), size=self.batch)


@dataclass(frozen=True)
class TextSource:
    """The source of Python's standard library as bytes, in windows of one length."""

    length: int = 128
    batch: int = 64
    limit: int = 8_000_000
    needs_folder: bool = False

    @property
    def words(self) -> str:
        """The version of Python, the length of a window and the batch."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"standard library of Python {python}, {self.limit} bytes, {self.length} a sequence, batch {self.batch}"

    def load(self, device: torch.device, folder: str | None) -> Batches:
        """Return the text [n]."""
        del folder
        text = standard_library(limit=self.limit).to(device)
        return Batches("text", text, size=self.batch, length=self.length)


def _first_of_cifar10(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """Return the first training images as bytes [n, 3, 32, 32], and their labels [n]."""
    version, place = located(CIFAR10, folder)
    parts, held = [], 0
    for file in version.train:
        parts.append(read_file(CIFAR10, version, file, place))
        held += len(parts[-1][0])
        if held >= count:
            break
    images, labels = (np.concatenate(arrays)[:count] for arrays in zip(*parts, strict=True))
    return torch.from_numpy(images), torch.from_numpy(labels)
