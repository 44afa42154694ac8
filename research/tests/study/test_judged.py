"""Judge recorded figures again: against figures worked out here from made-up losses, and against the real records."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.errors import InputError
from evenstep_research.study.figures.judged import JUDGED, judged

RESULTS = Path(__file__).parents[3] / "results"
METHODS = ("constant", "paths", "paths+2", "weighted")
BASE_LR = 0.5


def parabola(best: float, lr: float) -> float:
    return 1.5 + 0.05 * math.log2(lr / best) ** 2


def write(folder: Path, codes: dict[str, tuple[str, float]], *, study: str = "mlp-depth") -> None:
    """Write a record of networks whose losses are parabolas around their best rates, two seeds alike."""
    rates = [2 ** (position / 4) for position in range(-24, 9)]
    lines, rows = [], []
    for name, (code, best) in {"base": ("2", BASE_LR), **codes}.items():
        curve = [[lr, [parabola(best, lr)] * 2] for lr in rates]
        lines.append({"architecture": {"name": name, "code": code, "kernel_size": 3}, "curve": curve})
        row: dict[str, Any] = {"name": name, "code": code, "kernel_size": 3, "true_lr": best}
        for place, method in enumerate(METHODS):
            row |= {f"{method} lr": best / 2**place, f"{method} loss": parabola(best, best / 2**place)}
        rows.append(row)
    config = {"training": {"seeds": 2}}
    results = {"study": study, "base_lr": BASE_LR, "n": len(codes), "setting": {"classes": 10}, "methods": {}}
    (folder / "record.json").write_text(json.dumps({"config": config, "results": results}))
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[-1]))
        writer.writeheader()
        writer.writerows(rows[1:])


def test_chains_named_by_activations_are_counted_by_layers(tmp_path: Path) -> None:
    """The base, whose every pick is its own rate, comes in; the longest chain goes out."""
    bests = (0.4, 0.25, 0.125)
    write(tmp_path, {f"L = {3 + i}": ("2" + "_02" * i + "_002", best) for i, best in enumerate(bests)})
    results = judged(tmp_path)["results"]
    assert results["n"] == 3
    for place, method in enumerate(METHODS):
        true, picked = [BASE_LR, *bests[:-1]], [BASE_LR, *(best / 2**place for best in bests[:-1])]
        r = results["methods"][method]["pearson"]["value"]
        assert r == pytest.approx(np.corrcoef(true, picked)[0, 1])
        lowest = [min(parabola(best, 2 ** (k / 4)) for k in range(-24, 9)) for best in true]
        losses = [parabola(best, lr) for best, lr in zip(true, picked, strict=True)]
        regret = np.mean(np.array(losses) - lowest)
        assert results["methods"][method]["mean_regret"]["value"] == pytest.approx(regret, abs=1e-12)


def test_the_authors_code_counts_three_for_the_base_and_four_for_the_same_network(tmp_path: Path) -> None:
    write(tmp_path, {"L = 3": ("2", BASE_LR), "L = 4": ("2_02", 0.25)})
    results = judged(tmp_path)["results"]
    assert results["n"] == 2  # the base is there: nothing is added
    rates = [math.sqrt(27 / 64) * best / 4 for best in (BASE_LR, 0.25)]
    losses = [parabola(best, lr) - 1.5 for best, lr in zip((BASE_LR, 0.25), rates, strict=True)]
    authors = results["methods"]["authors"]["mean_regret"]["value"]
    assert authors == pytest.approx(np.mean(losses), abs=1e-3)  # read between quarter octaves
    assert authors > results["methods"]["paths+2"]["mean_regret"]["value"]


def test_records_of_random_networks_keep_their_figures() -> None:
    """What was trained is not changed by judging it again."""
    for study in ("mlp-topology", "cnn", "gelu-topology-one-rate"):
        recorded = json.loads((RESULTS / study / "record.json").read_text())["results"]
        again = judged(RESULTS / study)["results"]
        assert set(again["methods"]) == set(JUDGED)
        assert again["n"] == recorded["n"]
        for method in METHODS:
            for value in ("pearson", "mean_regret"):
                before, after = recorded["methods"][method][value], again["methods"][method][value]
                assert after == {key: pytest.approx(figure) for key, figure in before.items()}


def test_at_one_rate_on_gelu_chains_the_bases_rate_loses_less_than_ours() -> None:
    """The page says so; if a new record says otherwise, the page must change."""
    methods = judged(RESULTS / "gelu-depth-one-rate")["results"]["methods"]
    assert methods["constant"]["mean_regret"]["value"] < methods["weighted"]["mean_regret"]["value"]
    assert (
        "On GELU chains it loses more than keeping the base's rate"
        in (RESULTS.parent / "docs" / "reproduction.md").read_text()
    )


def test_a_record_that_is_not_whole_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"L = 3": ("2_02", 0.25)})
    (tmp_path / "table.csv").unlink()
    with pytest.raises(InputError, match=r"has no file 'table\.csv'; run it anew"):
        judged(tmp_path)
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        judged(tmp_path)
