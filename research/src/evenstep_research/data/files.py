"""Find, verify and read the official files of a data set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.data.split import Labelled, Split, check_side, standardised
from evenstep.errors import InputError
from evenstep_research.data.official import DataSet, OfficialFile, Records, Version
from evenstep_research.data.pickles import load_pickle

# What a pickle holds beside pixels, for each image: its labels and the name of its file.
_PICKLED_BESIDE = 256


def load(data_set: DataSet, directory: Path | str, *, side: int, verify: bool) -> Split:
    """Return the images [n, 3, side, side] of a data set in any of its versions; `verify` compares checksums first."""
    check_side(side, data_set.side)
    version, folder = located(data_set, Path(directory))
    if verify:
        for file in version.files:
            verify_file(folder / file.name, file)
    train, test = (
        _joined([read_file(data_set, version, file, folder) for file in files])
        for files in (version.train, version.test)
    )
    if not len(train[0]) or not len(test[0]):
        raise InputError(f"'{folder}' has no image of classes 1 to {data_set.classes}; fetch {data_set.title} again")
    return standardised(train, test, side=side)


def located(data_set: DataSet, directory: Path) -> tuple[Version, Path]:
    """Return the version that lies in a folder, or in its official subfolder, and where: the most whole one."""
    places = [(version, place) for version in data_set.versions for place in (directory / version.folder, directory)]
    version, folder = min(places, key=lambda place: len(missing(*place)))
    absent = missing(version, folder)
    if absent:
        nothing = len(absent) == len(version.files)
        path = (directory if nothing else folder) / absent[0].name
        folders = " or ".join(version.folder for version in data_set.versions)
        raise InputError(f"there is no file '{path}'; give the folder of {data_set.title} ({folders})")
    return version, folder


def missing(version: Version, folder: Path) -> tuple[OfficialFile, ...]:
    """Return the files of a version that a folder lacks."""
    return tuple(file for file in version.files if not (folder / file.name).is_file())


def verify_file(path: Path, file: OfficialFile) -> None:
    """Refuse a file whose checksum is not the official one."""
    if file.digest is None:
        return
    algorithm, _, official = file.digest.partition(":")
    found = digest(path, algorithm)
    if found != official:
        raise InputError(f"'{path}' has the {algorithm} {found}, not the official {official}; fetch it again")


def digest(path: Path, algorithm: str) -> str:
    """Return the checksum of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror or error}); check who may read it") from None


def read_file(data_set: DataSet, version: Version, file: OfficialFile, folder: Path) -> Labelled:
    """Return the bytes [n, 3, side, side] and the labels [n] of one file, those of other classes left out."""
    path, form, plane = folder / file.name, version.form, data_set.side**2
    try:
        if isinstance(form, Records):
            first = 0
            pixels, labels = _records(path, form.label_bytes, 3 * plane, file.most_images)
        else:
            first = form.first
            pixels, labels = _batch(path, form.labels, 3 * plane, file.most_images)
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror or error}); check who may read it") from None
    last = first + version.classes - 1
    outside = labels[(labels < first) | (labels > last)]
    if len(outside):
        raise InputError(
            f"'{path}' holds the label {outside[0]}, outside {first} to {last}; it is no file of {data_set.title}, "
            "fetch it again"
        )
    images = pixels.reshape(-1, 3, data_set.side, data_set.side)
    kept = labels < first + data_set.classes
    return (images, labels - first) if kept.all() else (images[kept], labels[kept] - first)


def _records(path: Path, label_bytes: int, pixels: int, most_images: int) -> Labelled:
    record, size = label_bytes + pixels, path.stat().st_size
    if size > most_images * record:
        raise InputError(f"'{path}' has {size} bytes, above the official {most_images * record}; fetch it again")
    if not size or size % record:
        raise InputError(f"'{path}' has {size} bytes, not a multiple of {record}; fetch it again")
    records = np.fromfile(path, dtype=np.uint8).reshape(-1, record)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)


def _batch(path: Path, key: str, width: int, most_images: int) -> Labelled:
    found = load_pickle(path, most_bytes=most_images * (width + _PICKLED_BESIDE))
    for needed in ("data", key):
        if needed not in found:
            raise InputError(f"'{path}' has no '{needed}'; it is another kind of file, fetch it again")
    pixels, labels = found["data"], _labels(found[key])
    if labels is None or not len(labels):
        raise InputError(f"'{path}' has no list of whole numbers under '{key}'; fetch it again")
    shape = (len(labels), width)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != shape:
        what = f"{pixels.dtype} {list(pixels.shape)}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise InputError(f"'{path}' has {what} under 'data', not uint8 {list(shape)}; fetch it again")
    return np.ascontiguousarray(pixels), labels


def _labels(value: Any) -> NDArray[np.int64] | None:
    # Plain integers only: numpy would unfold a list of shared lists to any size.
    if isinstance(value, list) and all(type(label) is int and abs(label) < 2**31 for label in value):
        return np.array(value, np.int64)
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        return value.astype(np.int64)
    return None


def _joined(parts: Sequence[Labelled]) -> Labelled:
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)
