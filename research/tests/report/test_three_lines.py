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


@pytest.mark.parametrize(("scale", "folder"), [("cpu", "three-lines"), ("full", "full")])
def test_the_front_page_says_what_the_records_say(monkeypatch: pytest.MonkeyPatch, scale: str, folder: str) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    measured = importlib.import_module("three_lines")
    record = json.loads((ROOT / "results" / folder / "record.json").read_text())
    readme, name = (ROOT / "README.md").read_text(), f"{'full' if scale == 'full' else 'three lines'} front"
    assert f"<!-- {name} -->\n{measured.MARKS[scale][name](record)}\n<!-- end -->" in readme


def test_a_front_page_names_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    measured = importlib.import_module("three_lines")
    rows = [
        {"network": name, "optimizer": "adam", "steps": 1500, "seeds": 1, "tuned": 1.0, "evenstep": loss}
        for name, loss in (("a", 0.5), ("b", 1.02), ("c", 1.25), ("d", None))
    ]
    words = measured.front_words({"rows": rows, "provenance": {"device": "GPU"}})
    assert "0.077 nats below the tuned rate on average over 3 rows" in words
    assert words.endswith("more than 0.03 above it on 1: c by adam (+0.250).")


def test_the_limits_say_how_many_spoilt_plans_came_back() -> None:
    results = json.loads((ROOT / "results" / "spoilt-plans" / "record.json").read_text())["results"]
    away = [abs(octaves) for row in results["rows"] for octaves in row["away"].values()]
    assert (results["refinements"], results["within_half_an_octave"]) == (len(away), sum(o <= 0.5 for o in away))
    said = f"{results['within_half_an_octave']} of {results['refinements']} back to\n  within half an octave"
    assert said in (ROOT / "docs" / "limits.md").read_text()
