"""Read pickles as the official files are, and refuse those that do harm."""

import os
import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.errors import InputError
from evenstep_research.data.pickles import load_pickle
from research.tests.data.made import batch, images, python2

MOST = 10**6


def load(folder: Path, content: bytes) -> dict[str, Any]:
    path = folder / "data_batch_1"
    path.write_bytes(content)
    return load_pickle(path, most_bytes=MOST)


def test_a_pickle_of_python_2_is_read_as_pythons_own_reader_does(tmp_path: Path) -> None:
    content = python2(batch(images(0, 7)) | {"mean": np.linspace(0, 1, 5), "ids": np.arange(3, dtype=np.int64)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy.core, which is what the official files name
        theirs = pickle.loads(content, encoding="latin1")
    ours = load(tmp_path, content)
    assert list(ours) == list(theirs)
    for name in ("data", "mean", "ids"):
        assert ours[name].dtype == theirs[name].dtype
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert ours["labels"] == theirs["labels"]
    assert ours["batch_label"].decode() == theirs["batch_label"]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_pickles_of_python_3_are_read(tmp_path: Path, protocol: int) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    values = {"data": array, "columns": np.asfortranarray(array), "labels": [1, 2, 300], "last": np.int64(-5)}
    found = load(tmp_path, pickle.dumps(values, protocol=protocol))
    np.testing.assert_array_equal(found["data"], array)
    np.testing.assert_array_equal(found["columns"], array)
    assert found["labels"] == [1, 2, 300]
    assert found["last"] == -5


def test_arrays_of_another_byte_order_are_read(tmp_path: Path) -> None:
    values = np.array([1, 2, 70000], dtype=">i4")
    assert load(tmp_path, python2({"labels": values}))["labels"].tolist() == [1, 2, 70000]


class Harmful:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_a_command_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    content = pickle.dumps({"data": Harmful(os.system, f"touch {mark}")}, protocol=protocol)
    with pytest.raises(InputError, match=r"data_batch_1' names (posix|nt)\.system, .* may run code"):
        load(tmp_path, content)
    assert not mark.exists()
    pickle.loads(content)  # the same pickle, read as it should not be
    assert mark.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("__builtin__", "getattr"),
        ("numpy", "load"),
        ("numpy", "memmap"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy._core.multiarray", "array"),
        ("_codecs", "decode"),
        ("copyreg", "_reconstructor"),
        ("evenstep_research.data.pickles", "load_pickle"),
    ],
)
def test_any_other_global_is_named_and_refused(tmp_path: Path, module: str, name: str) -> None:
    content = b"\x80\x02}U\x04data" + f"c{module}\n{name}\n".encode() + b"s."
    with pytest.raises(InputError, match=rf"data_batch_1' names {module}\.{name}, "):
        load(tmp_path, content)


def test_a_dotted_name_does_not_lead_on_from_one_that_is_admitted(tmp_path: Path) -> None:
    content = b"\x80\x04}\x8c\x04data\x8c\x05numpy\x8c\x0endarray.tofile\x93s."
    with pytest.raises(InputError, match=r"names numpy\.ndarray\.tofile, "):
        load(tmp_path, content)


def test_a_cut_pickle_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    content = python2(batch(images(0, 2)))
    for length in [*range(0, 90), *range(90, len(content), 97), len(content) - 1]:
        with pytest.raises(InputError, match=r"data_batch_1' cannot be read .*fetch it again"):
            load(tmp_path, content[:length])
    with pytest.raises(InputError, match="3 bytes follow its end"):
        load(tmp_path, content + b"abc")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "data_batch_1' cannot be read"),
        (b"Dear reader, this is a letter.", "data_batch_1' cannot be read"),
        (pickle.dumps([1, 2]), "it holds a list, no dictionary"),
        # The memo would be an array of 64 GB.
        (b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b".", "memo index 4294967295 at byte 3"),
        # Hashing this key would run through the end of the stack.
        (b"\x80\x02})" + b"\x85" * 500_000 + b"Ns.", "500000 tuples"),
        (pickle.dumps({"data": np.array([{}], object)}, protocol=2), "an array of 'O8'; only numbers are admitted"),
        (pickle.dumps({"data": np.array(["text"])}, protocol=2), "an array of 'U4'; only numbers are admitted"),
        (
            python2({"data": np.zeros((2, 3), np.uint8)}).replace(b"K\x02K\x03", b"K\xffK\xff"),
            "65025 numbers in 6 byte",
        ),
        (python2({"data": np.zeros((2, 3), np.uint8)}).replace(b"(K\x02K\x03", b"(K\x06J\xff\xff\xff\xff"), "of shape"),
    ],
)
def test_what_is_no_dictionary_of_numbers_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, content)


def test_a_file_larger_than_it_may_be_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room on the disk, and would take all memory
    with pytest.raises(InputError, match=rf"data_batch_1' has {1 << 40} bytes, above the {MOST}"):
        load_pickle(path, most_bytes=MOST)
