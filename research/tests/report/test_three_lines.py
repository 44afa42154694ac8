"""The page's tables of the three lines, and of the short runs they stand on, are those of their records."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("script", "folder"),
    [
        ("three_lines", "three-lines"),
        ("three_lines", "full"),
        ("three_lines", "million"),
        ("short_runs", "short-runs"),
    ],
)
def test_the_page_has_the_table_of_the_record(monkeypatch: pytest.MonkeyPatch, script: str, folder: str) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    measured = importlib.import_module(script)
    record = json.loads((ROOT / "results" / folder / "record.json").read_text())
    assert measured.table(record) in (ROOT / "docs" / "real.md").read_text()


def test_the_front_page_has_the_table_at_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    measured = importlib.import_module("three_lines")
    record = json.loads((ROOT / "results" / "full" / "record.json").read_text())
    assert measured.table(record) in (ROOT / "README.md").read_text()
