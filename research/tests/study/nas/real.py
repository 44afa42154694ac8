"""The published table, where it is at hand: in the folder EVENSTEP_NASBENCH201, or in `shared` beside the checkout."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from evenstep_research.study.nas.table import NasBench201Table

FOLDER = Path(os.environ.get("EVENSTEP_NASBENCH201", Path(__file__).parents[5] / "shared" / "data" / "nasbench201"))
needs_table = pytest.mark.skipif(
    not (FOLDER / "table.parquet").is_file(),
    reason="the table of NAS-Bench-201 is not here; set EVENSTEP_NASBENCH201 to the folder with table.parquet",
)


@cache
def real_table() -> NasBench201Table:
    return NasBench201Table.load(FOLDER)
