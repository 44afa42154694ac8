"""Files of JSON lines that measurements are written to at once; a last line that was cut off is dropped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from evenstep.errors import StoreError

Parsed = TypeVar("Parsed")


def read(path: Path, parse: Callable[[Any], Parsed], *, mend: bool) -> Iterator[Parsed]:
    """Yield what `parse` makes of every line; with `mend` a last line that was cut off is removed from the file too."""
    try:
        lines = path.read_text().split("\n")
    except (OSError, ValueError) as error:
        raise StoreError(f"the ledger '{path}' cannot be read ({error}); give another file") from None
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entry = parse(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            if number < len(lines):
                raise StoreError(f"line {number} of the ledger '{path}' cannot be read; remove that line") from None
            if mend:
                _rewrite(path, lines[:-1])
            return
        yield entry
    if lines[-1] and mend:  # whole but for its end: the next line must not be joined to it
        _rewrite(path, lines)


def append(path: Path, values: Mapping[str, Any]) -> None:
    """Add a line."""
    try:
        with path.open("a") as file:
            file.write(json.dumps(values, allow_nan=False) + "\n")
    except OSError as error:
        raise StoreError(f"the ledger '{path}' cannot be written ({error}); give another file") from None


def _rewrite(path: Path, lines: list[str]) -> None:
    """Write lines anew, in one step."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text("".join(line + "\n" for line in lines if line))
        beside.replace(path)
    except OSError as error:
        raise StoreError(f"the ledger '{path}' cannot be written ({error}); give another file") from None
