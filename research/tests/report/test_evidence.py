"""Check the page of all claims: that it is what the records say, whole, and follows them when they change."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evenstep.errors import InputError
from evenstep_research.cli.evidence import all_records, fill_page
from evenstep_research.report.evidence import SECTIONS, evidence

ROOT = Path(__file__).parents[3]


@cache
def records() -> dict[str, Any]:
    return all_records(ROOT / "results")


def lines(section: str, given: dict[str, Any]) -> dict[str, list[str]]:
    """Return the cells of a section's table by claim."""
    (part,) = [part for part in evidence(given).split("## ") if part.startswith(section)]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")][2:]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize(
    "page", ["docs/evidence.md", "docs/reproduction.md", "docs/nasbench201.md", "docs/transfer.md"]
)
def test_pages_are_what_the_records_say(page: str, tmp_path: Path) -> None:
    copied = tmp_path / "page.md"
    copied.write_text((ROOT / page).read_text())
    fill_page(copied, records())
    assert copied.read_text() == (ROOT / page).read_text(), f"write it anew: evenstep study evidence --page {page}"


def test_every_claim_has_its_figure_n_and_commit_and_every_section_its_command_and_limits() -> None:
    text = evidence(records())
    for section in SECTIONS:
        found = lines(section.title, records())
        assert found, section.title
        for claim, (figure, _, n, _, commits) in found.items():
            assert figure != "–", claim
            assert int(n) > 0, claim
            assert commits != "not known", claim
        assert section.limits in text
        assert f"`{section.command}`" in text
        assert (ROOT / "docs" / section.page).is_file()


def test_figures_are_the_records_own() -> None:
    recorded = json.loads((ROOT / "results" / "nas" / "record.json").read_text())["results"]["comparisons"]
    (gain,) = [
        versus["gain"]
        for versus in recorded[0]["versus"]
        if (versus["reference"], versus["protocol"]) == ("mup", "weighted")
    ]
    cells = lines("NAS-Bench-201", records())["mean gain in points over `mup`, CIFAR-10, 12 epochs"]
    assert cells[0] == f"{gain['gain']['value']:+.2f}"
    assert cells[1] == f"{gain['gain']['low']:+.2f} to {gain['gain']['high']:+.2f}"
    assert f"median {gain['median']:+.2f}" in cells[3]
    full = json.loads((ROOT / "results" / "full" / "record.json").read_text())["rows"]
    above = [row["evenstep"] - row["tuned"] for row in full]
    real = next(iter(lines("Networks that people train", records()).values()))
    assert real[0] == f"{sum(above) / len(above):+.3f}"
    assert f"worst {max(above):+.3f}" in real[3]


def test_a_claim_follows_its_record_and_goes_with_it() -> None:
    changed = copy.deepcopy(records())
    for row in changed["full"]["rows"]:
        row["evenstep"] = row["tuned"] - 0.25
    assert next(iter(lines("Networks that people train", changed).values()))[0] == "-0.250"
    del changed["nas"]
    assert "## NAS-Bench-201\n\nNot measured." in evidence(changed)


def test_a_page_without_a_place_and_a_record_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(InputError, match="has no place for a table"):
        fill_page(tmp_path / "page.md", records())
    with pytest.raises(InputError, match=r"page 'none\.md' cannot be read"):
        fill_page(Path("none.md"), records())
    (tmp_path / "results" / "made").mkdir(parents=True)
    (tmp_path / "results" / "made" / "record.json").write_text("{")
    with pytest.raises(InputError, match=r"record\.json' cannot be read"):
        all_records(tmp_path / "results")
    with pytest.raises(InputError, match="there is no folder 'nowhere'"):
        all_records(Path("nowhere"))
