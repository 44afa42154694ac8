"""A search as a file: what `evenstep search --json` prints, and `evenstep plan --base` goes on from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.cli.json_text import require_json
from evenstep.errors import EvenstepError, InputError
from evenstep.graph import Graph
from evenstep.rules import OPTIMIZERS

if TYPE_CHECKING:
    from evenstep.search import LRSearch

HOW = "evenstep search file.py:function --json > base.json"


def search_to_dict(found: LRSearch) -> dict[str, Any]:
    """Return a search as plain values, all that a plan needs of it; a loss that diverged is None."""
    losses = [[loss if math.isfinite(loss) else None for loss in seeds] for seeds in found.losses]
    fields: dict[str, Any] = {"best": found.best, "bracket": found.bracket, "estimate": found.estimate}
    fields |= {"interval": found.interval, "status": found.status, "grid": found.grid, "losses": losses}
    return fields | {"rule": found.rule, "optimizer": found.optimizer, "graph": found.graph.to_dict()}


def load_base(given: str) -> LRSearch | float:
    """Return the learning rate that `--base` gives, or the search in the file that it names."""
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
            f"the base '{path}' is a store, which holds no graph; ask its search again, with --store '{path}' --json > "
            "base.json (nothing is trained twice), and give base.json"
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
        raise InputError(f"the base '{path}' has no graph, as older versions wrote it; make it again: {HOW}")
    return _search(values, path)


def _no_search(path: Path) -> InputError:
    return InputError(f"the base '{path}' holds no search; give a file made by: {HOW}")


def _search(values: Mapping[str, Any], path: Path) -> LRSearch:
    # Loaded here: torch takes seconds, and a base that is a number does without.
    from evenstep.report.page.parts import SearchPart
    from evenstep.report.page.reading import part_of_values

    part = part_of_values(values, name=path.stem, where=f"the base '{path}'")
    if not isinstance(part, SearchPart):
        raise _no_search(path)
    rule, optimizer = values.get("rule"), values.get("optimizer")
    try:
        if not isinstance(rule, str | None) or optimizer not in (None, *OPTIMIZERS):
            raise ValueError(f"rule {rule!r}, optimizer {optimizer!r}")
        return replace(part.search, graph=Graph.from_dict(values["graph"]), rule=rule, optimizer=optimizer)
    except (LookupError, TypeError, ValueError, AttributeError, EvenstepError) as error:
        raise InputError(
            f"the base '{path}' is damaged ({type(error).__name__}: {error}); make it again: {HOW}"
        ) from None
