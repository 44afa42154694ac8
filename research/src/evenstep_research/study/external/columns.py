"""Columns of a CSV file: read as numbers, or refused with the file, the line and what to do."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenstep.arguments import shown
from evenstep.errors import InputError


@dataclass(frozen=True)
class TableRow:
    """Hold one line of a file: its columns as texts, and where it stands."""

    path: Path
    line: int
    texts: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a column's text."""
        return self.texts[column]

    def number(self, column: str) -> float:
        """Return a column as a finite number above 0."""
        try:
            value = float(self.texts[column])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise InputError(
                f"{column} in line {self.line} of '{self.path}' is {shown(self.texts[column])}; give a finite number "
                "above 0, or leave the line out"
            )
        return value

    def whole(self, column: str) -> int:
        """Return a column as a whole number above 0."""
        value = self.number(column)
        if value != int(value):
            raise InputError(
                f"{column} in line {self.line} of '{self.path}' is {shown(self.texts[column])}; give a whole number"
            )
        return int(value)

    def optional(self, column: str) -> float | None:
        """Return a column as a number, None where it is empty."""
        return self.number(column) if self.texts[column] else None


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[TableRow]:
    """Yield the rows of a file that has the columns; others are left alone."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(
                    f"'{path}' has no column {', '.join(map(repr, missing))}; it needs {', '.join(columns)}"
                )
            for row in reader:
                texts = {name: (row[name] or "").strip() for name in columns}
                yield TableRow(path, reader.line_num, texts)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"the table '{path}' cannot be read ({error}); give a CSV file in UTF-8") from None
