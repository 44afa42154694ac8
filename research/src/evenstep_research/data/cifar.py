"""CIFAR-10 and CIFAR-100 from their official files, binary or Python version."""

from __future__ import annotations

from pathlib import Path

from evenstep.data.split import Split
from evenstep_research.data.files import load
from evenstep_research.data.official import CIFAR10, CIFAR100


def cifar10(directory: Path | str, *, side: int = 32, verify: bool = False) -> Split:
    """Return the images [n, 3, side, side], each channel standardised over the training images.

    `directory` is `cifar-10-batches-bin` or `cifar-10-batches-py`, or the folder that holds one of them. A smaller
    `side` that divides 32 averages pixels. `verify` insists on the official checksums.
    """
    return load(CIFAR10, directory, side=side, verify=verify)


def cifar100(directory: Path | str, *, side: int = 32, verify: bool = False) -> Split:
    """Return the images with their 100 fine labels, else as `cifar10` does.

    `directory` is `cifar-100-binary` or `cifar-100-python`, or the folder that holds one of them.
    """
    return load(CIFAR100, directory, side=side, verify=verify)
