"""Check the loader on files of CIFAR-10's binary format, made up here."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from evenstep.errors import InputError
from evenstep_research.data import cifar10

COUNT = 20
NAMES = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write six files of random images; a record is a label and the red, green and blue planes, row by row."""
    draw = np.random.default_rng(0)
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    for name in NAMES:
        records = draw.integers(256, size=(COUNT, 3073), dtype=np.uint8)
        records[:, 0] = draw.integers(10, size=COUNT)
        records[:, 1025:2049] //= 2  # green is darker: channels have their own mean and spread
        (inner / name).write_bytes(records.tobytes())
    return tmp_path


def test_shapes_labels_and_pixels(folder: Path) -> None:
    split = cifar10(folder)
    assert split.train[0].shape == (5 * COUNT, 3, 32, 32)
    assert split.test[0].shape == (COUNT, 3, 32, 32)
    assert split.train[0].dtype == torch.float32
    assert split.train[1].dtype == torch.long
    raw = np.frombuffer((folder / "cifar-10-batches-bin" / "data_batch_2.bin").read_bytes(), np.uint8).reshape(-1, 3073)
    assert split.train[1][COUNT : 2 * COUNT].tolist() == raw[:, 0].tolist()
    # A pixel's place: channel, then row, then column; standardising is one line for each channel.
    one = split.train[0][COUNT : 2 * COUNT]
    for channel in range(3):
        bytes_here = torch.from_numpy(raw[:, 1 + 1024 * channel + 32 * 5 + 7].astype(np.float32))
        assert torch.corrcoef(torch.stack([one[:, channel, 5, 7], bytes_here]))[0, 1] == pytest.approx(1.0, abs=1e-5)


def test_channels_are_standardised_over_the_training_images(folder: Path) -> None:
    split = cifar10(folder)
    assert split.train[0].mean(dim=(0, 2, 3)) == pytest.approx([0.0] * 3, abs=1e-5)
    assert split.train[0].std(dim=(0, 2, 3)) == pytest.approx([1.0] * 3, rel=1e-4)
    assert split.test[0].mean(dim=(0, 2, 3)) != pytest.approx([0.0] * 3, abs=1e-6)
    assert split.test[0].mean(dim=(0, 2, 3)) == pytest.approx([0.0] * 3, abs=0.05)


def test_the_folder_itself_is_the_same(folder: Path) -> None:
    outer, inner = cifar10(folder), cifar10(str(folder / "cifar-10-batches-bin"))
    assert torch.equal(outer.train[0], inner.train[0])


def test_a_smaller_side_averages_pixels(folder: Path) -> None:
    whole, small = cifar10(folder), cifar10(folder, side=16)
    assert small.train[0].shape == (5 * COUNT, 3, 16, 16)
    assert torch.allclose(small.train[0], functional.avg_pool2d(whole.train[0], 2))
    for side in (0, 5, 64, -1):
        with pytest.raises(InputError, match=f"side is {side}; give a divisor of 32"):
            cifar10(folder, side=side)


def test_a_truncated_file_is_refused(folder: Path) -> None:
    path = folder / "cifar-10-batches-bin" / "data_batch_3.bin"
    content = path.read_bytes()
    for cut in (content[:-1], b""):
        path.write_bytes(cut)
        with pytest.raises(InputError, match=rf"data_batch_3.bin' has {len(cut)} bytes, not a multiple of 3073"):
            cifar10(folder)


def test_a_label_above_nine_is_refused(folder: Path) -> None:
    path = folder / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(InputError, match=r"test_batch.bin' holds the label 10, outside 0 to 9"):
        cifar10(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "cifar-10-batches-bin" / "data_batch_5.bin").unlink()
    with pytest.raises(InputError, match=r"there is no file '.*data_batch_5.bin'"):
        cifar10(folder)
    with pytest.raises(InputError, match=r"there is no file '.*data_batch_1.bin'"):
        cifar10(folder / "nowhere")
