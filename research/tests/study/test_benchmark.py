"""Run the benchmark for real on a tiny family: whole, stopped, resumed, in processes, and killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from evenstep.search import LocalEngine
from evenstep.search.engines.batching import Batching
from evenstep.search.fields import Data
from evenstep.search.job import Job, Trial
from evenstep.search.replicas import TrialResult
from evenstep_research.study.progress import StudyProgress
from evenstep_research.study.transfer import benchmark
from evenstep_research.study.transfer.benchmark import BenchmarkResources, FamilyResult, run
from evenstep_research.study.transfer.families import Architecture, Family, FamilySetting
from evenstep_research.study.transfer.measure import DIVERGED, METHODS, SEARCHED, Curve, Measured, predictions
from research.tests.study.small import FAMILY, SETTING, TRAINING

torch.set_num_threads(1)
ROOT = Path(__file__).parents[3]
STEPS = 1437 // TRAINING.batch_size


class Recording(LocalEngine):
    """Train as the local engine does, and remember what was trained."""

    trained: ClassVar[list[tuple[str, Trial]]] = []

    def run(
        self, job: Job, data: Data, trials: Sequence[Trial], batching: Batching | None = None
    ) -> Iterator[TrialResult]:
        """Train and remember."""
        self.trained.extend((job.plan.to_json(), trial) for trial in trials)
        yield from super().run(job, data, trials, batching)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Trial]]:
    monkeypatch.setattr(benchmark, "LocalEngine", Recording)
    monkeypatch.setattr(Recording, "trained", [])
    return Recording.trained


def result(resources: BenchmarkResources, family: Family = FAMILY) -> FamilyResult:
    (found,) = run([family], resources, TRAINING)
    return found


@cache
def whole() -> FamilyResult:
    return result(BenchmarkResources(device="cpu"))


def test_every_method_is_trained_at_its_rate_and_so_is_the_searched_one() -> None:
    found = whole()
    assert [one.architecture for one in found.measured] == list(FAMILY.architectures)
    for one in found.known:
        assert set(one.choices) == {*METHODS, SEARCHED}
        assert set(one.attempts) == {"range test", "adamw"}
        assert one.choices[SEARCHED].lr == one.true_lr
        lattice = [lr for lr in one.curve if lr not in {choice.lr for choice in one.choices.values()}]
        assert one.best_loss == min(sum(one.curve[lr]) / len(one.curve[lr]) for lr in lattice)
        searched = one.choices[SEARCHED].steps
        assert searched % (TRAINING.seeds * STEPS) == 0
        assert searched >= len(lattice) * TRAINING.seeds * STEPS
        assert {choice.steps for name, choice in one.choices.items() if name != SEARCHED} == {0}
    base = found.measured[0]  # the base itself: what the rules pick for it is its own rate
    assert base.true_lr == found.base_lr
    assert all(choice.lr == pytest.approx(found.base_lr) for choice in base.choices.values())


def test_the_figures_are_those_of_the_architectures() -> None:
    found = whole()
    record = found.to_dict()
    json.dumps(record, allow_nan=False)
    assert record["n"] == len(found.known)
    for name, figures in record["methods"].items():
        regrets = [one.regret(one.choices[name].loss) for one in found.known]
        assert figures["mean_regret"]["value"] == pytest.approx(sum(regrets) / len(regrets))
        assert figures["diverged"] == sum(one.choices[name].loss > DIVERGED for one in found.known)
    for name, figures in record["rivals"].items():
        regrets = [one.regret(one.attempts[name].loss) for one in found.known]
        assert figures["mean_regret"]["value"] == pytest.approx(sum(regrets) / len(regrets))
    assert record["rivals"]["range test"]["target_steps"] == 100
    assert record["rivals"]["adamw"]["target_steps"] == 0
    assert record["methods"][SEARCHED]["median_error"]["value"] == 0
    rows = found.rows()
    assert [row["name"] for row in rows] == [one.name for one in FAMILY.architectures]
    assert rows[0]["weighted lr"] == found.measured[0].choices["weighted"].lr


def test_a_ledger_that_is_full_trains_nothing(tmp_path: Path, trained: list[tuple[str, Trial]]) -> None:
    resources = BenchmarkResources(device="cpu", ledger=tmp_path / "l.jsonl")
    first = result(resources)
    assert len(set(trained)) == len(trained), "trained twice"
    trained.clear()
    written = (tmp_path / "l.jsonl").read_text()
    again = result(resources)
    assert trained == []
    assert (tmp_path / "l.jsonl").read_text() == written
    assert again == first
    assert replace(first, origins=()) == replace(whole(), origins=())


def test_a_ledger_cut_anywhere_trains_the_rest_alone(tmp_path: Path, trained: list[tuple[str, Trial]]) -> None:
    resources = BenchmarkResources(device="cpu", ledger=tmp_path / "l.jsonl")
    first = result(resources)
    every = set(trained)
    lines = (tmp_path / "l.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "l.jsonl").write_text("".join(lines[:2]) + lines[2][:50])
    trained.clear()
    assert result(resources) == first
    assert len(set(trained)) == len(trained)
    assert 0 < len(trained) < len(every)
    assert set(trained) < every


def test_more_seeds_are_trained_beside_those_known(tmp_path: Path, trained: list[tuple[str, Trial]]) -> None:
    resources = BenchmarkResources(device="cpu", ledger=tmp_path / "l.jsonl")
    first = result(resources)
    (more,) = run([FAMILY], resources, replace(TRAINING, seeds=4))
    assert len(set(trained)) == len(trained), "trained twice"
    for before, after in zip(first.known, more.known, strict=True):
        for lr, losses in before.curve.items():
            assert after.curve[lr][: len(losses)] == losses
        assert {len(choice.losses) for choice in after.choices.values()} == {4}
        counts = {lr: len(losses) for lr, losses in after.curve.items()}
        assert {count for lr, count in counts.items() if lr not in before.curve} <= {3, 4}  # octaves, and all else
        assert 4 in counts.values()
        assert set(counts.values()) <= {2, 3, 4}  # picks of before stay as they were


def test_a_rate_that_differs_by_rounding_is_not_trained_again(
    tmp_path: Path, trained: list[tuple[str, Trial]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine adds up in another order."""
    resources = BenchmarkResources(device="cpu", ledger=tmp_path / "l.jsonl")
    first = result(resources)
    trained.clear()

    def rounded(setting: FamilySetting, network: Architecture, base: Architecture, rate: float) -> dict[str, float]:
        return {name: lr * (1 + 4e-16) for name, lr in predictions(setting, network, base, rate).items()}

    monkeypatch.setattr("evenstep_research.study.transfer.benchmark.predictions", rounded)
    assert result(resources) == first
    assert trained == []


