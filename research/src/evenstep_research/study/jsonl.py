"""Files of JSON lines that measurements are written to at once, beside other processes that read and write them.

Writers take turns by a lock on the file. A line that was cut off (its writer was killed) is dropped by readers, and
removed by the next writer: a reader cannot tell it from a line that is being written, so it never touches the file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from evenstep.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows, where one process at a time has to do
    fcntl = None  # type: ignore[assignment]

Parsed = TypeVar("Parsed")


class Lines:
    """The lines of a ledger in a file; without a file there are none, and what is added is not kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def read(self, parse: Callable[[Any], Parsed]) -> Iterator[Parsed]:
        """Yield what `parse` makes of every line; a file that is not there yet has none."""
        if self.path is not None and self.path.exists():
            yield from read(self.path, parse)

    def append(self, values: Mapping[str, Any]) -> None:
        """Add a line, whole or not at all."""
        if self.path is not None:
            append(self.path, values)


def read(path: Path, parse: Callable[[Any], Parsed]) -> Iterator[Parsed]:
    """Yield what `parse` makes of every line, but for a last one that was cut off."""
    try:
        with path.open("rb") as file, _locked(file.fileno(), alone=False):
            lines = file.read().decode().split("\n")
    except (OSError, ValueError) as error:
        raise StoreError(f"the ledger '{path}' cannot be read ({error}); give another file") from None
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entry = parse(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError):
            if number < len(lines):
                raise StoreError(f"line {number} of the ledger '{path}' cannot be read; remove that line") from None
            return
        yield entry


def append(path: Path, values: Mapping[str, Any]) -> None:
    """Add a line, whole or not at all."""
    line = (json.dumps(values, allow_nan=False) + "\n").encode()
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            with _locked(number, alone=True):
                _append(number, line)
        finally:
            os.close(number)
    except OSError as error:
        raise StoreError(f"the ledger '{path}' cannot be written ({error}); give another file") from None


def _append(number: int, line: bytes) -> None:
    """Write a line after the last whole one of an open file; what cannot be written to its end is taken back."""
    end = _mended_end(number)
    try:
        left = memoryview(line)
        while left:
            left = left[os.write(number, left) :]
    except OSError:
        os.ftruncate(number, end)
        raise


def _mended_end(number: int) -> int:
    """Return where a file's last whole line ends, once what was cut off after it is removed or its end is added."""
    end = os.lseek(number, 0, os.SEEK_END)
    if not end or os.pread(number, 1, end - 1) == b"\n":
        return end
    rest, start = b"", end
    while start and b"\n" not in rest:
        step = min(start, 1 << 20)
        start -= step
        rest = os.pread(number, step, start) + rest
    last = rest.rpartition(b"\n")[2]
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        os.ftruncate(number, end - len(last))
        return end - len(last)
    return end + os.write(number, b"\n")


@contextlib.contextmanager
def _locked(number: int, *, alone: bool) -> Iterator[None]:
    """Hold a file against writers, or against all others, for a while; the system lets go of it if we are killed."""
    if fcntl is None:
        yield
        return
    fcntl.flock(number, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    try:
        yield
    finally:
        fcntl.flock(number, fcntl.LOCK_UN)
