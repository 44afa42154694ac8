"""Finished trials in SQLite: one row each, written as soon as it is known, safe against kills and company."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.errors import StoreError

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


@dataclass(frozen=True, slots=True)
class StoreRow:
    """One finished trial; `loss` is infinite where it diverged."""

    config: str
    lr: float
    seed: int
    loss: float
    curve: tuple[float, ...]
    seconds: float
    provenance: Mapping[str, Any]

    @property
    def status(self) -> str:
        """`ok` or `diverged`."""
        return "ok" if math.isfinite(self.loss) else "diverged"


class Store:
    """A file of finished trials.

    Write-ahead logging lets several processes write at once; a row is there whole or not at all, and a trial that is
    written twice stays once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._base = sqlite3.connect(path, timeout=60.0, isolation_level=None)
            schema = self._base.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            raise self._explained(error) from None
        if schema > SCHEMA:
            raise StoreError(
                f"the store '{path}' has schema {schema} and this version knows {SCHEMA}; update evenstep, or give "
                "another file"
            )
        with self._errors():
            self._set_up()

    def _set_up(self) -> None:
        """Make the tables, in write-ahead mode. Changing the mode does not wait for others as writes do: try on."""
        for attempt in range(_SET_UP_TRIES):
            try:
                if self._base.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    self._base.execute("PRAGMA journal_mode = WAL")
                self._base.execute("PRAGMA synchronous = FULL")
                self._base.executescript(_TABLES)
                self._base.execute(f"PRAGMA user_version = {SCHEMA}")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or attempt + 1 == _SET_UP_TRIES:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def begin(self, config: str, description: Mapping[str, Any]) -> None:
        """Note a search by its configuration's hash; one that is known stays as it is."""
        with self._errors():
            self._base.execute(
                "INSERT OR IGNORE INTO searches VALUES (?, ?, ?, NULL)", (config, json.dumps(description), time.time())
            )

    def batching(self, config: str) -> dict[str, Any] | None:
        """Return how a search's trials are batched, None before one was settled."""
        with self._errors():
            stored = self._base.execute("SELECT form FROM searches WHERE config = ?", (config,)).fetchone()
        return json.loads(stored[0]) if stored and stored[0] else None

    def settle_batching(self, config: str, batching: Mapping[str, Any]) -> None:
        """Note the batching of a search; the first one noted stays, so that a resumed search trains as it began."""
        with self._errors():
            self._base.execute(
                "UPDATE searches SET form = ? WHERE config = ? AND form IS NULL", (json.dumps(batching), config)
            )

    def add(self, rows: Sequence[StoreRow]) -> None:
        """Write finished trials, all or none."""
        values = [
            (
                row.config,
                row.lr,
                row.seed,
                row.loss if math.isfinite(row.loss) else None,
                json.dumps([value if math.isfinite(value) else None for value in row.curve]),
                row.status,
                row.seconds,
                json.dumps(row.provenance),
            )
            for row in rows
        ]
        with self._errors(), self._transaction():
            self._base.executemany("INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def rows(self, config: str) -> list[StoreRow]:
        """Return the finished trials of a search, by learning rate and seed."""
        with self._errors():
            stored = self._base.execute(
                "SELECT config, lr, seed, loss, curve, seconds, provenance FROM copies "
                "WHERE config = ? ORDER BY lr, seed",
                (config,),
            ).fetchall()
        return [
            StoreRow(
                config,
                lr,
                seed,
                math.inf if loss is None else loss,
                tuple(math.inf if value is None else value for value in json.loads(curve)),
                seconds,
                json.loads(provenance),
            )
            for config, lr, seed, loss, curve, seconds, provenance in stored
        ]

    def searches(self) -> list[dict[str, Any]]:
        """Return every search: its configuration, description, start, and numbers of trials."""
        with self._errors():
            stored = self._base.execute(
                "SELECT s.config, s.description, s.started, COUNT(c.lr), COALESCE(SUM(c.status = 'diverged'), 0) "
                "FROM searches s LEFT JOIN copies c ON c.config = s.config GROUP BY s.config ORDER BY s.started"
            ).fetchall()
        keys = ("config", "description", "started", "copies", "diverged")
        return [dict(zip(keys, (c, json.loads(d), *rest), strict=True)) for c, d, *rest in stored]

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
        except sqlite3.Error as error:
            raise self._explained(error) from None

    def _explained(self, error: sqlite3.Error) -> StoreError:
        text = str(error)
        remedy = {
            "readonly": "make it writable, or give another file",
            "read-only": "make it writable, or give another file",
            "full": "free some space and resume; what was written is safe",
            "disk I/O": "free some space or check the disk, then resume; what was written is safe",
            "unable to open": "check that its folder exists and can be written to",
            "not a database": "it is another kind of file: give another name",
            "malformed": "the file is damaged: restore a copy or give another name",
            "locked": "another process holds it; try again when that is done",
        }
        advice = next((words for mark, words in remedy.items() if mark in text), "give another file")
        return StoreError(f"the store '{self.path}' cannot be used: {text}; {advice}")
