"""Tell data sets by their files alone, load and check them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenstep.errors import InputError
from evenstep_research.data import Split, check_folder, cifar10, cifar100, image_folder, imagenet16_120, load_folder
from research.tests.data import made


def make_images(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    for part in ("train", "val"):
        (folder / part / "n01").mkdir(parents=True)
        for number in range(2):
            image = Image.fromarray(draw.integers(256, size=(40, 40, 3), dtype=np.uint8))
            image.save(folder / part / "n01" / f"{number}.JPEG")
    return folder


def test_each_data_set_is_recognised(tmp_path: Path) -> None:
    folders: dict[str, tuple[Path, Callable[[Path], Split], tuple[int, ...] | None]] = {
        "a": (made.cifar10_binary(tmp_path / "a"), cifar10, (100, 3, 32, 32)),
        "b": (made.cifar10_python(tmp_path / "b"), cifar10, (100, 3, 32, 32)),
        "c": (made.cifar100(tmp_path / "c", binary=True), cifar100, (30, 3, 32, 32)),
        "d": (made.cifar100(tmp_path / "d", binary=False), cifar100, (30, 3, 32, 32)),
        "e": (made.imagenet16(tmp_path / "e" / "ImageNet16"), imagenet16_120, None),
        "f": (make_images(tmp_path / "f"), image_folder, (2, 3, 32, 32)),
    }
    for name, (folder, loader, shape) in folders.items():
        expected = loader(folder)
        for place in (folder, str(tmp_path / name)):
            found = load_folder(place)
            assert torch.equal(found.train[0], expected.train[0])
            assert torch.equal(found.test[1], expected.test[1])
            assert shape is None or found.train[0].shape == shape


def test_verify_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the official"):
        load_folder(made.cifar100(tmp_path, binary=True), verify=True)


def test_what_is_no_data_set_or_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder '.*nowhere'"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no data set that `evenstep data list` names"):
        load_folder(tmp_path)
    made.cifar10_binary(tmp_path)
    made.cifar100(tmp_path, binary=False)
    with pytest.raises(InputError, match="holds files of CIFAR-10 or CIFAR-100; give the folder of one of them"):
        load_folder(tmp_path)


def test_a_check_says_what_is_wrong_with_each_file(tmp_path: Path) -> None:
    folder = made.cifar10_binary(tmp_path)
    (folder / "data_batch_2.bin").write_bytes(b"short")
    found = check_folder(tmp_path)
    assert (found.data_set, found.version, found.folder) == ("cifar10", "binary", folder)
    assert not found.ok
    first, second, *_ = found.files
    assert (first.name, first.images, first.official) == ("data_batch_1.bin", 20, False)
    assert "not the official aadd24ac" in str(first.problem)
    assert (second.images, second.official) == (None, False)
    assert "has 5 bytes, not a multiple of 3073" in str(second.problem)
    (folder / "test_batch.bin").unlink()
    with pytest.raises(InputError, match=r"there is no file '.*test_batch.bin'"):
        check_folder(tmp_path)


def test_a_folder_of_images_is_counted(tmp_path: Path) -> None:
    found = check_folder(make_images(tmp_path))
    assert found.ok
    assert [(file.name, file.images, file.official) for file in found.files] == [("train", 2, None), ("val", 2, None)]
