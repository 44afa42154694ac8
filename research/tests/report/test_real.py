"""Check the tables and the picture of the benchmark on networks that people train, whole and cut short."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from evenstep.report.marks import filled
from evenstep_research.report.real import draw_real, glance, markdown, real_marks, shown, write_table
from evenstep_research.study.real.results import COLUMNS, summary

ROOT = Path(__file__).parents[3]


def cell(mean: float | None, *, diverged: int = 0, n: int = 2) -> dict[str, Any]:
    return {"mean": mean, "spread": None if diverged else 0.01, "n": n, "diverged": diverged}


def row(network: str, optimizer: str, *, plan: dict[str, Any] | None, tuned: float = 1.0) -> dict[str, Any]:
    cells: dict[str, Any] = dict.fromkeys(COLUMNS)
    cells |= {"tuned": cell(tuned), "plan": plan, "default": cell(1.2), "prodigy": cell(1.5)}
    multiples = [[0.5, [1.1]], [1.0, [0.9, 1.0]], [2.0, [1.3, None]]] if plan else []
    return {
        "network": network,
        "optimizer": optimizer,
        "steps": 300,
        "guessing": math.log(10),
        "seed_count": 2,
        "cells": cells,
        "tuned_lr": 0.004,
        "best_multiple": None,
        "multiples": multiples,
    }


def record() -> dict[str, Any]:
    rows = [
        row("good", "adam", plan=cell(0.95)),
        row("bad", "adam", plan=cell(None, diverged=1), tuned=1.3),
        row("cut", "momentum", plan=None),
    ]
    origin = {"device": "a GPU", "torch": "2.0", "commit": "abc", "precision": ""}
    results = {"rows": rows, "summary": summary(rows), "missing": ["cut: plan"], "measured_on": [origin]}
    config = {"scale": "full", "seeds": 2, "data": ["images", "text"], "precision": "bfloat16"}
    return {"config": config, "results": results}


def test_the_tables_say_what_the_record_says() -> None:
    text = markdown(record())
    assert "Scale `full`: images; text; bfloat16, 2 seeds (means ± standard deviations)" in text
    assert "a GPU, torch 2.0, commit abc" in text
    assert "### Adam, 300 steps" in text
    assert "| good | 1.000 ± 0.010 (0.004) | 1.200 ± 0.010 | – | – | 1.500 ± 0.010 | 0.950 ± 0.010 | – |" in text
    assert "diverged [1 of 2]" in text
    assert "Not measured yet: cut: plan." in text
    lines = glance(record()).splitlines()
    # A diverged plan counts as guessing: ln 10 - 1.3 = 1.003.
    assert lines[2] == "| adam | 300 | 2 of 2 | +0.476 | +1.003 (bad) | – | 1 of 2 | 1 of 2 | 1 of 2 |"
    assert lines[3] == "| momentum | 300 | 0 of 1 | – | – | – | 0 of 0 | 0 of 0 | 0 of 0 |"


def test_a_cell_with_its_rate() -> None:
    one = row("good", "adam", plan=cell(0.95))
    one["cells"]["best_multiple_loss"], one["best_multiple"] = cell(0.9), 0.25
    assert shown(one, "best_multiple_loss") == "0.900 ± 0.010 (0.25)"
    one["cells"]["plan"] = {"mean": 0.5, "spread": None, "n": 1, "diverged": 0}
    assert shown(one, "plan") == "0.500"


def test_the_table_is_a_file_that_programs_read(tmp_path: Path) -> None:
    write_table(record()["results"]["rows"], tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        good, bad, cut = csv.DictReader(file)
    assert float(good["plan"]) == 0.95
    assert float(bad["plan"]) == math.inf
    assert cut["plan"] == ""
    assert good["mup"] == ""
    assert float(good["tuned_lr"]) == 0.004


@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_picture_has_a_panel_for_every_row(tmp_path: Path, count: int) -> None:
    rows = [record()["results"]["rows"][place % 3] for place in range(count)]
    draw_real(rows, tmp_path / "curves.png")
    height, width = imread(tmp_path / "curves.png").shape[:2]
    assert width == pytest.approx(110 * 2.7 * min(count, 6), abs=2)
    assert height == pytest.approx(110 * 2.3 * math.ceil(count / 6), abs=2)


def test_the_page_has_places_for_the_tables() -> None:
    page = (ROOT / "docs" / "real.md").read_text()
    text = page
    for scale in ("full", "cpu"):
        text = filled(text, real_marks(scale), record())
    assert text.count("| good |") == 2
    assert text.count("+1.003 (bad)") == 2
    assert "Not measured yet.*" not in text


@pytest.mark.parametrize(
    ("scale", "folder", "name"),
    [("full", "real", "docs/real.md"), ("cpu", "real-cpu", "docs/real.md")],
)
def test_the_page_is_of_the_record(scale: str, folder: str, name: str) -> None:
    path = ROOT / "results" / folder / "record.json"
    if not path.exists():
        pytest.skip("not measured yet")
    page = (ROOT / name).read_text()
    assert filled(page, real_marks(scale), json.loads(path.read_text())) == page
