"""Open a store's file to read it, even on a read-only medium; check that it is a store; and rescue it."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evenstep.errors import StoreError

_TIMEOUT = 60.0
COLUMNS = {
    "searches": ("config", "description", "started", "form"),
    "copies": ("config", "lr", "seed", "loss", "curve", "status", "seconds", "provenance"),
}


def opened_to_read(path: Path) -> sqlite3.Connection:
    """Open a database to read only, even on a read-only medium, where SQLite cannot make its working files."""
    address = path.resolve().as_uri()
    base = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=_TIMEOUT, isolation_level=None)
    try:
        base.execute("SELECT name FROM sqlite_master").fetchall()
        return base
    except sqlite3.OperationalError as error:
        base.close()
        if "unable to open" not in str(error) and "readonly" not in str(error):
            raise
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        raise StoreError(
            f"the store '{path}' cannot be read where it is: its last trials are in '{log.name}', and its folder "
            "cannot be written to; copy both files to a folder that can be written to"
        )
    base = sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True, isolation_level=None)
    base.execute("SELECT name FROM sqlite_master").fetchall()
    return base


def require_store(path: Path, base: sqlite3.Connection, *, schema: int, empty: bool) -> None:
    """Refuse another program's database, a newer version's, and an empty one unless `empty` is set."""
    found = base.execute("PRAGMA user_version").fetchone()[0]
    names = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    if not names and empty and not found:
        return
    columns = {
        table: tuple(row[1] for row in base.execute(f"PRAGMA table_info({table})"))
        for table in COLUMNS
        if table in names
    }
    if set(columns) == set(COLUMNS) and found > schema:
        raise StoreError(
            f"the store '{path}' has schema {found}, but this version knows {schema}; update evenstep, or give another "
            "file"
        )
    if columns != COLUMNS:
        raise StoreError(
            f"'{path}' is another program's database and no store of trials; it is left as it is: give another file"
        )


def is_same_file(path: Path, identity: tuple[int, int]) -> bool:
    """Say whether a path still leads to the same file."""
    return identity_of(path) == identity


def identity_of(path: Path) -> tuple[int, int]:
    """Return a file's identity, which changes if the file is replaced; zeros if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return status.st_dev, status.st_ino


def rescued(
    base: sqlite3.Connection,
    path: Path,
    tables: str,
    searches: Iterable[tuple[Any, ...]],
    rows: Iterable[tuple[Any, ...]],
) -> Path:
    """Write a store that lost its file to a new one next to it, or in the folder of temporary files; return where.

    The open connection can usually still read the lost file; what this process has written is known in any case.
    """
    for folder in (path.parent, Path(tempfile.gettempdir())):
        if not folder.is_dir():
            continue
        place = _free(folder, path)
        try:
            with contextlib.closing(sqlite3.connect(place, isolation_level=None)) as copy:
                with contextlib.suppress(sqlite3.Error):
                    base.backup(copy)
                copy.executescript(tables)
                copy.executemany("INSERT OR IGNORE INTO searches VALUES (?, ?, ?, ?)", searches)
                copy.executemany("INSERT OR IGNORE INTO copies VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            return place
        except (sqlite3.Error, OSError):
            place.unlink(missing_ok=True)
    raise StoreError(f"the store '{path}' was deleted or replaced, and its trials could not be written anywhere else")


def _free(folder: Path, path: Path) -> Path:
    number = 1
    while (place := folder / f"{path.stem}.rescued-{number}{path.suffix}").exists():
        number += 1
    return place
