"""Read the pickles of official data sets without running anything they name.

A pickle is a program: reading a hostile one with `pickle.load` runs its code. Here the few globals that pickled arrays
need are answered by stand-ins, any other is refused, and sizes are checked before memory is taken.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.errors import InputError

_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
# A tuple within a tuple within ... is hashed recursively, in C, down to the end of the stack; real files hold five.
_MOST_TUPLES = 1000


def load_pickle(path: Path, *, most_bytes: int) -> dict[str, Any]:
    """Return a pickled dictionary of arrays, bytes, strings, numbers, lists and dictionaries.

    Pickles of Python 2 are read too; their strings come back as bytes, but for the dictionary's own keys.
    """
    size = path.stat().st_size
    if size > most_bytes:
        raise InputError(f"'{path}' has {size} bytes, above the {most_bytes} it may have; fetch it again")
    content = path.read_bytes()
    try:
        _scan(content)
        loaded = _Unpickler(content, path).load()
        if not isinstance(loaded, dict):
            raise pickle.UnpicklingError(f"it holds a {type(loaded).__name__}, no dictionary")
        return {
            _text(key): value.numbers() if isinstance(value, _PickledArray) else value for key, value in loaded.items()
        }
    except InputError:
        raise
    except Exception as error:  # a malformed pickle fails with nearly any exception
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"'{path}' cannot be read ({type(error).__name__}: {reason}); fetch it again") from None


def _scan(content: bytes) -> None:
    """Refuse what is cut off, or would take memory or stack out of all proportion to its size."""
    position, tuples = -1, 0
    for opcode, argument, offset in pickletools.genops(content):
        position = int(offset or 0)
        # The memo is an array up to the highest index; a true index counts objects, each of at least a byte.
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > position:
            raise pickle.UnpicklingError(f"memo index {argument} at byte {position}")
        tuples += opcode.name.startswith("TUPLE")
    if position + 1 != len(content):
        raise pickle.UnpicklingError(f"{len(content) - position - 1} bytes follow its end")
    if tuples > _MOST_TUPLES:
        raise pickle.UnpicklingError(f"{tuples} tuples")


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str, /) -> Any:
        # Functions are made anew each time: a pickle may set attributes of what it is given.
        if module in _MULTIARRAY and name == "_reconstruct":
            return lambda *_: _PickledArray()
        if module in _MULTIARRAY and name == "scalar":
            return lambda kind, content: kind.read(content, 1)[0].item()
        if (module, name) == ("numpy", "ndarray"):
            return _PickledArray
        if (module, name) == ("numpy", "dtype"):
            return _PickledType
        if (module, name) == ("_codecs", "encode"):  # Python 3's way to put bytes into a pickle for Python 2
            return lambda text, _: text.encode("latin-1")
        raise InputError(
            f"'{self.path}' names {module}.{name}, which images and labels do not need and which may run code; "
            "delete it and fetch the official file"
        )


class _PickledType:
    """Stand in for numpy.dtype."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        self.code, self.order = _text(code), "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1])

    def read(self, content: bytes | str, count: int) -> NDArray[Any]:
        """Return `count` numbers of this kind, which `content` must be exactly."""
        if not re.fullmatch(r"[iuf][1248]|b1", self.code) or self.order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError(f"an array of '{self.code}'; only numbers are admitted")
        kind = np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]
        raw = content.encode("latin-1") if isinstance(content, str) else content
        if len(raw) != count * kind.itemsize:
            raise pickle.UnpicklingError(f"an array of {count} numbers in {len(raw)} bytes")
        return np.frombuffer(raw, kind)


class _PickledArray:
    """Stand in for numpy.ndarray: none of numpy's own unpickling is reached, which believes a pickle's sizes."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def numbers(self) -> NDArray[Any]:
        _, shape, kind, by_columns, content = self.state
        if not all(type(length) is int and length >= 0 for length in shape):
            raise pickle.UnpicklingError(f"an array of shape {shape!r:.80}")
        flat: NDArray[Any] = kind.read(content, math.prod(shape))
        return flat.reshape(shape, order="F" if by_columns else "C")


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
