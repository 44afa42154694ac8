"""What the official files of each data set are: names, forms, sizes and checksums.

The archives' checksums are those of the CIFAR page. Those of single files are the lists that torchvision (Python
versions), MXNet (binary versions) and NAS-Bench-201 (ImageNet16) check against.
"""

from __future__ import annotations

from dataclasses import dataclass

_HOME = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class Records:
    """Raw records, each `label_bytes` labels, of which the last counts, and the red, green and blue planes."""

    label_bytes: int = 1


@dataclass(frozen=True)
class Batch:
    """A pickled dictionary: bytes [n, 3 * side * side] under 'data', labels from `first` on under `labels`."""

    labels: str = "labels"
    first: int = 0


@dataclass(frozen=True)
class OfficialFile:
    """One file, with the most images it may hold and its checksum, as in 'md5:0123...'."""

    name: str
    most_images: int
    digest: str | None = None


@dataclass(frozen=True)
class Archive:
    """Where the official archive is, its checksum, and its size in bytes."""

    url: str
    md5: str
    size: int


@dataclass(frozen=True)
class Version:
    """One official form of a data set: a folder of files with labels of `classes` classes."""

    name: str
    folder: str
    form: Records | Batch
    classes: int
    train: tuple[OfficialFile, ...]
    test: tuple[OfficialFile, ...]
    archive: Archive | None = None

    @property
    def files(self) -> tuple[OfficialFile, ...]:
        """All files, those to train on first."""
        return (*self.train, *self.test)


@dataclass(frozen=True)
class DataSet:
    """A data set of colour images; of a version with more classes the first `classes` are kept."""

    name: str
    title: str
    classes: int
    side: int
    versions: tuple[Version, ...]
    source: str


def _numbered(pattern: str, digests: tuple[str, ...], images: int) -> tuple[OfficialFile, ...]:
    return tuple(OfficialFile(pattern.format(n), images, digest) for n, digest in enumerate(digests, start=1))


CIFAR10 = DataSet(
    "cifar10",
    "CIFAR-10",
    classes=10,
    side=32,
    versions=(
        Version(
            "binary",
            "cifar-10-batches-bin",
            Records(),
            classes=10,
            train=_numbered(
                "data_batch_{}.bin",
                (
                    "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540",
                    "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
                    "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
                    "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e",
                    "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628",
                ),
                10_000,
            ),
            test=(OfficialFile("test_batch.bin", 10_000, "sha1:67eb016db431130d61cd03c7ad570b013799c88c"),),
            archive=Archive(f"{_HOME}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
        ),
        Version(
            "python",
            "cifar-10-batches-py",
            Batch(),
            classes=10,
            train=_numbered(
                "data_batch_{}",
                (
                    "md5:c99cafc152244af753f735de768cd75f",
                    "md5:d4bba439e000b95fd0a9bffe97cbabec",
                    "md5:54ebc095f3ab1f0389bbae665268c751",
                    "md5:634d18415352ddfa80567beed471001a",
                    "md5:482c414d41f54cd18b22e5b47cb7c3cb",
                ),
                10_000,
            ),
            test=(OfficialFile("test_batch", 10_000, "md5:40351d587109b95175f43aff81a1287e"),),
            archive=Archive(f"{_HOME}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),
        ),
    ),
    source="evenstep data fetch cifar10",
)

CIFAR100 = DataSet(
    "cifar100",
    "CIFAR-100",
    classes=100,
    side=32,
    versions=(
        Version(
            "binary",
            "cifar-100-binary",
            Records(label_bytes=2),
            classes=100,
            train=(OfficialFile("train.bin", 50_000, "sha1:e207cd2e05b73b1393c74c7f5e7bea451d63e08e"),),
            test=(OfficialFile("test.bin", 10_000, "sha1:8fb6623e830365ff53cf14adec797474f5478006"),),
            archive=Archive(f"{_HOME}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),
        ),
        Version(
            "python",
            "cifar-100-python",
            Batch(labels="fine_labels"),
            classes=100,
            train=(OfficialFile("train", 50_000, "md5:16019d7e3df5f24257cddd939b257f8d"),),
            test=(OfficialFile("test", 10_000, "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"),),
            archive=Archive(f"{_HOME}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
        ),
    ),
    source="evenstep data fetch cifar100",
)

IMAGENET16_120 = DataSet(
    "imagenet16-120",
    "ImageNet16-120",
    classes=120,
    side=16,
    versions=(
        Version(
            "python",
            "ImageNet16",
            Batch(first=1),
            classes=1000,
            train=_numbered(
                "train_data_batch_{}",
                (
                    "md5:27846dcaa50de8e21a7d1a35f30f0e91",
                    "md5:c7254a054e0e795c69120a5727050e3f",
                    "md5:4333d3df2e5ffb114b05d2ffc19b1e87",
                    "md5:1620cdf193304f4a92677b695d70d10f",
                    "md5:348b3c2fdbb3940c4e9e834affd3b18d",
                    "md5:6e765307c242a1b3d7d5ef9139b48945",
                    "md5:564926d8cbf8fc4818ba23d2faac7564",
                    "md5:f4755871f718ccb653440b9dd0ebac66",
                    "md5:bb6dd660c38c58552125b1a92f86b5d4",
                    "md5:8f03f34ac4b42271a294f91bf480f29b",
                ),
                130_000,
            ),
            test=(OfficialFile("val_data", 50_000, "md5:3410e3017fdaefba8d5073aaa65e4bd6"),),
        ),
    ),
    source="image-net.org, downsampled ImageNet 16x16, the ten training batches and val_data",
)

DATA_SETS = (CIFAR10, CIFAR100, IMAGENET16_120)
