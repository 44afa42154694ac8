"""Read a page's parts from files: JSON that commands print, records, and stores of finished trials."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evenstep.errors import DamageError, EvenstepError, InputError
from evenstep.graph import Edge, Graph, Parameter, Vertex
from evenstep.planning import Plan, any_digits
from evenstep.planning.plan import FORMAT
from evenstep.report.page.parts import CheckPart, Part, PlanPart, SearchPart, StudyPart
from evenstep.report.page.sections import section
from evenstep.search import Check, LRSearch, Store
from evenstep.search.result import chosen
from evenstep.search.store import StoreRow

KNOWN_FILES = (
    "a plan (plan.to_json(), or `evenstep plan --json`), a search (`evenstep search --json`), a store "
    "(`evenstep search --store`), a check (`evenstep check --json`), or a study (record.json of `evenstep study`)"
)
_SQLITE = b"SQLite format 3\x00"
_MANY = 20  # most searches of a store that one page shows


def read(path: Path, *, run: str = "") -> tuple[Part, ...]:
    """Return what a file holds, named after it; `run` is the beginning of a hash of a search in a store."""
    try:
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                return _from_store(path, run)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"there is no file '{path}'; give one that holds {KNOWN_FILES}") from None
    except UnicodeDecodeError:
        raise InputError(f"'{path}' is of another kind; give a file that holds {KNOWN_FILES}") from None
    except (OSError, ValueError) as error:  # the latter for a name with a zero byte
        raise InputError(f"'{path}' cannot be read: {getattr(error, 'strerror', error)}; give another file") from None
    part = part_of_text(text, name=path.stem, where=f"'{path}'")
    if isinstance(part, StudyPart):
        return (_with_rows(part, path.with_name("table.csv")),)
    return (part,)


def part_of_text(text: str, *, name: str, where: str) -> Part:
    """Return what a JSON text holds; errors call it `where`."""
    try:
        with any_digits():
            values = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{where} is of another kind; give a file that holds {KNOWN_FILES}") from None
    part = part_of_values(values, name=name, where=where) if isinstance(values, dict) else None
    if part is None:
        raise InputError(f"{where} is of another kind; give a file that holds {KNOWN_FILES}")
    return part


def part_of_values(values: Mapping[str, Any], *, name: str, where: str) -> Part | None:
    """Return the part that plain values describe, or None if they are of no known kind."""
    remedy = "write it again with the command that made it"
    try:
        part = _part(values, name)
        if part is not None:
            section(part, 0)  # values that cannot be shown are damaged; the error names them here
        return part
    except DamageError as error:
        raise DamageError(where, error.cause, remedy) from None
    except EvenstepError as error:
        raise InputError(f"{where}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DamageError(where, f"{type(error).__name__}: {error}", remedy) from None


def _part(values: Mapping[str, Any], name: str) -> Part | None:
    if values.get("format") == FORMAT:
        return _plan(values, name)
    if {"grid", "losses", "best"} <= values.keys():
        return _search(values, name)
    if {"verdict", "trends", "networks"} <= values.keys():
        notes = [f"{key} {values[key]}" for key in ("rule", "init") if key in values]
        return CheckPart(name, Check.from_dict(values), str(values.get("over", "network")), ", ".join(notes))
    results = values.get("results", values)
    if isinstance(results, Mapping) and {"families", "left_out"} <= results.keys():
        return _study(values, results, name)
    return None


def _search(values: Mapping[str, Any], name: str) -> SearchPart:
    """Return a search, even from an older version without a graph or with a different one."""
    if "graph" in values:
        with suppress(EvenstepError, LookupError, TypeError, ValueError):
            return SearchPart(name, LRSearch.from_dict(values))
    return SearchPart(name, LRSearch.from_dict({**values, "graph": _stand_in().to_dict()}), has_graph=False)


def _plan(values: Mapping[str, Any], name: str) -> PlanPart:
    title = str(values.get("code", "")) or name
    own = {key: value for key, value in values.items() if key != "code"}
    if "graph" in values:
        return PlanPart(title, Plan.from_dict(own))
    # A graph with only the same parameters stands in, so that the plan is checked like any other.
    listed = [Parameter(p["name"], p.get("role", "weight"), tuple(p.get("shape", ()))) for p in values["parameters"]]
    return PlanPart(title, Plan.from_dict({**own, "graph": _stand_in(listed).to_dict()}), has_graph=False)


def _stand_in(parameters: Sequence[Parameter] = ()) -> Graph:
    ends = (Vertex("input"), Vertex("output"))
    return Graph.build(ends, [Edge("input", "output")], inputs=["input"], outputs=["output"], parameters=parameters)


def _study(values: Mapping[str, Any], results: Mapping[str, Any], name: str) -> StudyPart:
    families = tuple(results["families"])
    config, provenance = values.get("config", {}), values.get("provenance", {})
    return StudyPart(name, families, tuple(results["left_out"]), (), config, provenance)


def _with_rows(part: StudyPart, table: Path) -> StudyPart:
    """Add every network's rates, which a study writes into a table next to its record."""
    if not table.is_file():
        return part
    try:
        with table.open(newline="", encoding="utf-8") as file:
            rows = [{key: _cell(key, value) for key, value in row.items()} for row in csv.DictReader(file)]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"'{table}' is damaged ({error}); run the study again, or move the file away") from None
    return StudyPart(part.name, part.families, part.left_out, tuple(rows), part.config, part.provenance)


def _cell(key: str | None, text: Any) -> Any:
    if isinstance(key, str) and (key == "true_lr" or key.endswith(" lr")):
        return value if text and 0 < (value := float(text)) < math.inf else None
    return text


def _from_store(path: Path, run: str) -> tuple[SearchPart, ...]:
    store = Store(path, read_only=True)
    try:
        searches = [search for search in store.searches() if search["config"].startswith(run) and search["copies"]]
        if not searches:
            beginning = f" that begins with '{run}'" if run else ""
            raise InputError(
                f"the store '{path}' has no finished trial of a search{beginning}; see `evenstep runs list`"
            )
        if len(searches) > _MANY:
            raise InputError(
                f"the store '{path}' has {len(searches)} searches, too many for one page; choose one with --run and "
                "the beginning of its hash, which `evenstep runs list` shows"
            )
        return tuple(_stored(search, store.rows(search["config"]), path.stem) for search in searches)
    finally:
        store.close()


def _stored(search: Mapping[str, Any], rows: Sequence[StoreRow], name: str) -> SearchPart:
    """Return a search from its finished trials, without rates whose seeds are not all finished."""
    by_rate: dict[float, list[float]] = {}
    for row in rows:
        by_rate.setdefault(row.lr, []).append(row.loss)
    seeds = max(map(len, by_rate.values()))
    whole = {rate: tuple(losses) for rate, losses in sorted(by_rate.items()) if len(losses) == seeds}
    recipe = search["description"].get("recipe", {})
    recipe = recipe if isinstance(recipe, Mapping) else {}
    known = [
        f"{recipe[key]}" if key == "optimizer" else f"batch {recipe[key]}"
        for key in ("optimizer", "batch_size")
        if key in recipe
    ]
    if len(whole) < len(by_rate):
        known.append(f"{len(by_rate) - len(whole)} learning rates are not finished and left out")
    note = ", ".join([f"run {search['config'][:12]}", *known])
    return SearchPart(name, chosen(tuple(whole), tuple(whole.values()), _stand_in()), note, has_graph=False)
