"""A record of which some families are measured again; the others stay, and say of which commit they are."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evenstep.errors import InputError
from evenstep_research.study.transfer.families import families

_SAME = ("scale", "data", "training", "networks")  # what figures of one record have in common


def read_record(path: Path) -> dict[str, Any]:
    """Return the record that a run wrote earlier."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        updated(record, record)  # has all that the new one is put together from
    except (OSError, ValueError) as error:
        reason = str(error)
    except (AttributeError, KeyError, TypeError):
        reason = "it is none of evenstep study transfer"
    else:
        return record
    raise InputError(
        f"'{path}' is not a record to bring up to date ({reason}); leave --update out, or give the folder of a run"
    )


def require_alike(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse to put records together that were not measured in the same way."""
    for name in _SAME:
        if old["config"].get(name) != new["config"].get(name):
            raise InputError(
                f"the record was made with {name} {old['config'].get(name)}, this run with {new['config'].get(name)}; "
                "measure alike, or leave --update out"
            )


def updated(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new record with all families that it lacks and the old one has, in the families' own order."""
    require_alike(old, new)
    then = old["provenance"]["commit"]
    both = {family["family"]: {"commit": then, **family} for family in old["results"]["families"]}
    both |= {family["family"]: family for family in new["results"]["families"]}
    missing = {*old["results"]["left_out"], *new["results"]["left_out"]} - both.keys()
    asked = _ordered({*old["config"]["families"], *new["config"]["families"]})
    precision = {**old["config"]["precision"], **new["config"]["precision"]}
    return {
        **new,
        "config": {**new["config"], "families": asked, "precision": {n: precision[n] for n in asked if n in precision}},
        "results": {
            "families": [both[name] for name in _ordered(both)],
            "left_out": _ordered(missing),
        },
    }


def updated_rows(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table with those of other families that the file has, in the families' own order."""
    new = {row["family"] for row in rows}
    with path.open(newline="") as file:
        kept: list[dict[str, Any]] = [row for row in csv.DictReader(file) if row["family"] not in new]
    place = {name: number for number, name in enumerate(_ordered({row["family"] for row in (*kept, *rows)}))}
    return sorted((*kept, *rows), key=lambda row: place[row["family"]])


def _ordered(names: Iterable[str]) -> list[str]:
    """Return names as families are listed, unknown ones last."""
    place = {family.name: number for number, family in enumerate(families())}
    return sorted(names, key=lambda name: (place.get(name, len(place)), name))
