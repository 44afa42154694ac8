"""Read a search from a file: `evenstep search --json` writes it, and `evenstep plan --base` plans from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep.cli.json_text import require_json
from evenstep.errors import InputError

if TYPE_CHECKING:
    from evenstep.search import LRSearch

HOW = "evenstep search file.py:function --json > base.json"


def load_base(given: str) -> LRSearch | float:
    """Return `--base` as a learning rate, or read the search in the file it names."""
    try:
        return float(given)
    except ValueError:
        pass
    path = Path(given)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"base is '{given}'; give a learning rate, or a file made by: {HOW}") from None
    except OSError as error:
        raise InputError(f"the base '{path}' cannot be read: {error.strerror}; give a file made by: {HOW}") from None
    if content.startswith(b"SQLite format 3\x00"):
        raise InputError(
            f"the base '{path}' is a store, which holds no graph; repeat its search with --store '{path}' --json > "
            "base.json (nothing trains twice), and give base.json"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _no_search(path) from None
    require_json(text, f"the base '{path}'")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise _no_search(path) from None
    if not isinstance(values, dict) or not {"grid", "losses", "best"} <= values.keys():
        raise _no_search(path)
    if "graph" not in values:
        raise InputError(f"the base '{path}' has no graph because an older version wrote it; make it again: {HOW}")
    # Imported here: torch takes seconds, and a base that is a number does not need it.
    from evenstep.search import LRSearch
    from evenstep.search.plain_values import reading

    with reading(f"the base '{path}'", remedy=f"make it again: {HOW}"):
        return LRSearch.from_dict(values)


def _no_search(path: Path) -> InputError:
    return InputError(f"the base '{path}' holds no search; give a file made by: {HOW}")
