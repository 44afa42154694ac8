"""Check ImageNet's loaders on batches and images made up here."""

import builtins
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from evenstep.errors import InputError
from evenstep_research.data import check_folder, image_folder, imagenet, imagenet16_120
from evenstep_research.data.imagenet import Listing
from research.tests.data import made


def test_the_first_120_classes_are_kept_and_count_from_0(tmp_path: Path) -> None:
    split = imagenet16_120(made.imagenet16(tmp_path))
    expected = [label for seed in range(10) for label in made.images(seed, 40, side=16, classes=240, first=1)[1]]
    assert split.train[1].tolist() == [label - 1 for label in expected if label <= 120]
    assert 100 < len(split.train[1]) < 300
    pixels = np.concatenate([made.images(seed, 40, side=16)[0] for seed in range(10)])[np.array(expected) <= 120]
    raw = torch.from_numpy(pixels).double().reshape(-1, 3, 16, 16) / 255
    means, spreads = raw.mean(dim=(0, 2, 3), keepdim=True), raw.std(dim=(0, 2, 3), keepdim=True)
    torch.testing.assert_close(split.train[0].double(), (raw - means) / spreads, rtol=0, atol=1e-6)


def test_the_official_subfolder_is_found_and_checksums_are_compared(tmp_path: Path) -> None:
    made.imagenet16(tmp_path / "ImageNet16")
    assert imagenet16_120(tmp_path, side=8).test[0].shape[1:] == (3, 8, 8)
    with pytest.raises(InputError, match=r"train_data_batch_1' has the md5 \w+, not the official 27846dca"):
        imagenet16_120(tmp_path, verify=True)


