"""Check the built-in digits against scikit-learn's own copy."""

import pytest
import torch
from sklearn.datasets import load_digits

from evenstep.data import digits


def test_shapes_and_sizes() -> None:
    split = digits()
    assert split.train[0].shape == (1437, 1, 8, 8)
    assert split.test[0].shape == (360, 1, 8, 8)
    assert split.train[1].shape == (1437,)
    assert split.test[1].shape == (360,)
    assert split.train[0].dtype == torch.float32
    assert split.train[1].dtype == torch.long
    assert len(digits(test_size=100).test[0]) == 100


def test_training_images_are_standardised_and_test_images_by_the_same_numbers() -> None:
    split = digits()
    images = split.train[0].double()
    assert float(images.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(images.square().mean()) == pytest.approx(1.0, rel=1e-4)
    test = split.test[0].double()
    # Not standardised by themselves, but close: they come from the same digits.
    assert float(test.square().mean()) != pytest.approx(1.0, rel=1e-6)
    assert float(test.square().mean()) == pytest.approx(1.0, rel=0.05)


def test_the_split_holds_every_image_once_with_its_label() -> None:
    split = digits()
    inputs = torch.cat([split.train[0], split.test[0]]).reshape(-1, 64).double()
    labels = torch.cat([split.train[1], split.test[1]])
    raw, targets = load_digits(return_X_y=True)
    # Undo the standardisation: pixels are whole numbers from 0 to 16.
    low, high = float(inputs.min()), float(inputs.max())
    pixels = ((inputs - low) / (high - low) * 16).round().long()
    ours = sorted((*row, label) for row, label in zip(pixels.tolist(), labels.tolist(), strict=True))
    theirs = sorted((*map(int, row), int(label)) for row, label in zip(raw, targets, strict=True))
    assert ours == theirs


def test_the_seed_decides_the_split() -> None:
    before = torch.random.get_rng_state()
    one, same, other = digits(seed=1), digits(seed=1), digits(seed=2)
    assert torch.equal(one.train[0], same.train[0])
    assert torch.equal(one.test[1], same.test[1])
    assert not torch.equal(one.test[1], other.test[1])
    assert torch.equal(before, torch.random.get_rng_state())


def test_every_class_is_in_both_parts() -> None:
    split = digits()
    for labels in (split.train[1], split.test[1]):
        assert sorted(set(labels.tolist())) == list(range(10))
