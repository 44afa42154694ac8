"""Records of measurements, each with its birth certificate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evenstep.search.provenance import provenance


def write_record(path: Path, *, config: dict[str, Any], results: dict[str, Any]) -> None:
    """Write a record: what was asked, what came out, and where."""
    record = {"config": config, "results": results, "provenance": provenance()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
