"""Check the pictures of NAS-Bench-201: every protocol in its colour, and nothing drawn of what is not known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.image import imread

from evenstep.errors import InputError
from evenstep_research.report.nas import COLOURS, MARKERS, draw_accuracies, draw_gaps, draw_tau
from evenstep_research.study.nas.analysis import pairwise_gaps, tau_curve
from evenstep_research.study.statistics import Figure

REFERENCE = np.linspace(40, 90, 24)


def protocols() -> dict[str, npt.NDArray[np.float64]]:
    draw = np.random.default_rng(0)
    return {name: REFERENCE + 3 * place + draw.normal(size=24) for place, name in enumerate(COLOURS)}


def pixels_of(path: Path, colour: str, *, alpha: float = 0.75) -> int:
    """Count the pixels that have a colour, laid on white."""
    wanted = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]) * alpha + 1 - alpha
    return int((np.abs(imread(path)[..., :3] - wanted).max(axis=2) < 0.02).sum())


def test_every_protocol_has_a_colour_and_a_marker_of_its_own() -> None:
    assert COLOURS.keys() == MARKERS.keys() == {"benchmark", "constant-tuned", "paper", "weighted", "mup"}
    assert len(set(COLOURS.values())) == len(set(MARKERS.values())) == 5


def test_accuracies_in_every_colour(tmp_path: Path) -> None:
    draw_accuracies(REFERENCE, protocols(), tmp_path / "a.png")
    for name, colour in COLOURS.items():
        draw_accuracies(REFERENCE, {**protocols(), name: np.full(24, np.nan)}, tmp_path / "without.png")
        assert pixels_of(tmp_path / "a.png", colour) > pixels_of(tmp_path / "without.png", colour) + 20, name
    draw_accuracies(REFERENCE, {"weighted": protocols()["weighted"]}, tmp_path / "one.png")
    assert pixels_of(tmp_path / "one.png", COLOURS["weighted"]) > 20
    assert pixels_of(tmp_path / "one.png", COLOURS["paper"]) == 0


def test_the_line_where_accuracies_are_equal_runs_from_corner_to_corner(tmp_path: Path) -> None:
    draw_accuracies([40.0, 90.0], {}, tmp_path / "line.png")
    grey = imread(tmp_path / "line.png")[..., :3].mean(axis=2)
    height, width = grey.shape
    inside = grey[int(0.1 * height) : int(0.8 * height), int(0.25 * width) : int(0.85 * width)] < 0.8
    found = [np.flatnonzero(column) for column in inside.T]
    assert all(0 < len(rows) < 6 for rows in found)  # one thin line in every column
    assert found[0].mean() > found[-1].mean() + 0.4 * height  # it rises


def test_an_architecture_without_a_figure_is_left_out_of_the_picture(tmp_path: Path) -> None:
    values = protocols()["weighted"]
    values[1:] = np.nan
    draw_accuracies(REFERENCE, {"weighted": protocols()["weighted"]}, tmp_path / "all.png")
    draw_accuracies(REFERENCE, {"weighted": values}, tmp_path / "one.png")
    few, many = (pixels_of(tmp_path / name, COLOURS["weighted"]) for name in ("one.png", "all.png"))
    assert 0 < few < many / 4
    with pytest.raises(InputError, match=r"of 'paper' have shape \(3,\), the reference's \(24,\)"):
        draw_accuracies(REFERENCE, {"paper": values[:3]}, tmp_path / "no.png")
    assert not (tmp_path / "no.png").exists()


def test_tau_curves_in_every_colour(tmp_path: Path) -> None:
    for name, values in protocols().items():
        draw_tau({name: tau_curve(REFERENCE, values)}, tmp_path / "t.png")
        draw_tau({name: ()}, tmp_path / "without.png")
        found, bare = (pixels_of(tmp_path / file, COLOURS[name]) for file in ("t.png", "without.png"))
        assert found > bare + 20, name


def test_shares_without_a_tau_are_left_out_of_the_curve(tmp_path: Path) -> None:
    """Draw a curve whose middle has no tau: its ends are joined, as if the middle were not there."""
    whole, middle, last = tau_curve(REFERENCE, protocols()["paper"], shares=[100, 50, 10])
    unknown = replace(middle, tau=Figure(None, None, None))
    draw_tau({"weighted": [whole, unknown, last]}, tmp_path / "unknown.png")
    draw_tau({"weighted": [whole, last]}, tmp_path / "without.png")
    draw_tau({"weighted": [whole, middle, last]}, tmp_path / "all.png")
    unknown_picture, without, everything = (imread(tmp_path / f"{name}.png") for name in ("unknown", "without", "all"))
    assert (unknown_picture == without).all()
    assert (unknown_picture != everything).any()


def test_gaps_in_the_colours_of_their_protocols(tmp_path: Path) -> None:
    made = {name: pairwise_gaps(values) for name, values in protocols().items()}
    draw_gaps({}, tmp_path / "none.png")
    draw_gaps({name: made[name] for name in ("benchmark", "weighted")}, tmp_path / "g.png")
    draw_gaps({"weighted": pairwise_gaps([50.0, 50.0])}, tmp_path / "flat.png")
    for picture, shown in (("g.png", {"benchmark", "weighted"}), ("flat.png", {"weighted"})):
        for name, colour in COLOURS.items():
            bare, found = (pixels_of(tmp_path / file, colour, alpha=1) for file in ("none.png", picture))
            assert found > bare + 100 if name in shown else found < bare + 100, name


def test_names_that_are_no_protocol_have_colours_of_their_own(tmp_path: Path) -> None:
    values = list(protocols().values())
    draw_tau({f"seeds {pair}": tau_curve(values[pair], values[pair + 1]) for pair in range(2)}, tmp_path / "s.png")
    for colour in ("#b5485d", "#3f8f8a"):
        assert pixels_of(tmp_path / "s.png", colour) > 20
    for name in COLOURS.keys() - {"benchmark"}:  # grey is the text's too
        assert pixels_of(tmp_path / "s.png", COLOURS[name]) == 0


@pytest.mark.parametrize("draw", [draw_tau, draw_gaps])
def test_nothing_has_a_picture_too(draw: object, tmp_path: Path) -> None:
    assert callable(draw)
    draw({}, tmp_path / "none.png")
    assert imread(tmp_path / "none.png").std() > 0
    draw_accuracies([], {}, tmp_path / "empty.png")
    assert imread(tmp_path / "empty.png").std() > 0
