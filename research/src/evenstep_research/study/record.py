"""Records of measurements, each with its birth certificate."""

from __future__ import annotations

import json
import math
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


def finite(value: float) -> float | None:
    """Return a number for JSON, which has none that is not finite: None stands for it."""
    return value if math.isfinite(value) else None
