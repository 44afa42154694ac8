"""Run `evenstep study axes` as a user does: the scale smoke, resumed, and with wrong input."""

import csv
import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread

from evenstep_research.report.axes import axes_marks
from tests.cli.command import Run

BATCH = ("--axes", "batch", "--optimizers", "adam", "--device", "cpu", "--workers", "1")


@pytest.fixture
def study(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the study in a folder of its own, in one thread."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return partial(run, "study", "axes")


@pytest.mark.slow
def test_the_scale_smoke_from_beginning_to_end(study: Run, tmp_path: Path) -> None:
    places = "\n".join(f"<!-- {name} -->\n<!-- end -->" for name in axes_marks("smoke"))
    (tmp_path / "page.md").write_text(f"# Page\n{places}\n")
    printed = study("--device", "cpu", "--workers", "1", "--out", "out", "--page", "page.md")
    assert printed.code == 0, printed.err
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["curves.png", "ledger.jsonl", "record.json", "table.csv"]
    results = json.loads((out / "record.json").read_text())["results"]
    assert results["missing"] == []
    assert len(results["lines"]) == 2 * 3 + 2 * 2
    assert len(results["powers"]["summaries"]) == 2 * 3 * 2
    ledger = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    measured = {(run["network"], run["steps"], run["setting"], run["plan"], run["lr"]): run["loss"] for run in ledger}
    assert len(measured) == len(ledger)
    assert all(run["provenance"]["versions"]["torch"] for run in ledger)
    with (out / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["rule"] for row in rows if row["axis"] == "depth"} >= {"weighted", "completep", "mup", "own"}
    for row in rows:
        assert float(row["loss"]) in measured.values()
        assert float(row["best_loss"]) in measured.values()
        assert float(row["above_own_best"]) == pytest.approx(float(row["loss"]) - float(row["best_loss"]))
        assert 0 <= float(row["above_own_best"]) <= float(row["above_best_of_all"]) + 1e-12
    (muon,) = results["muon"]
    assert all(cell["n"] == 1 for cell in muon["cells"].values())
    assert imread(out / "curves.png").shape[1] > 300
    page = (tmp_path / "page.md").read_text()
    assert "| width: mean regret of `weighted` | 0.0200 |" in page
    assert f"| {muon['network']} | 12 |" in page


def test_a_study_that_was_cut_goes_on_to_the_same_results(study: Run, tmp_path: Path) -> None:
    options = (*BATCH, "--out", "out", "--json")
    whole = study(*options).json()
    path = tmp_path / "out" / "ledger.jsonl"
    ledger = path.read_text()
    assert study(*options, "--quiet").json() == whole
    assert path.read_text() == ledger  # nothing was run again
    kept = ledger.splitlines(keepends=True)
    path.write_text("".join(kept[: len(kept) // 2]) + kept[len(kept) // 2][:40])
    assert study(*options).json() == whole
    lines = [json.loads(line) | {"seconds": 0} for line in path.read_text().splitlines()]
    assert lines == [json.loads(line) | {"seconds": 0} for line in kept]
    shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--scale", "huge"), "choose one of smoke, cpu, full"),
        (("--axes", "colour"), "--axes names 'colour'; the scale 'smoke' has batch, length, width, depth, muon"),
        (("--kinds", "vit"), "--kinds names 'vit'"),
        (("--optimizers", "lion"), "--optimizers names 'lion'"),
        (("--axes", "width", "--optimizers", "momentum"), "no line of the scale"),
        (("--scale", "cpu"), "give its folder as --data"),
        (("--data", "nowhere"), "there is no folder 'nowhere'"),
        (("--workers", "0"), "--workers is 0"),
        (("--minutes", "-1"), "--minutes is -1"),
        (("--page", "none.md"), "none.md"),
    ],
)
def test_wrong_input_is_refused_in_a_line_before_anything_is_trained(
    study: Run, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    done = study(*options, "--out", "out")
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "out" / "ledger.jsonl").exists()
