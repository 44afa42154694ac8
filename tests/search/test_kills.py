"""Kill a search of each kind once; `benchmarks/kills.py` does so thirty times, on Ray too."""

from pathlib import Path

import pytest
from kills import killed

LONG = pytest.mark.exhaustive  # test_resume.py kills searches of these two in less time
KINDS = [pytest.param("mlp", marks=LONG), pytest.param("cnn", marks=LONG), "transformer"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_search_ends_in_the_bits_of_an_undisturbed_one(kind: str, tmp_path: Path) -> None:
    outcome = killed(kind, tmp_path, kills=1, steps=40)
    assert len(outcome.kills) == 1
    assert outcome.rows > 20
    assert outcome.equal_rows
    assert outcome.equal_answer


@pytest.mark.exhaustive
def test_a_search_on_ray_survives_the_death_of_a_worker_and_of_its_driver(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    outcome = killed("ray", tmp_path, kills=2, steps=40)
    assert any("worker" in kill for kill in outcome.kills)
    assert len(outcome.kills) == 2
    assert outcome.equal_rows
    assert outcome.equal_answer
