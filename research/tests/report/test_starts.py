"""The documentation shows the record of starts as it is."""

import json
from pathlib import Path

from starts import NOW, STARTS, cases, marks

from evenstep.init import Conserve
from evenstep.report.marks import filled

ROOT = Path(__file__).parents[3]


def test_the_theory_shows_the_recorded_starts() -> None:
    record = json.loads((ROOT / "results" / "starts" / "record.json").read_text())
    text = (ROOT / "docs" / "theory.md").read_text()
    assert filled(text, marks(), record) == text, "write it anew: python benchmarks/starts.py --page docs/theory.md"
    assert {row["network"] for row in record["results"]["rows"]} == {case.name for case in cases()}


def test_today_s_start_is_the_default() -> None:
    assert STARTS[NOW] == Conserve()
