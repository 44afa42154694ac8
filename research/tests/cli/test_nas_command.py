"""Run `evenstep nas` as a user does: sample a made table, train on digits, compare, and give wrong input."""

import json
import re
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from evenstep.report.marks import filled
from evenstep_research.report.nas import MARKS, gains, markdown
from evenstep_research.spaces.cells import all_cells, cell_string, is_live
from tests.cli.command import Run

torch.set_num_threads(1)
ROOT = Path(__file__).parents[3]
CODES = [code for code in list(all_cells())[31::997] if is_live(code)]
PAGE = "# Page\n<!-- nas table -->\n<!-- end -->\n"


@pytest.fixture
def nas(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the commands in a folder of their own, with a made table in it."""
    monkeypatch.chdir(tmp_path)
    columns = {
        "arch_str": [cell_string(code) for code in CODES],
        "test12_cifar10": [50.0 + place for place in range(len(CODES))],
    }
    parquet.write_table(pa.table(columns), tmp_path / "table.parquet")
    return partial(run, "nas")


def test_a_sample_is_spread_and_follows_its_seed(nas: Run) -> None:
    found = nas("sample", ".", "--count", "5", "--json").json()
    assert len(found["codes"]) == 5
    assert found["accuracies"] == sorted(found["accuracies"])
    assert found == nas("sample", ".", "--count", "5", "--json").json()
    printed = nas("sample", "table.parquet", "--count", "5").out
    assert [line.split()[0] for line in printed.splitlines()] == found["codes"]
    assert "there are no codes" in nas("sample", ".", "--count", "2", "--of", "-").err  # nothing on standard input
    some = nas("sample", ".", "--count", "2", "--of", "-", "--json", given=printed).json()
    assert len(some["codes"]) == 2
    assert set(some["codes"]) < set(found["codes"])


FEW = ("--scale", "smoke", "--epochs", "1", "--seeds", "2", "--device", "cpu", "--out", "out")


def test_a_small_sweep_is_trained_resumed_and_compared(nas: Run, tmp_path: Path) -> None:
    rates = ("--base-lr", "0.2", "--protocols", "benchmark,constant-tuned,weighted", "--codes", "-")
    trained = nas("train", *FEW, *rates, given="000300\n303101\n333000\n101001\n")
    assert trained.code == 0, trained.err
    assert "[18/18]" in trained.err
    assert "benchmark: mean accuracy" in trained.out
    assert "333000: skipped, no live path leads through it" in trained.out
    ledger = (tmp_path / "out" / "ledger.jsonl").read_text()
    again = nas("train", *FEW, *rates, "--json", given="000300\n303101\n101001\n")
    assert len(again.json()["runs"]) == 18
    assert (tmp_path / "out" / "ledger.jsonl").read_text() == ledger

    (tmp_path / "page.md").write_text(PAGE)
    shown = nas("compare", "out", "--table", ".", "--page", "page.md")
    assert shown.code == 0, shown.err
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"ledger.jsonl", "record.json", *(f"digits-1-{kind}.png" for kind in ("accuracies", "tau", "gaps"))}
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert record["provenance"]["versions"]["torch"]
    assert shown.out.strip() == markdown(record)
    assert (tmp_path / "page.md").read_text() == filled(PAGE, MARKS, record)
    (comparison,) = nas("compare", "out", "--json").json()["comparisons"]
    runs = [json.loads(line) for line in ledger.splitlines()]
    for name, own in comparison["protocols"].items():
        accuracies = [one["outcome"]["accuracy"] for one in runs if one["protocol"]["name"] == name]
        assert own["mean"] == pytest.approx(sum(accuracies) / 6)
        assert re.search(rf"^\| `{name}` \| 3 \| 2 \| .* \| {own['mean']:.2f} \| 0 \|$", shown.out, flags=re.MULTILINE)
    assert f"| CIFAR-100 |{' not run |' * 10}" in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train",), "--data is missing"),
        (("train", "--data", "nowhere"), "there is no folder 'nowhere'"),
        (("train", "--scale", "smoke", "--codes", "nowhere"), "the codes 'nowhere' cannot be read"),
        (("train", "--scale", "smoke", "--protocols", "fast"), "there is no protocol 'fast'"),
        (("train", "--scale", "smoke", "--out", "table.parquet/in"), "cannot be made"),
        (("train", "--scale", "smoke", "--base-lr", "much"), "--base-lr is 'much'"),
        (("compare", "nowhere"), "there is no folder 'nowhere'"),
        (("compare", "."), "there is no ledger in"),
        (("compare", ".", "--page", "nowhere.md"), "the page 'nowhere.md' cannot be written"),
        (("sample", "nowhere"), "holds no table of NAS-Bench-201"),
        (("sample", ".", "--data-set", "cifar100"), "no accuracies of cifar100"),
        (("sample", ".", "--count", "0"), "count is 0"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(nas: Run, arguments: tuple[str, ...], message: str) -> None:
    done = nas(*arguments)
    assert done.code == 2
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert len(lines) == 1, done.err
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert not done.out.strip()


def test_data_sets_that_were_not_run_say_so() -> None:
    assert markdown({"results": {"comparisons": []}}).count("not run") == 3 * 10  # protocols, at 12 and 200 epochs


def test_the_page_says_that_the_papers_protocol_was_not_run_at_200_epochs() -> None:
    record = json.loads((ROOT / "results" / "nas" / "record.json").read_text())
    head, _, row = markdown(record).splitlines()[:3]
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert cells["`paper`, 200 epochs"] == "not run"
    assert "`paper` at 200 epochs\n  was not run" in (ROOT / "docs" / "nasbench201.md").read_text()


def test_the_documentation_shows_the_recorded_run() -> None:
    page = "docs/nasbench201.md"
    text = (ROOT / page).read_text()
    record = json.loads((ROOT / "results" / "nas" / "record.json").read_text())
    assert filled(text, MARKS, record) == text, f"write it anew: evenstep nas compare results/nas ... --page {page}"


def test_gains_at_a_glance_are_those_of_the_tables() -> None:
    record = json.loads((ROOT / "results" / "nas" / "record.json").read_text())
    whole = markdown(record)
    rows = gains(record).splitlines()[2:]
    assert len(rows) == sum("gain" in versus for one in record["results"]["comparisons"] for versus in one["versus"])
    for row in rows:
        own = row.removeprefix("| ").partition(" | ")[2].removesuffix(" |")
        assert own in whole