def test_processes_find_the_same(tmp_path: Path) -> None:
    said: list[StudyProgress] = []
    (found,) = run(
        [FAMILY], BenchmarkResources(device="cpu", workers=2, ledger=tmp_path / "l.jsonl"), TRAINING, said.append
    )
    assert replace(found, origins=()) == replace(whole(), origins=())
    assert [progress.done for progress in said] == [0, 1, 2, 3, 4]
    assert {progress.total for progress in said} == {4}
    assert all(one.name in " ".join(progress.message for progress in said) for one in FAMILY.architectures)
    assert result(BenchmarkResources(device="cpu", ledger=tmp_path / "l.jsonl")).measured == found.measured


def test_a_family_whose_base_has_no_truth_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenstep_research.study.transfer.measure.HOPELESS", -9.0)  # nothing is good enough
    said: list[StudyProgress] = []
    assert list(run([FAMILY], BenchmarkResources(device="cpu"), TRAINING, said.append)) == []
    assert "left out: the search of its base says all_diverged" in said[-1].message
    assert said[-1].done == said[-1].total == 1


def test_the_best_constant_rate_is_the_one_that_loses_least_over_all() -> None:
    """Two architectures whose losses are known at 1, 2 and 4: at 2 one loses 0.1, elsewhere more is lost."""
    curves: list[Curve] = [{1.0: (1.5,), 2.0: (1.6,), 4.0: (2.0,)}, {1.0: (1.9,), 2.0: (1.4,), 4.0: (1.5,)}]
    measured = tuple(
        Measured(Architecture(f"{place}", "2"), "ok", 1.0, curve, {}, {}) for place, curve in enumerate(curves)
    )
    found = FamilyResult(FAMILY, 1.0, measured).best_constant()
    assert found == {"lr": 2.0, "mean_regret": pytest.approx(0.05)}
    assert FamilyResult(FAMILY, 1.0, ()).best_constant() is None


def test_drift_is_over_the_widths_of_one_shape() -> None:
    shapes = [Architecture(name, "2").at_width(width) for name in ("a", "b") for width in (8, 16, 32)]
    rates = [1.0, 2.0, 4.0, 0.5, None, 0.5 * 2**0.25]
    one = whole().measured[0]
    known = tuple(replace(one, architecture=a, true_lr=lr) for a, lr in zip(shapes, rates, strict=True))
    family = Family("f", "f", SETTING, tuple(shapes))
    found = FamilyResult(family, 1.0, known)
    assert found.drift() == pytest.approx({"a": 2.0, "b": 0.25})
    assert found.to_dict()["without_truth"] == {"b, width 16": "ok"}
    assert whole().drift() == {}


SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from evenstep_research.study.transfer.benchmark import BenchmarkResources, run
from research.tests.study.small import FAMILY, TRAINING
if __name__ == "__main__":
    slow = replace(TRAINING, epochs=8)
    list(run([FAMILY], BenchmarkResources(device="cpu", workers=2, ledger=Path(sys.argv[1])), slow))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the processes of Linux")
def test_a_killed_parent_leaves_no_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path / "l.jsonl")], cwd=ROOT, env=environment)
    try:
        for _ in range(6000):
            # Two workers, the server that forks them, and the tracker of what they share.
            if (tmp_path / "l.jsonl").exists() and len(descendants(process.pid)) >= 4:
                break
            assert process.poll() is None
            time.sleep(0.02)
        workers = descendants(process.pid)
        assert len(workers) >= 4
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    for _ in range(3000):
        if not any(alive(worker) for worker in workers):
            return
        time.sleep(0.02)
    raise AssertionError(f"still there: {[worker for worker in workers if alive(worker)]}")


def descendants(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return []
    return [*children, *(later for child in children for later in descendants(child))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
