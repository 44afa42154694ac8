"""Kinds of transformers go through the three lines on tiny data and train; `docs/traced.md` lists them.

    EVENSTEP_RECORD=1 pytest -m exhaustive tests/search/test_transformers_kinds.py

runs all of them, writes `results/three-lines/transformers.json` as each ends, and the table of the page from it.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import pytest
import torch

from evenstep.report.marks import filled
from tests.search.three_lines import MARK, PAGE, RECORD, SHARE, add_to_record, table, trained
from tests.search.transformers_kinds import KINDS, Kind

pytest.importorskip("transformers")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")
QUICK = ("llama", "bert", "vit")


def learnt(line: dict[str, Any]) -> bool:
    """Say whether a loss has clearly fallen: below a share of the untrained one, and of guessing."""
    return math.isfinite(line["before"]) and line["after"] < SHARE * min(line["before"], line["guessing"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in QUICK], ids=lambda kind: kind.name)
def test_a_kind_trains_by_the_three_lines(kind: Kind) -> None:
    line = trained(kind)
    assert learnt(line), line


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_trains_by_the_three_lines(kind: Kind) -> None:
    line = trained(kind)
    assert learnt(line), line
    if os.environ.get("EVENSTEP_RECORD") == "1":
        add_to_record(kind.name, line)


def test_the_record_holds_every_kind_and_all_of_them_learnt() -> None:
    lines = json.loads(RECORD.read_text())["results"]
    assert list(lines) == [kind.name for kind in KINDS]
    assert len(lines) >= 30
    assert all(map(learnt, lines.values()))


def test_the_page_has_the_table_of_the_record() -> None:
    page, record = PAGE.read_text(), json.loads(RECORD.read_text())
    assert filled(page, {MARK: table}, record) == page, "docs/traced.md is out of date: run with EVENSTEP_RECORD=1"


def test_who_guesses_has_not_learnt() -> None:
    guess = math.log(4)
    assert not learnt({"before": 3.0, "after": guess, "guessing": guess})
    assert not learnt({"before": 1.0, "after": 0.8, "guessing": guess})
    assert not learnt({"before": guess, "after": math.nan, "guessing": guess})
    assert learnt({"before": guess, "after": 0.5, "guessing": guess})