def test_labels_of_batches_count_from_1_to_1000(tmp_path: Path) -> None:
    made.imagenet16(tmp_path)
    pixels, _ = made.images(0, 3, side=16)
    for label in (0, 1001):
        (tmp_path / "val_data").write_bytes(made.python2(made.batch((pixels, [1, 1000, label]))))
        with pytest.raises(InputError, match=rf"val_data' holds the label {label}, outside 1 to 1000"):
            imagenet16_120(tmp_path)
    (tmp_path / "val_data").write_bytes(made.python2(made.batch((pixels, [1, 120, 5]))))
    assert imagenet16_120(tmp_path).test[1].tolist() == [0, 119, 4]
    (tmp_path / "val_data").write_bytes(made.python2(made.batch((pixels, [121, 500, 1000]))))
    with pytest.raises(InputError, match="has no image of classes 1 to 120"):
        imagenet16_120(tmp_path)
    (tmp_path / "train_data_batch_10").unlink()
    with pytest.raises(InputError, match=r"there is no file '.*train_data_batch_10'; give the folder of ImageNet16"):
        imagenet16_120(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write 2 classes of 3 images to train on and 2 to validate, JPEGs of several sizes, one grey, one a PNG."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 3), ("val", 2)):
        for name in ("n02000000", "n01000000"):
            (tmp_path / "raw" / part / name).mkdir(parents=True)
            for number in range(count):
                size = (30 + 7 * number, 41, 3) if number != 1 else (24, 24)
                image = Image.fromarray(draw.integers(256, size=size, dtype=np.uint8))
                kind = "PNG" if number == 2 else "JPEG"  # ImageNet has PNGs under the name of JPEGs
                image.save(tmp_path / "raw" / part / name / f"{name}_{number}.JPEG", kind)
    (tmp_path / "raw" / "train" / "n01000000" / "notes.txt").write_text("not an image")
    return tmp_path / "raw"


def test_images_are_averaged_and_standardised(folder: Path) -> None:
    split = image_folder(folder, side=4)
    paths = [path for name in ("n01000000", "n02000000") for path in sorted((folder / "train" / name).glob("*.JPEG"))]
    pixels = []
    for path in paths:
        with Image.open(path) as image:
            pixels.append(np.asarray(image.convert("RGB").resize((4, 4), Image.Resampling.BOX)))
    raw = torch.from_numpy(np.stack(pixels)).double().permute(0, 3, 1, 2) / 255
    means, spreads = raw.mean(dim=(0, 2, 3), keepdim=True), raw.std(dim=(0, 2, 3), keepdim=True)
    torch.testing.assert_close(split.train[0].double(), (raw - means) / spreads, rtol=0, atol=1e-5)
    assert split.train[1].tolist() == [0, 0, 0, 1, 1, 1]
    assert split.test[1].tolist() == [0, 0, 1, 1]
    assert split.test[0].shape == (4, 3, 4, 4)


def test_images_are_read_once_and_kept(folder: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    first = image_folder(folder, side=4, cache=tmp_path / "cache", progress=lambda *now: calls.append(now))
    assert calls == [(6, 10), (10, 10)]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["imagenet-4.npz"]
    assert not list(folder.glob("*.npz"))
    for path in folder.rglob("*.JPEG"):
        path.write_bytes(b"")  # not looked at again
    again = image_folder(folder, side=4, cache=tmp_path / "cache", progress=lambda *now: calls.append(now))
    assert len(calls) == 2
    assert torch.equal(first.train[0], again.train[0])
    assert torch.equal(first.test[1], again.test[1])
    with pytest.raises(InputError, match="cannot be read"):
        image_folder(folder, side=5, cache=tmp_path / "cache")  # another side is another file


def test_another_list_of_files_is_read_anew(folder: Path) -> None:
    assert len(image_folder(folder, side=4).train[0]) == 6
    shutil.copy(folder / "train/n01000000/n01000000_0.JPEG", folder / "train/n01000000/n01000000_9.JPEG")
    assert image_folder(folder, side=4).train[1].tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_a_broken_image_is_named_and_nothing_is_kept(folder: Path) -> None:
    path = folder / "val" / "n02000000" / "n02000000_0.JPEG"
    content = path.read_bytes()
    for cut in (content[: len(content) // 2], b"", b"no image at all"):
        path.write_bytes(cut)
        with pytest.raises(
            InputError, match=r"the image '.*val/n02000000/n02000000_0.JPEG' cannot be read .*delete it"
        ):
            image_folder(folder, side=4)
        assert sorted(one.name for one in folder.iterdir()) == ["train", "val"]


def test_a_broken_cache_is_named(folder: Path) -> None:
    image_folder(folder, side=4)
    path = folder / "imagenet-4.npz"
    content = path.read_bytes()
    for cut in (content[: len(content) // 2], b"", b"no arrays at all"):
        path.write_bytes(cut)
        with pytest.raises(InputError, match=r"imagenet-4.npz' cannot be read .*; delete it"):
            image_folder(folder, side=4)
    with np.load(io.BytesIO(content)) as kept:
        arrays = dict(kept)
    np.savez(path, **(arrays | {"val_images": arrays["val_images"][:1]}))
    with pytest.raises(InputError, match=r"holds uint8 \[1, 3, 4, 4\], not these images; delete it"):
        image_folder(folder, side=4)
    np.savez(path, **(arrays | {"train_labels": arrays["train_labels"][::-1]}))
    with pytest.raises(InputError, match="holds other labels than the folder; delete it"):
        image_folder(folder, side=4)


def test_folders_of_another_kind_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder '.*nowhere.train'"):
        image_folder(tmp_path / "nowhere")
    with pytest.raises(InputError, match="side is 0; give a whole number above 0"):
        image_folder(folder, side=0)
    (tmp_path / "occupied").write_text("a file")
    with pytest.raises(InputError, match=r"occupied/imagenet-4.npz' cannot be written"):
        image_folder(folder, side=4, cache=tmp_path / "occupied")
    (folder / "val" / "n03000000").mkdir()
    with pytest.raises(InputError, match=r"the class 'n03000000' is in '.*val' and not in"):
        image_folder(folder)
    (folder / "val" / "n03000000").rmdir()
    shutil.rmtree(folder / "val" / "n01000000")
    shutil.rmtree(folder / "val" / "n02000000")
    with pytest.raises(InputError, match=r"val' holds no image; give a folder with val/CLASS/\*.JPEG"):
        image_folder(folder)


def test_without_pillow_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="need the package Pillow; install it with pip install pillow"):
        image_folder(folder, side=4)


def test_only_imagenets_classes_and_counts_pass_for_imagenet(folder: Path) -> None:
    """A folder of other images in the same layout can be read, but not as ImageNet."""
    with pytest.raises(InputError, match="is not ImageNet: it holds 2 classes, not 1,000; give the folder of ILSVRC"):
        imagenet(folder, side=4)
    assert check_folder(folder).data_set == "images"
    inner = [f"n{number:08d}" for number in range(2_000_000, 2_000_998)]
    classes = ("n01440764", *inner, "n15075141")
    image = Path("x.JPEG")
    train = ((image, 0),) * 1_281_167
    val = tuple((image, label) for label in range(1000)) * 50
    assert Listing(classes, train, val).differs_from_imagenet == ""
    wrong = {
        "a class 'cat', not named as 'n01440764' is": Listing((*classes[:-1], "cat"), train, val),
        "classes from n01440764 to n15075142, not from": Listing((*classes[:-1], "n15075142"), train, val),
        "1,281,166 images to train on, not 1,281,167": Listing(classes, train[1:], val),
        "50,000 images in val, not 50 of each class": Listing(classes, train, (*val[1:], val[1])),
    }
    for problem, listing in wrong.items():
        assert problem in listing.differs_from_imagenet
