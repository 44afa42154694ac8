"""A file of measurements, a line each: what was measured is not measured again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenstep.search.provenance import provenance
from evenstep_research.study import jsonl


class OutOfTimeError(Exception):
    """Something is not known, and there is no time left to measure it."""


@dataclass
class Ledger:
    """Hold measurements by what they are, each written as soon as it is known; `names` say what tells them apart.

    After `deadline` (`time.time()`) nothing more is measured.
    """

    path: Path
    names: tuple[str, ...]
    deadline: float | None = None
    file: jsonl.Lines = field(init=False)
    known: dict[tuple[Any, ...], dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = jsonl.Lines(self.path)
        self.known = {self.key(line): line for line in self.file.read(dict)}

    def key(self, line: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(line.get(name) for name in self.names)

    def measured(self, line: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what is known of a thing, or measure it and write it down."""
        if self.key(line) not in self.known:
            if self.deadline is not None and time.time() > self.deadline:
                raise OutOfTimeError
            before = time.perf_counter()
            whole = line | measure() | {"seconds": round(time.perf_counter() - before, 2), "provenance": provenance()}
            self.file.append(whole)
            self.known[self.key(line)] = whole
            print({name: value for name, value in whole.items() if len(str(value)) < 100}, flush=True)
        return self.known[self.key(line)]
