"""Small files in the official formats, written byte by byte as their makers did."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labelled = tuple[NDArray[np.uint8], list[int]]

CIFAR10 = ([f"data_batch_{n}" for n in range(1, 6)], "test_batch")
CIFAR100 = (["train"], "test")
IMAGENET16 = ([f"train_data_batch_{n}" for n in range(1, 11)], "val_data")


def images(seed: int, count: int, *, side: int = 32, classes: int = 10, first: int = 0) -> Labelled:
    """Return bytes [count, 3 * side * side], green darker so that channels differ, and labels."""
    draw = np.random.default_rng(seed)
    pixels = draw.integers(256, size=(count, 3 * side**2), dtype=np.uint8)
    pixels[:, side**2 : 2 * side**2] //= 2
    return pixels, (first + draw.integers(classes, size=count)).tolist()


def records(one: Labelled, *, coarse: bool = False) -> bytes:
    """Return a file of the binary version; CIFAR-100's has a coarse label in front of the fine one."""
    pixels, labels = one
    columns = [np.array(labels, np.uint8)[:, None], pixels]
    if coarse:
        columns.insert(0, np.full((len(labels), 1), 255, np.uint8))  # a label nobody must read
    return np.concatenate(columns, axis=1).tobytes()


def python2(value: Any) -> bytes:
    """Return a pickle of protocol 2 as Python 2 wrote the official files: strings of bytes, numpy.core's names."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return b"}(" + b"".join(_python2(key) + _python2(entry) for key, entry in value.items()) + b"u"
    if isinstance(value, str):
        return b"U" + bytes([len(value)]) + value.encode()
    if isinstance(value, list):
        return b"](" + b"".join(_python2(entry) for entry in value) + b"e"
    if isinstance(value, int):
        return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
    assert isinstance(value, np.ndarray)
    shape = b"".join(_python2(length) for length in value.shape)
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    kind = b"cnumpy\ndtype\n" + _python2(value.dtype.str[1:]) + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + _python2(value.dtype.str[0]) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    content = b"T" + struct.pack("<i", value.nbytes) + value.tobytes()
    return made + b"(K\x01" + b"(" + shape + b"t" + kind + b"\x89" + content + b"tb"


def batch(one: Labelled, key: str = "labels") -> dict[str, Any]:
    """Return what the Python version pickles."""
    pixels, labels = one
    return {"batch_label": "training batch 1 of 5", key: labels, "data": pixels, "filenames": ["a.png"] * len(labels)}


def cifar10_binary(folder: Path, count: int = 20) -> Path:
    """Write `cifar-10-batches-bin`."""
    inner = folder / "cifar-10-batches-bin"
    inner.mkdir(parents=True)
    for seed, name in enumerate([*CIFAR10[0], CIFAR10[1]]):
        (inner / f"{name}.bin").write_bytes(records(images(seed, count)))
    return inner


def cifar10_python(folder: Path, count: int = 20) -> Path:
    """Write `cifar-10-batches-py`, the same images."""
    inner = folder / "cifar-10-batches-py"
    inner.mkdir(parents=True)
    for seed, name in enumerate([*CIFAR10[0], CIFAR10[1]]):
        (inner / name).write_bytes(python2(batch(images(seed, count))))
    return inner


def cifar100(folder: Path, *, binary: bool, count: int = 30) -> Path:
    """Write `cifar-100-binary` or `cifar-100-python`, the same images."""
    inner = folder / ("cifar-100-binary" if binary else "cifar-100-python")
    inner.mkdir(parents=True)
    for seed, name in enumerate([*CIFAR100[0], CIFAR100[1]]):
        one = images(seed, count, classes=100)
        if binary:
            (inner / f"{name}.bin").write_bytes(records(one, coarse=True))
        else:
            coarse = {"coarse_labels": [255] * count}
            (inner / name).write_bytes(python2(coarse | batch(one, "fine_labels")))
    return inner


def imagenet16(folder: Path, count: int = 40) -> Path:
    """Write the eleven batches, with labels from 1 to 240 of the 1,000 there are."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate([*IMAGENET16[0], IMAGENET16[1]]):
        found = batch(images(seed, count, side=16, classes=240, first=1))
        (folder / name).write_bytes(python2(found | {"mean": np.zeros(768)}))
    return folder
