"""The 1,797 images of handwritten digits, 8 x 8, that ship with scikit-learn."""

from __future__ import annotations

import torch

from evenstep.data.split import Split
from evenstep.errors import InputError


def digits(*, test_size: int = 360, seed: int = 0) -> Split:
    """Return the digits [n, 1, 8, 8], standardised to mean 0 and second moment 1 over the training images."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError("the digits need scikit-learn; install it with pip install 'evenstep[demo]'") from None
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)[order]
    targets = torch.tensor(labels, dtype=torch.long)[order]
    train = inputs[test_size:]
    inputs = (inputs - train.mean()) / train.std()
    return Split((inputs[test_size:], targets[test_size:]), (inputs[:test_size], targets[:test_size]))
