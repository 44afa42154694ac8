"""Keep finished trials in SQLite, a row for each, safe against kills and other processes."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evenstep.errors import StoreError
from evenstep.search.store_files import identity_of, is_same_file, opened_to_read, require_store, rescued
from evenstep.search.store_rows import StoreRow, batching_from_value, search_from_values

__all__ = ["SCHEMA", "Store", "StoreRow"]

SCHEMA = 1
_SET_UP_TRIES = 200
_TABLES = """
CREATE TABLE IF NOT EXISTS searches (
    config TEXT PRIMARY KEY,
    description TEXT NOT NULL,
    started REAL NOT NULL,
    form TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS copies (
    config TEXT NOT NULL REFERENCES searches (config),
    lr REAL NOT NULL,
    seed INTEGER NOT NULL,
    loss REAL,
    curve TEXT NOT NULL,
    status TEXT NOT NULL,
    seconds REAL NOT NULL,
    provenance TEXT NOT NULL,
    PRIMARY KEY (config, lr, seed)
) WITHOUT ROWID;
"""


class Store:
    """A file of finished trials.

    Write-ahead logging lets several processes write at once. A row is written completely or not at all, and a trial
    that is written twice is kept once. With `read_only` nothing is written or created, and a missing file raises. If
    the file is deleted or replaced meanwhile, the next trial raises, after all known trials are written to another
    file.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._searches: dict[str, tuple[Any, ...]] = {}
        self._rows: list[tuple[Any, ...]] = []
        with self._errors():
            if read_only:
                self._base = opened_to_read(path)
                self._checked(self._base, empty=False)
            else:
                self._base = self._opened_to_write()
        self._identity = identity_of(path)

    def _opened_to_write(self) -> sqlite3.Connection:
        """Open the file, or create it; a file that is not a store stays unchanged."""
        if os.path.isfile(self.path) and self.path.stat().st_size:
            looked = opened_to_read(self.path)
            self._checked(looked, empty=True)
            looked.close()
        base = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
        _set_up(base)
        return base

    def _checked(self, base: sqlite3.Connection, *, empty: bool) -> None:
        try:
            require_store(self.path, base, schema=SCHEMA, empty=empty)
        except BaseException:
            base.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def begin(self, config: str, description: Mapping[str, Any]) -> None:
        """Record a search under its configuration's hash, unless it is recorded already."""
        values = (config, json.dumps(description), time.time(), None)
        self._searches[config] = values
        with self._errors():
            self._base.execute("INSERT OR IGNORE INTO searches VALUES (?, ?, ?, ?)", values)

    def batching(self, config: str) -> dict[str, Any] | None:
        """Return how a search's trials are batched, or None if that is not settled yet."""
        with self._errors():
            stored = self._base.execute("SELECT form FROM searches WHERE config = ?", (config,)).fetchone()
        return batching_from_value(config, stored[0], self.path) if stored else None

    def settle_batching(self, config: str, batching: Mapping[str, Any]) -> None:
        """Record a search's batching; the first one stays, so that a resumed search trains as it began."""
        with self._errors():
            self._base.execute(
                "UPDATE searches SET form = ? WHERE config = ? AND form IS NULL", (json.dumps(batching), config)
            )

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Write finished trials, all of them or none."""
        values = [row.to_values() for row in rows]
        try:
            with self._errors(), self._transaction():
                self._base.executemany("INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        except StoreError:
            if is_same_file(self.path, self._identity):
                raise
        self._rows += values
        self.require_present()

    def require_present(self) -> None:
        """If the file was deleted or replaced since it was opened, write all known trials to another file and raise."""
        if is_same_file(self.path, self._identity):
            return
        place = rescued(self._base, self.path, _TABLES, self._searches.values(), self._rows)
        raise StoreError(
            f"the store '{self.path}' was deleted or replaced while the search was running; all its trials are kept in "
            f"'{place}': move that file to where the store was, and search again to continue"
        )

    def rows(self, config: str) -> list[StoreRow]:
        """Return the finished trials of a search, by learning rate and seed."""
        with self._errors():
            stored = self._base.execute(
                "SELECT config, lr, seed, loss, curve, status, seconds, provenance FROM copies "
                "WHERE config = ? ORDER BY lr, seed",
                (config,),
            ).fetchall()
        return [StoreRow.from_values(values, self.path) for values in stored]

    def searches(self) -> list[dict[str, Any]]:
        """Return every search: its configuration, description, start, and numbers of trials."""
        with self._errors():
            stored = self._base.execute(
                "SELECT s.config, s.description, s.started, COUNT(c.lr), COALESCE(SUM(c.status = 'diverged'), 0) "
                "FROM searches s LEFT JOIN copies c ON c.config = s.config GROUP BY s.config ORDER BY s.started"
            ).fetchall()
        return [search_from_values(values, self.path) for values in stored]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter when SQLite's message quotes damaged text
            raise self._explained(error) from None

    def _explained(self, error: Exception) -> StoreError:
        text = "its text is malformed" if isinstance(error, UnicodeDecodeError) else str(error)
        remedy = {
            "readonly": "make it writable, or give another file",
            "read-only": "make it writable, or give another file",
            "full": "free some space and resume; what was written is safe",
            "disk I/O": "free some space or check the disk, then resume; what was written is safe",
            "unable to open": "check that its folder exists and can be written to",
            "not a database": "it is another kind of file; give another name",
            "malformed": "the file is damaged; restore a copy or give another name",
            "locked": "another process holds it; try again when it has finished",
        }
        advice = next((words for mark, words in remedy.items() if mark in text), "give another file")
        return StoreError(f"the store '{self.path}' cannot be used: {text}; {advice}")


def _set_up(base: sqlite3.Connection) -> None:
    """Make the tables, in write-ahead mode. Changing the mode does not wait for other processes, so it is retried."""
    for attempt in range(_SET_UP_TRIES):
        try:
            if base.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = FULL")
            # In one transaction, so that other processes see an empty file or a store, never half of one.
            base.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or attempt + 1 == _SET_UP_TRIES:
                raise
            time.sleep(0.05)
