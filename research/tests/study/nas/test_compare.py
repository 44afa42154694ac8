"""Check the comparison on made runs with answers known by hand, and on the published table where it is at hand."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.errors import InputError
from evenstep_research.report.nas import COLOURS, draw_comparison, markdown
from evenstep_research.spaces.cells import cell_string, parameter_count
from evenstep_research.study.nas.captured import TrainingResult
from evenstep_research.study.nas.compare import compare, entries_in
from evenstep_research.study.nas.ledger import LedgerRow, SweepSetting
from evenstep_research.study.nas.muparam import MupProtocol
from evenstep_research.study.nas.protocols import (
    BenchmarkProtocol,
    ConstantTunedProtocol,
    NetworkShape,
    PaperProtocol,
    TrainingProtocol,
    WeightedProtocol,
)
from evenstep_research.study.nas.table import NasBench201Table
from evenstep_research.study.nas.training import SweepTraining
from research.tests.report.test_nas import pixels_of
from research.tests.study.nas.real import needs_table, real_table

SETTING = SweepSetting(NetworkShape(), SweepTraining(), "cifar10")
CODES = ("000100", "000200", "000300", "003300")
PUBLISHED = (40.0, 60.0, 70.0, 80.0)
WHERE = {"device": "a GPU", "versions": {"torch": "2.0"}, "commit": "abc", "precision": "bfloat16"}


def entry(code: str, protocol: TrainingProtocol, seed: int, accuracy: float, **changes: Any) -> LedgerRow:
    made = LedgerRow(
        key=f"{code} {protocol.lr} {seed}",
        code=code,
        seed=seed,
        protocol=protocol.to_dict(),
        tuning=False,
        setting=asdict(SETTING),
        outcome=TrainingResult(accuracy, 1.0, (2.0, 1.0), 5.0),
        parameters=parameter_count(code),
        note="as it is",
        provenance=WHERE,
    )
    return replace(made, **changes)


def made_runs() -> list[LedgerRow]:
    """Return two seeds a point apart: the benchmark's as published, weighted's 2 better but for the last, 1 worse."""
    found = []
    for code, value in zip(CODES, PUBLISHED, strict=True):
        gain = -1.0 if code == CODES[-1] else 2.0
        for seed in (0, 1):
            found.append(entry(code, BenchmarkProtocol(), seed, value + seed - 0.5))
            found.append(entry(code, WeightedProtocol(0.4), seed, value + gain + seed - 0.5))
    found.append(entry(CODES[0], ConstantTunedProtocol(0.2), 0, 41.0))
    outcome = TrainingResult(30.0, 1.0, (2.0, 1.5), 1.0)
    found.append(entry("303101", WeightedProtocol(0.8), 0, 0.0, tuning=True, outcome=outcome))
    return found


def made_table(**changes: Sequence[Any]) -> NasBench201Table:
    rows: dict[str, Sequence[Any]] = {
        "arch_str": [cell_string(code) for code in CODES],
        "test12_cifar10": [value - 0.5 for value in PUBLISHED],
        "val12_cifar10": list(PUBLISHED),
        "params_M_cifar10": [parameter_count(code) / 1e6 for code in CODES],
    }
    return NasBench201Table.from_rows({**rows, **changes})


def versus(values: Mapping[str, Any], reference: str, protocol: str) -> dict[str, Any]:
    (found,) = [one for one in values["versus"] if (one["reference"], one["protocol"]) == (reference, protocol)]
    result: dict[str, Any] = found
    return result


def test_gains_gaps_and_taus_known_by_hand() -> None:
    (found,) = compare(made_runs(), made_table())
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    means = {name: one["mean"] for name, one in values["protocols"].items()}
    assert means == pytest.approx({"benchmark": 62.5, "constant-tuned": 41.0, "weighted": 63.75})
    assert list(means) == ["benchmark", "constant-tuned", "weighted"]
    against = versus(values, "benchmark", "weighted")
    assert against["gain"]["gain"]["value"] == pytest.approx(1.25)
    assert (against["gain"]["better"], against["gain"]["worse"], against["n"]) == (3, 1, 4)
    assert (against["gain"]["median"], against["gain"]["largest"]) == (2.0, 2.0)  # 2, 2, 2 and -1
    assert against["ranked_by"] == "the table"
    assert against["tau"][0]["tau"]["value"] == pytest.approx(1.0)  # the order stays
    assert against["gaps"]["benchmark"]["largest"] == pytest.approx(40.0)
    assert against["gaps"]["weighted"]["largest"] == pytest.approx(37.0)
    assert against["agreement"][0]["within"] == pytest.approx({"benchmark": 1.0, "weighted": 1.0})
    tuned = versus(values, "constant-tuned", "weighted")
    assert tuned["gain"]["gain"]["value"] == pytest.approx(1.0)
    assert tuned["n"] == 1
    assert "tau" not in tuned
    pairs = [(one["reference"], one["protocol"]) for one in values["versus"]]
    assert pairs == [("benchmark", "constant-tuned"), ("benchmark", "weighted"), ("constant-tuned", "weighted")]
    assert values["runs"][0] == {
        "code": CODES[0],
        "published": 39.5,
        "benchmark": [39.5, 40.5],
        "constant-tuned": [41.0],
        "weighted": [41.5, 42.5],
    }
    assert values["measured_on"] == [{"device": "a GPU", "torch": "2.0", "commit": "abc", "precision": "bfloat16"}]


def test_agreement_with_the_table_known_by_hand() -> None:
    (found,) = compare(made_runs(), made_table())
    table = found.to_dict()["table"]
    assert table["benchmark"]["n"] == 4
    assert table["benchmark"]["mean_absolute_difference"] == pytest.approx(0.5)
    assert table["benchmark"]["kendall"] == pytest.approx(1.0)
    assert table["weighted"]["mean_absolute_difference"] == pytest.approx((3 * 2.5 + 0.5) / 4)
    assert table["weighted"]["mean_difference"] == pytest.approx((3 * 2.5 - 0.5) / 4)
    assert table["weighted"]["searches"]["best_after"] == CODES[-1]
    standings = table["weighted"]["searches"]["standings"]
    assert {one["algorithm"] for one in standings} == {"random search", "regularised evolution"}
    assert "searches" not in table["constant-tuned"]
    assert found.to_dict()["parameters"] == {"n": 4, "equal": 4, "different": {}}
    wrong = made_table(params_M_cifar10=[1.0, *(parameter_count(code) / 1e6 for code in CODES[1:])])
    counted = compare(made_runs(), wrong)[0].to_dict()["parameters"]
    assert (counted["n"], counted["equal"]) == (4, 3)
    assert counted["different"] == {CODES[0]: [parameter_count(CODES[0]), 1_000_000]}


def test_a_protocol_that_reverses_the_order_reverses_tau_and_ranks() -> None:
    runs = [entry(code, BenchmarkProtocol(), 0, value) for code, value in zip(CODES, PUBLISHED, strict=True)]
    runs += [entry(code, WeightedProtocol(1.0), 0, 100 - value) for code, value in zip(CODES, PUBLISHED, strict=True)]
    values = compare(runs, made_table())[0].to_dict()
    assert versus(values, "benchmark", "weighted")["tau"][0]["tau"]["value"] == pytest.approx(-1.0)
    assert values["table"]["weighted"]["searches"]["tau"] == pytest.approx(-1.0)
    assert values["table"]["weighted"]["searches"]["best_after"] == CODES[0]


def test_runs_that_searched_a_rate_are_told_apart() -> None:
    (found,) = compare(made_runs())
    assert "303101" not in found.codes
    (tuned,) = found.to_dict()["tuned"]
    assert (tuned["protocol"], tuned["base"], tuned["losses"]) == ("weighted", "303101", [[0.8, 1.5]])
    with pytest.raises(InputError, match="hold no run to compare"):
        compare([one for one in made_runs() if one.tuning])


def test_settings_are_compared_apart_and_rates_of_one_protocol_too() -> None:
    longer = asdict(replace(SETTING, training=SweepTraining(200)))
    runs = [*made_runs(), entry(CODES[0], BenchmarkProtocol(), 0, 55.0, setting=longer)]
    runs.append(entry(CODES[0], WeightedProtocol(0.5), 0, 45.0))
    short, long = compare(runs, made_table())
    assert (short.setting["training"]["epochs"], long.setting["training"]["epochs"]) == (12, 200)
    assert list(short.results) == ["benchmark", "constant-tuned", "weighted 0.4", "weighted 0.5"]
    assert long.published == {}  # the made table has no such column
    assert long.to_dict()["table"] == {}


def test_another_shape_has_no_figures_in_the_table() -> None:
    small = asdict(replace(SETTING, shape=NetworkShape(channels=4)))
    (found,) = compare([replace(one, setting=small) for one in made_runs()], made_table())
    assert found.published == {}
    assert found.to_dict()["versus"][1]["ranked_by"] == "the reference"


def test_ledgers_of_a_folder_are_read_together(tmp_path: Path) -> None:
    runs = made_runs()
    for name, part in (("a/ledger.jsonl", runs[:6]), ("b/ledger.jsonl", runs[4:])):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("".join(json.dumps(one.to_dict()) + "\n" for one in part))
    found = entries_in(tmp_path)
    assert len(found) == len(runs)
    assert entries_in(tmp_path / "a" / "ledger.jsonl") == runs[:6]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is no ledger in"):
        entries_in(tmp_path / "empty")


def test_every_table_of_the_page_is_whole() -> None:
    longer = asdict(replace(SETTING, training=SweepTraining(200)))
    runs = [*made_runs(), entry(CODES[0], BenchmarkProtocol(), 0, 55.0, setting=longer)]
    for table in (None, made_table()):
        record = {"results": {"comparisons": [one.to_dict() for one in compare(runs, table)]}}
        text = markdown(json.loads(json.dumps(record, allow_nan=False)))
        for block in re.findall(r"(?:^\|.*\|\n?)+", text, flags=re.MULTILINE):
            assert len({line.count("|") for line in block.strip().splitlines()}) == 1, block
        assert "| CIFAR-10 | 4 | 1 | not run | not run | 4 | 1 | not run |" in text
        assert "### CIFAR-10, 200 epochs" in text
        means = re.search(r"\| `weighted` \| `benchmark` \| 4 \| ([\d.]+) / ([\d.]+) \| \+1\.25 \(", text)
        assert means is not None
        assert float(means[1]) - float(means[2]) == pytest.approx(1.25)
        assert ("Parameter counts equal the table's for 4 of 4 cells." in text) == (table is not None)
    assert "| `weighted` | 4 | 2.00 | +1.75 | 1.00 (4) |" in text
    assert "| `weighted` | `benchmark` | the table | 1.00 (4) | – | – | – | 1.00 (4) | 1.00 (4) |" in text


def test_pictures_show_every_protocol_of_two_cells_and_more(tmp_path: Path) -> None:
    (found,) = compare(made_runs(), made_table())
    (alone,) = compare([one for one in made_runs() if one.protocol["name"] != "weighted"], made_table())
    shown, without = (draw_comparison(one, tmp_path, stem=str(place)) for place, one in enumerate((found, alone)))
    assert [path.name for path in shown] == ["0-accuracies.png", "0-tau.png", "0-gaps.png"]
    for one, other, alpha in zip(shown, without, (0.75, 0.75, 1.0), strict=True):
        pixels = [pixels_of(path, COLOURS["weighted"], alpha=alpha) for path in (one, other)]
        assert pixels[0] > pixels[1] + 20, one.name
    (bare,) = compare([one for one in made_runs() if one.code == CODES[0]])
    assert all(path.exists() for path in draw_comparison(bare, tmp_path, stem="bare"))


@needs_table
def test_the_published_figures_agree_with_themselves() -> None:
    table = real_table()
    known = table.by_code("cifar10", epochs=12)
    codes = sorted(set(known) - table.miscounted())[::600]
    runs = [entry(code, BenchmarkProtocol(), 0, known[code]) for code in codes]
    values = compare(runs, table)[0].to_dict()
    assert values["table"]["benchmark"]["mean_absolute_difference"] == 0
    assert values["table"]["benchmark"]["kendall"] == pytest.approx(1.0)
    assert values["parameters"]["equal"] == values["parameters"]["n"] == len(codes) >= 20
    assert values["table"]["benchmark"]["tau"][0]["n"] == len(codes)
    assert np.isfinite(values["table"]["benchmark"]["gain"]["ours"])


def test_ours_is_compared_with_mup_and_the_papers_method_too() -> None:
    runs = made_runs()
    for code, value in zip(CODES, PUBLISHED, strict=True):
        runs.append(entry(code, PaperProtocol(0.4), 0, value - 3.0))
        runs.append(entry(code, MupProtocol(), 0, value - 4.0))
    values = compare(runs, made_table())[0].to_dict()
    against = versus(values, "mup", "weighted")["gain"]
    assert against["gain"]["value"] == pytest.approx(1.25 + 4.0)
    assert against["better"] == 4
    assert versus(values, "paper", "weighted")["gain"]["gain"]["value"] == pytest.approx(1.25 + 3.0)
    assert versus(values, "mup", "paper")["gain"]["median"] == pytest.approx(1.0)
