"""Records of measurements, each with its birth certificate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.search.provenance import provenance


def as_record(*, config: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """Return a record: what was asked, what came out, and where."""
    return {"config": config, "results": results, "provenance": provenance()}


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record, its folder made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


def write_record(path: Path, *, config: dict[str, Any], results: dict[str, Any]) -> None:
    """Write a record of what was asked and what came out, with where."""
    write(path, as_record(config=config, results=results))


@dataclass(frozen=True, order=True, slots=True)
class Origin:
    """Where a measurement was made; an empty text stands for what is not known."""

    device: str
    torch: str
    commit: str
    precision: str

    @classmethod
    def of(cls, provenance: dict[str, Any]) -> Origin:
        """Return the origin that a provenance tells."""
        known = (
            provenance.get("device"),
            provenance.get("versions", {}).get("torch"),
            provenance.get("commit"),
            provenance.get("precision"),
        )
        return cls(*(value or "" for value in known))
