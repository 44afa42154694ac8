"""Check the figures' picture and table, and that the documentation's table is the records'."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread

from evenstep.report.marks import filled
from evenstep_research.cli.figures import recorded_figures
from evenstep_research.report.figures import (
    MARKS,
    at_one_rate,
    draw_figure,
    reproduction,
    write_rows,
)
from evenstep_research.report.transfer import COLOURS, shown
from evenstep_research.study.figures.catalogue import FIGURES, figure_named
from evenstep_research.study.figures.figure_result import RULES, FigureResult
from evenstep_research.study.figures.judged import JUDGED as REGRETS
from research.tests.report.test_transfer import result

MARK, MARK_ONE = "<!-- reproduction table -->", "<!-- reproduction at one rate -->"

ROOT = Path(__file__).parents[3]


@cache
def figure_result() -> FigureResult:
    return FigureResult(figure_named("mlp-depth"), result())


def record() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps({"results": figure_result().to_dict()}, allow_nan=False))
    return made


def test_the_picture_has_a_dot_of_every_rule_and_the_identity(tmp_path: Path) -> None:
    draw_figure(figure_result(), tmp_path / "p.png")
    pixels = imread(tmp_path / "p.png")[..., :3]
    for colour, alpha in (*((COLOURS[name], 0.55) for name in RULES), ("#b3261e", 1.0)):
        wanted = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]) * alpha + 1 - alpha
        assert (np.abs(pixels - wanted).max(axis=2) < 0.02).sum() > 20, colour


def test_the_table_says_what_was_run_and_what_was_not() -> None:
    _, correlations, _, regrets = reproduction({"mlp-depth": record()}).split("\n\n")
    methods = record()["results"]["methods"]
    for table, names, value in ((correlations, RULES, "pearson"), (regrets, REGRETS, "mean_regret")):
        rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
        assert list(rows) == [figure.name for figure in FIGURES]
        cells = rows["mlp-depth"].strip("| ").split(" | ")
        expected = [shown(methods[name][value], interval=True) if name in methods else "–" for name in names]
        assert cells[-len(expected) :] == expected
        assert cells[1:3] == ["MLP chains on CIFAR-10", "3"]
        assert all("not run here" in row for name, row in rows.items() if name != "mlp-depth")
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "| 0.962 |" in correlations
    assert "constant" in regrets.splitlines()[0]


def test_only_at_one_rate_for_all_layers_are_the_papers_rates_called_its_method() -> None:
    assert "the paper's method" in at_one_rate({"mlp-depth-one-rate": record()})
    assert "the paper's method" not in reproduction({"mlp-depth": record()})
    assert "the paper's rates, our layer factors, authors' depth" in reproduction({})


def test_runs_at_one_rate_have_a_table_of_their_own() -> None:
    records = {"mlp-depth": record(), "gelu-cnn-one-rate": record()}
    row, _ = [line for line in at_one_rate(records).splitlines() if line.startswith("| `")]
    assert row.startswith("| `gelu-cnn` | random DAG-CNNs, GELU on CIFAR-10 | 3 | 0.949 |")
    page = filled(f"{MARK}\n<!-- end -->\n{MARK_ONE}\n<!-- end -->\n", MARKS, records)
    assert page == f"{MARK}\n{reproduction(records)}\n<!-- end -->\n{MARK_ONE}\n{at_one_rate(records)}\n<!-- end -->\n"


def test_the_table_is_put_between_its_marks() -> None:
    page = f"before\n{MARK}\nold\n<!-- end -->\nafter\n"
    once = filled(page, MARKS, {})
    assert re.fullmatch(rf"before\n{MARK}\n((\|.*\||[^|]*:|)\n)+<!-- end -->\nafter\n", once)
    assert filled(once, MARKS, {}) == once


def test_the_documentation_shows_the_recorded_runs() -> None:
    page = "docs/reproduction.md"
    text = (ROOT / page).read_text()
    assert MARK in text
    assert filled(text, MARKS, recorded_figures(ROOT / "results")) == text, (
        f"write it anew: evenstep study list --page {page}"
    )


def test_every_row_has_its_spread(tmp_path: Path) -> None:
    write_rows(figure_result(), tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[0].endswith('spread, octaves"')
    assert len(lines) == 1 + len(result().measured)
