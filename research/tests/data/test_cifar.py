"""Check CIFAR's loaders on files of the official formats, made up here."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from evenstep.errors import InputError
from evenstep_research.data import DATA_SETS, OfficialFile, Split, cifar10, cifar100
from evenstep_research.data.files import load
from research.tests.data import made


def same(one: Split, other: Split) -> bool:
    pairs = ((*one.train, *one.test), (*other.train, *other.test))
    return all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


def test_both_versions_of_cifar10_are_the_same_images(tmp_path: Path) -> None:
    binary = made.cifar10_binary(tmp_path / "one")
    python = made.cifar10_python(tmp_path / "two")
    split = cifar10(binary)
    assert same(split, cifar10(python))
    assert same(split, cifar10(python.parent))
    assert split.train[0].shape == (100, 3, 32, 32)
    assert split.train[1].tolist() == [label for seed in range(5) for label in made.images(seed, 20)[1]]


def test_both_versions_of_cifar100_are_the_same_images_with_fine_labels(tmp_path: Path) -> None:
    binary = made.cifar100(tmp_path / "one", binary=True)
    python = made.cifar100(tmp_path / "two", binary=False)
    split = cifar100(binary)
    assert same(split, cifar100(python))
    assert same(split, cifar100(binary.parent))
    assert split.train[1].tolist() == made.images(0, 30, classes=100)[1]
    assert split.test[1].tolist() == made.images(1, 30, classes=100)[1]
    assert cifar100(binary, side=8).test[0].shape == (30, 3, 8, 8)


def test_pixels_are_standardised_by_the_training_images(tmp_path: Path) -> None:
    split = cifar100(made.cifar100(tmp_path, binary=False))
    train, test = (
        torch.from_numpy(made.images(seed, 30, classes=100)[0]).double().reshape(-1, 3, 32, 32) / 255 for seed in (0, 1)
    )
    means, spreads = train.mean(dim=(0, 2, 3), keepdim=True), train.std(dim=(0, 2, 3), keepdim=True)
    torch.testing.assert_close(split.train[0].double(), (train - means) / spreads, rtol=0, atol=1e-6)
    torch.testing.assert_close(split.test[0].double(), (test - means) / spreads, rtol=0, atol=1e-6)


def test_many_images_are_standardised_like_few(tmp_path: Path) -> None:
    """More than are looked up at once."""
    pixels, labels = made.images(0, 9000)
    inner = made.cifar100(tmp_path, binary=True)
    (inner / "train.bin").write_bytes(made.records((pixels, labels), coarse=True))
    images = cifar100(inner, side=1).train[0]
    expected = torch.from_numpy(pixels.reshape(9000, 3, 1024).mean(axis=2))
    for channel in range(3):
        both = torch.stack([images[:, channel, 0, 0].double(), expected[:, channel]])
        assert torch.corrcoef(both)[0, 1] == pytest.approx(1.0, abs=1e-9)


def test_a_whole_version_is_preferred_to_a_cut_one(tmp_path: Path) -> None:
    binary = made.cifar10_binary(tmp_path)
    made.cifar10_python(tmp_path)
    (binary / "data_batch_2.bin").unlink()
    assert len(cifar10(tmp_path).train[0]) == 100
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").unlink()
    with pytest.raises(InputError, match=r"there is no file '.*data_batch_2.bin'; give the folder of CIFAR-10"):
        cifar10(tmp_path)


def test_a_wrong_label_is_named(tmp_path: Path) -> None:
    pixels, labels = made.images(0, 4)
    python = made.cifar10_python(tmp_path)
    for label, said in ((10, "10"), (-1, "-1"), (2**31 - 1, "2147483647")):
        (python / "data_batch_4").write_bytes(made.python2(made.batch((pixels, [*labels[:3], label]))))
        with pytest.raises(InputError, match=rf"data_batch_4' holds the label {said}, outside 0 to 9; .*CIFAR-10"):
            cifar10(tmp_path)
    hundred = made.cifar100(tmp_path / "hundred", binary=True)
    (hundred / "test.bin").write_bytes(made.records((pixels, [0, 1, 2, 100]), coarse=True))
    with pytest.raises(InputError, match=r"test.bin' holds the label 100, outside 0 to 99"):
        cifar100(hundred)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((3, 3072), np.uint8)}, r"has uint8 \[3, 3072\] under 'data', not uint8 \[4, 3072\]"),
        ({"data": np.zeros((4, 768), np.uint8)}, r"has uint8 \[4, 768\] under 'data'"),
        ({"data": np.zeros((4, 3072), np.float32)}, r"has float32 \[4, 3072\] under 'data'"),
        ({"data": "pixels"}, r"has bytes under 'data'"),
        ({"labels": []}, "no list of whole numbers under 'labels'"),
        ({"labels": ["cat"] * 4}, "no list of whole numbers under 'labels'"),
        ({"labels": [[0]] * 4}, "no list of whole numbers under 'labels'"),
        ({"labels": np.zeros((4, 1), np.int64)}, "no list of whole numbers under 'labels'"),
        ({"labels": np.zeros(4)}, "no list of whole numbers under 'labels'"),
    ],
)
def test_a_batch_of_another_shape_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    python = made.cifar10_python(tmp_path)
    (python / "data_batch_1").write_bytes(made.python2(made.batch(made.images(0, 4)) | change))
    with pytest.raises(InputError, match=message):
        cifar10(tmp_path)


def test_labels_may_be_an_array(tmp_path: Path) -> None:
    python = made.cifar10_python(tmp_path)
    pixels, labels = made.images(0, 4)
    changed = made.batch((pixels, labels)) | {"labels": np.array(labels, np.uint8)}
    (python / "data_batch_1").write_bytes(made.python2(changed))
    assert cifar10(tmp_path).train[1][:4].tolist() == labels


def test_a_file_of_another_data_set_is_refused(tmp_path: Path) -> None:
    hundred = made.cifar100(tmp_path, binary=False)
    python = made.cifar10_python(tmp_path)
    shutil.copy(hundred / "train", python / "data_batch_1")
    with pytest.raises(InputError, match="data_batch_1' has no 'labels'; it is another kind of file"):
        cifar10(python)


def test_a_file_above_the_official_size_is_refused(tmp_path: Path) -> None:
    binary = made.cifar10_binary(tmp_path)
    with (binary / "data_batch_1.bin").open("wb") as file:
        file.truncate(10_001 * 3073)
    with pytest.raises(InputError, match="has 30733073 bytes, above the official 30730000"):
        cifar10(tmp_path)


def test_images_that_are_all_the_same_are_refused(tmp_path: Path) -> None:
    hundred = made.cifar100(tmp_path, binary=True)
    (hundred / "train.bin").write_bytes(bytes(3074 * 5))
    with pytest.raises(InputError, match="channel 0 is 0 in every training image"):
        cifar100(hundred)


@pytest.mark.parametrize("name", ["cifar-10-batches-bin", "cifar-10-batches-py"])
def test_verify_refuses_files_that_are_not_the_official_ones(tmp_path: Path, name: str) -> None:
    (made.cifar10_binary if name.endswith("bin") else made.cifar10_python)(tmp_path)
    assert len(cifar10(tmp_path / name).test[0]) == 20
    with pytest.raises(InputError, match=r"data_batch_1.*' has the (sha1|md5) \w+, not the official \w+; fetch it"):
        cifar10(tmp_path / name, verify=True)


def test_verify_passes_files_with_the_right_checksums(tmp_path: Path) -> None:
    binary = made.cifar10_binary(tmp_path)
    (cifar,) = (one for one in DATA_SETS if one.name == "cifar10")
    version = cifar.versions[0]

    def with_digests(files: tuple[OfficialFile, ...]) -> tuple[OfficialFile, ...]:
        sums = {path.name: hashlib.sha1(path.read_bytes()).hexdigest() for path in binary.iterdir()}
        return tuple(replace(file, digest=f"sha1:{sums[file.name]}") for file in files)

    here = replace(version, train=with_digests(version.train), test=with_digests(version.test))
    assert len(load(replace(cifar, versions=(here,)), binary, side=32, verify=True).train[0]) == 100
    path = binary / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(InputError, match=r"test_batch.bin' has the sha1"):
        load(replace(cifar, versions=(here,)), binary, side=32, verify=True)


def test_every_official_file_has_a_checksum() -> None:
    for data_set in DATA_SETS:
        for version in data_set.versions:
            digests = [str(file.digest).split(":") for file in version.files]
            assert all(len(value) == {"md5": 32, "sha1": 40}[name] for name, value in digests)
            assert len({value for _, value in digests}) == len(digests)
            if version.archive is not None:
                assert len(version.archive.md5) == 32
