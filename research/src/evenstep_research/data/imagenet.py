"""ImageNet: its 16 x 16 version as batches, and a folder of images in its layout, downsampled once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evenstep.data.split import Labelled, Split, standardised
from evenstep.errors import InputError
from evenstep_research.data.files import load
from evenstep_research.data.official import IMAGENET16_120

PARTS = ("train", "val")
_ARRAYS = ("train_images", "train_labels", "val_images", "val_labels")
_AT_ONCE = 1024
# ILSVRC 2012 as it is published: classes from n01440764 to n15075141.
_CLASSES, _TRAIN, _VAL_A_CLASS = 1000, 1_281_167, 50
_FIRST, _LAST = "n01440764", "n15075141"
_WORDNET = re.compile(r"n\d{8}")


def imagenet16_120(directory: Path | str, *, side: int = 16, verify: bool = False) -> Split:
    """Return the images [n, 3, side, side] of the first 120 classes of ImageNet at 16 x 16, as NAS-Bench-201 has it.

    `directory` holds `train_data_batch_1` to `train_data_batch_10` and `val_data`. `verify` insists on the checksums
    that the benchmark's own code checks.
    """
    return load(IMAGENET16_120, directory, side=side, verify=verify)


def imagenet(
    directory: Path | str,
    *,
    side: int = 32,
    cache: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Split:
    """Return ImageNet's images [n, 3, side, side], of a folder with train/CLASS/*.JPEG and val/CLASS/*.JPEG.

    The folder must hold all of ImageNet (ILSVRC 2012); `image_folder` reads other images in the same layout.
    """
    if problem := list_images(directory).differs_from_imagenet:
        raise InputError(
            f"'{directory}' is not ImageNet: it holds {problem}; give the folder of ILSVRC 2012 with all its images"
        )
    return image_folder(directory, side=side, cache=cache, progress=progress)


def image_folder(
    directory: Path | str,
    *,
    side: int = 32,
    cache: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Split:
    """Return the images [n, 3, side, side] of any folder with train/CLASS/*.JPEG and val/CLASS/*.JPEG.

    Each image is averaged to `side` x `side` as it is, like the official downsampled ImageNet. That is done once:
    `imagenet-SIDE.npz` in the folder `cache`, else in `directory`, is read from then on, until names of files change.
    """
    if side < 1:
        raise InputError(f"side is {side}; give a whole number above 0")
    listing = list_images(directory)
    path = Path(directory if cache is None else cache) / f"imagenet-{side}.npz"
    if not path.exists() or (kept := _cached(path, listing, side)) is None:
        kept = _downsampled(listing, side, path, progress)
    return standardised(*kept, side=side)


@dataclass(frozen=True)
class Listing:
    """The images of a folder: (path, class) for each, classes in order of their names."""

    classes: tuple[str, ...]
    train: tuple[tuple[Path, int], ...]
    val: tuple[tuple[Path, int], ...]

    @property
    def differs_from_imagenet(self) -> str:
        """Say how classes and numbers of images differ from ImageNet's; empty if they do not.

        >>> Listing(("cats", "dogs"), (), ()).differs_from_imagenet
        '2 classes, not 1,000'
        """
        if len(self.classes) != _CLASSES:
            return f"{len(self.classes):,} class{'es' if len(self.classes) != 1 else ''}, not {_CLASSES:,}"
        if strange := [name for name in self.classes if not _WORDNET.fullmatch(name)]:
            return f"a class '{strange[0]}', not named as '{_FIRST}' is"
        if (self.classes[0], self.classes[-1]) != (_FIRST, _LAST):
            return f"classes from {self.classes[0]} to {self.classes[-1]}, not from {_FIRST} to {_LAST}"
        if len(self.train) != _TRAIN:
            return f"{len(self.train):,} images to train on, not {_TRAIN:,}"
        counts = Counter(label for _, label in self.val)
        if any(counts[label] != _VAL_A_CLASS for label in range(_CLASSES)):
            return f"{len(self.val):,} images in val, not {_VAL_A_CLASS} of each class"
        return ""

    @property
    def digest(self) -> str:
        """Return a checksum of all names."""
        names = "\n".join(f"{path.parts[-3:]} {label}" for path, label in (*self.train, *self.val))
        return hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()


def list_images(directory: Path | str) -> Listing:
    """List the images of train/ and val/."""
    train, val = (Path(directory) / part for part in PARTS)
    for folder in (train, val):
        if not folder.is_dir():
            raise InputError(f"there is no folder '{folder}'; give ImageNet's folder, with train/CLASS and val/CLASS")
    classes = tuple(sorted(path.name for path in train.iterdir() if path.is_dir()))
    strange = sorted({path.name for path in val.iterdir() if path.is_dir()} - set(classes))
    if strange:
        raise InputError(f"the class '{strange[0]}' is in '{val}' and not in '{train}'; put both parts in one order")
    listing = Listing(classes, _images(train, classes), _images(val, classes))
    for folder, images in ((train, listing.train), (val, listing.val)):
        if not images:
            raise InputError(f"'{folder}' holds no image; give a folder with {folder.name}/CLASS/*.JPEG")
    return listing


def _images(folder: Path, classes: Sequence[str]) -> tuple[tuple[Path, int], ...]:
    return tuple(
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).glob("*"))
        if path.suffix.lower() in (".jpeg", ".jpg", ".png")
    )


def _cached(path: Path, listing: Listing, side: int) -> tuple[Labelled, Labelled] | None:
    """Return what an earlier call kept, or None where it was of other files."""
    try:
        # Opened here: numpy leaves a file open that turns out to be no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            if str(kept["digest"]) != listing.digest:
                return None
            train_images, train_labels, val_images, val_labels = (kept[name] for name in _ARRAYS)
    except Exception as error:  # a file of another kind fails in numpy with nearly any exception
        raise InputError(f"'{path}' cannot be read ({type(error).__name__}: {error}); delete it") from None
    for images, labels, listed in ((train_images, train_labels, listing.train), (val_images, val_labels, listing.val)):
        if images.dtype != np.uint8 or images.shape != (len(listed), 3, side, side):
            raise InputError(f"'{path}' holds {images.dtype} {list(images.shape)}, not these images; delete it")
        if labels.tolist() != [label for _, label in listed]:
            raise InputError(f"'{path}' holds other labels than the folder; delete it")
    return (train_images, train_labels), (val_images, val_labels)


def _downsampled(
    listing: Listing, side: int, path: Path, progress: Callable[[int, int], None] | None
) -> tuple[Labelled, Labelled]:
    """Return all images as bytes, and keep them in `path`, which is there whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened before the work, which is long, so that a folder that cannot be written is known at once.
        with unfinished.open("wb") as file:
            total = len(listing.train) + len(listing.val)
            train = _bytes(listing.train, side, 0, total, progress)
            val = _bytes(listing.val, side, len(listing.train), total, progress)
            np.savez(
                file,
                digest=np.array(listing.digest),
                train_images=train[0],
                train_labels=train[1],
                val_images=val[0],
                val_labels=val[1],
            )
        unfinished.replace(path)
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be written ({error.strerror or error}); give a cache folder with room"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return train, val


def _bytes(
    listed: Sequence[tuple[Path, int]], side: int, before: int, total: int, progress: Callable[[int, int], None] | None
) -> Labelled:
    """Return the images of one part; `before` of `total` are done."""
    images = np.empty((len(listed), 3, side, side), np.uint8)
    with ThreadPoolExecutor() as pool:  # Pillow leaves Python's lock while it decodes
        for start in range(0, len(listed), _AT_ONCE):
            paths = [path for path, _ in listed[start : start + _AT_ONCE]]
            images[start : start + len(paths)] = list(pool.map(_downsampled_image, paths, [side] * len(paths)))
            if progress is not None:
                progress(before + start + len(paths), total)
    return images, np.array([label for _, label in listed], np.int64)


def _downsampled_image(path: Path, side: int) -> NDArray[np.uint8]:
    """Return one image [3, side, side]."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("folders of images need the package Pillow; install it with pip install pillow") from None
    try:
        with Image.open(path) as image:
            small = image.convert("RGB").resize((side, side), Image.Resampling.BOX)
    except Exception as error:  # a broken image fails in Pillow with many exceptions
        said = " ".join(str(error).split())
        raise InputError(
            f"the image '{path}' cannot be read ({type(error).__name__}: {said}); replace or delete it"
        ) from None
    return np.asarray(small, np.uint8).transpose(2, 0, 1)
