"""Run `evenstep demo` once, short, as a user does."""

import json
import math
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from evenstep.cli.app import app
from evenstep.demo.measuring import DEFAULT_RATE, GRID
from evenstep.demo.networks import CHANNELS, CLASSES, KINDS, Chain, Kind
from tests.cli.command import Run

SMALL = (Kind("plain chain", "digits", (2, 3), Chain, stacked=True),)
DIGITS_FALL_BY = 0.5  # of the loss of guessing, in 40 steps


@cache
def demo() -> tuple[str, dict[str, Any], str, Any, str]:
    """Return what a short demo of two chains prints, its JSON, its standard error, picture and page."""
    from typer.testing import CliRunner

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        from evenstep.demo import measuring

        # Two small networks, in this process; all else is the demo as it is.
        whole = measuring.measure
        patch.setattr("evenstep.demo.measure", lambda **asked: whole(**asked, kinds=SMALL, workers=1))
        picture, page = Path(folder) / "demo.png", Path(folder) / "demo.html"
        options = ["demo", "--steps", "40", "--picture", str(picture), "--page", str(page)]
        printed = CliRunner().invoke(app, options, env={"COLUMNS": "80"}, catch_exceptions=False)
        made = CliRunner().invoke(app, [*options, "--json", "--quiet"], catch_exceptions=False)
        assert (printed.exit_code, made.exit_code, made.stderr) == (0, 0, "")
        assert picture.read_bytes().startswith(b"\x89PNG\r\n")
        return printed.stdout, json.loads(made.stdout), printed.stderr, imread(picture), page.read_text()


def test_the_summary_comes_first_then_the_table_then_the_files() -> None:
    printed, made, _, _, _ = demo()
    assert max(map(len, printed.splitlines()[:-2])) <= 80
    places = [printed.index(text) for text in ("evenstep ends lower", "one rate, tuned", "picture: ", "page: ")]
    assert places == sorted(places)
    words = " ".join(printed.split())
    assert all(" ".join(sentence.split())[:40] in words for sentence in made["summary"] if "search" not in sentence), (
        words
    )


def test_every_network_is_measured_over_the_grid_and_at_its_plan() -> None:
    _, made, _, _, _ = demo()
    assert [(row["kind"], row["depth"]) for row in made["networks"]] == [("plain chain", 2), ("plain chain", 3)]
    for row in made["networks"]:
        one_rate, planned = dict(row["one_rate"]), dict(row["planned"])
        assert tuple(one_rate) == GRID
        assert set(planned) == {*GRID, row["base"]}
        assert planned[row["base"]][0] < (1 - DIGITS_FALL_BY) * math.log(CLASSES), "the plan trains"
        assert one_rate[DEFAULT_RATE] != planned[DEFAULT_RATE]


def test_progress_is_on_standard_error_one_line_a_network() -> None:
    _, _, said, _, _ = demo()
    assert [line.split("]")[0] for line in said.strip().splitlines()[1:]] == ["[1/2", "[2/2"]


def test_the_picture_has_both_halves_and_the_page_every_plan() -> None:
    _, _, _, pixels, page = demo()
    assert pixels.shape[1] >= 1800, "sharp at a README's width"
    for half in np.split(pixels[: len(pixels) // 2 * 2, :, :3], 2):
        assert float(half.std()) > 0.02
        assert len(np.unique(half.reshape(-1, 3), axis=0)) > 20
    assert all(f"plain chain, depth {depth}</h2>" in page for depth in (2, 3))


def test_the_longest_names_and_rates_fit_into_80_columns() -> None:
    from io import StringIO

    from rich.console import Console

    from evenstep.cli.demo import _print
    from evenstep.demo import Demo, Measured

    losses = {rate: (2.5 + rate,) for rate in GRID}
    longest = [(kind.name, max(kind.depths)) for kind in KINDS]
    networks = tuple(Measured(*name, 1, losses, losses, GRID[-1], (), 10.0, 10.0) for name in longest)
    written = StringIO()
    _print(Console(file=written, width=80), Demo(networks, 150, 3), Path("demo.png"), Path("demo.html"))
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in written.getvalue()
    assert all(any(f"{kind}, depth {depth} " in line and " lost" in line for line in lines) for kind, depth in longest)


def test_four_kinds_in_three_depths() -> None:
    assert len(KINDS) == 4
    assert all(len(set(kind.depths)) == 3 for kind in KINDS)
    assert CHANNELS > 0


@pytest.mark.parametrize("option", ["--picture", "--page"])
def test_a_folder_that_is_not_there_is_refused_before_any_work(run: Run, tmp_path: Path, option: str) -> None:
    target = tmp_path / "nowhere" / "demo.png"
    done = run("demo", option, str(target))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: there is no folder")
    assert done.err.count("\n") == 1
    assert str(target.parent) in done.err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="who runs the tests may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(run: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = run("demo", "--picture", str(tmp_path / "demo.png"))
    assert (done.code, done.out) == (2, "")
    assert "permission denied" in done.err


def test_a_missing_package_is_one_line_that_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    whole = importlib.util.find_spec
    monkeypatch.setattr("evenstep.cli.demo.find_spec", lambda name: None if name == "sklearn" else whole(name))
    done = run("demo")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: the demo needs sklearn, which is not installed; pip install 'evenstep[demo]'\n"


@pytest.mark.parametrize(("option", "value"), [("--seeds", "0"), ("--steps", "3"), ("--picture", "demo.xyz")])
def test_bad_options_are_refused(run: Run, option: str, value: str) -> None:
    done = run("demo", option, value)
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
