"""Run `evenstep demo` once, small, as a user does."""

import math
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from evenstep.study.demo import NETWORKS
from tests.cli.command import Run, in_a_process


@cache
def demo() -> tuple[dict[str, Any], str, Any]:
    """Return the JSON object, what was said on standard error, and the picture's pixels."""
    with TemporaryDirectory() as folder:
        picture = Path(folder) / "demo.png"
        page = Path(folder) / "demo.html"
        options = ("--seeds", "1", "--epochs", "1", "--json", "--picture", str(picture), "--page", str(page))
        done = in_a_process("demo", *options, timeout=300)
        made = done.json()  # one object and nothing else
        assert picture.read_bytes().startswith(b"\x89PNG\r\n")
        assert made["picture"] == str(picture)
        assert made["page"] == str(page)
        text = page.read_text()
        assert all(f"{name}</h2>" in text for name, _, _ in NETWORKS), "a plan is missing"
        assert text.count("base of the ") >= 2
        return made, done.err, imread(picture)


def test_all_networks_are_there_with_their_rates() -> None:
    made, _, _ = demo()
    assert [row["network"] for row in made["networks"]] == [name for name, _, _ in NETWORKS]
    assert len(made["networks"]) >= 4
    for row in made["networks"]:
        base = made["bases"][row["base"]]
        assert row["base_lr"] == (base["estimate"] or base["best"])
        assert row["transferred_lr"] == pytest.approx(row["base_lr"] * row["lr_scale"])
        assert 0 < row["lr_scale"] < 5
        for key in ("transferred_accuracy", "base_accuracy"):
            assert 0 <= row[key] <= 1
        # The recipe keeps training: better than guessing one of ten after a single epoch.
        assert row["transferred_loss"] is not None
        assert row["transferred_loss"] < math.log(10)


def test_the_bases_were_searched() -> None:
    made, _, _ = demo()
    assert set(made["bases"]) == {"MLP", "CNN"}
    for base in made["bases"].values():
        assert base["best"] in base["grid"]
        assert base["grid"] == sorted(base["grid"])
        assert {len(seeds) for seeds in base["losses"]} == {1}
        means = [seeds[0] if seeds[0] is not None else math.inf for seeds in base["losses"]]
        assert means[base["grid"].index(base["best"])] == min(means)


def test_the_picture_is_not_blank() -> None:
    _, _, pixels = demo()
    height, width = pixels.shape[:2]
    assert height > 200
    assert width > 600
    halves = np.split(pixels[:, : width // 2 * 2, :3], 2, axis=1)
    for half in halves:
        assert float(half.std()) > 0.02
        assert len(np.unique(half.reshape(-1, 3), axis=0)) > 20


def test_progress_is_on_standard_error_one_line_a_step() -> None:
    _, said, _ = demo()
    lines = said.strip().splitlines()
    assert len(lines) == len(NETWORKS) + 2
    assert all(line.startswith(f"[{number}/{len(lines)}]") for number, line in enumerate(lines, start=1))
    for name, _, _ in NETWORKS:
        assert any(name in line for line in lines)


def test_a_folder_that_is_not_there_is_refused_before_any_work(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "demo.png"
    done = run("demo", "--picture", str(target))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: there is no folder")
    assert done.err.count("\n") == 1
    assert str(target.parent) in done.err
