"""Check that one seed has one answer: whatever the clock, the engine, the company and the interruption."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from kills import Transformer, next_token, sentences
from torch import Tensor, nn

import evenstep as es
from evenstep.search import LocalEngine, search_lr
from evenstep.search.engines.batching import Batching, chosen_batching, placed, train_in
from evenstep.search.fields import Data
from evenstep.search.job import Job, Trial
from evenstep.search.randomness import own_randomness
from evenstep.search.recipe import Recipe
from evenstep.search.replicas import TrialResult
from evenstep.search.result import LRSearch
from tests.search import plain
from tests.search.test_engines import RAY
from tests.search.test_resume import rows

torch.set_num_threads(1)

CPU = torch.device("cpu")
TRIALS = [Trial(lr, seed) for lr in (0.01, 0.05, 0.2) for seed in range(3)]
DATA = plain.images(dtype=torch.float32)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, 3))


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 3)
    )


def perceptron() -> nn.Module:
    return plain.mlp().float()


class Skipping(nn.Module):
    """A network that leaves its middle layer out at random, by Python's random numbers or NumPy's."""

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(72, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.chance = chance

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x.flatten(1)))
        if not self.training or self.chance() < 0.5:
            hidden = torch.relu(self.middle(hidden))
        result: Tensor = self.last(hidden)
        return result


def by_python() -> nn.Module:
    return Skipping(random.random)


def by_numpy() -> nn.Module:
    return Skipping(numpy.random.random)


def job(make: plain.Make, *, steps: int = 12) -> Job:
    """Return a job; the graph of a network that skips layers is that of evaluation."""
    recipe = Recipe(steps=steps, batch_size=12, optimizer="momentum")
    return plain.job_of(lambda: make().eval(), DATA, recipe, seeds=3)


def losses(found: Any) -> dict[Trial, TrialResult]:
    return {result.trial: result for result in found}


DRAWING = [dropping, normed, by_python, by_numpy]


@pytest.mark.parametrize("make", DRAWING)
def test_networks_that_draw_are_trained_singly_whatever_is_faster(make: plain.Make) -> None:
    """So many steps that any stack would pay."""
    found = chosen_batching(job(make, steps=5000), DATA, TRIALS, CPU)
    assert (found.kind, found.chunk) == ("single", 1)


@pytest.mark.parametrize("make", DRAWING)
def test_what_a_trial_draws_does_not_depend_on_its_company(make: plain.Make) -> None:
    own = job(make)
    together = losses(train_in(Batching("single", 100), own, DATA, TRIALS, CPU, "float32"))
    for place, one in enumerate(TRIALS):
        with own_randomness(place):  # whatever the user drew before
            assert list(train_in(Batching("single", 1), own, DATA, [one], CPU, "float32")) == [together[one]]
    backwards = losses(train_in(Batching("single", 4), own, DATA, TRIALS[::-1], CPU, "float32"))
    assert backwards == together
    # It does draw: two rates of a seed that go nowhere drop alike, two seeds do not.
    nowhere = [Trial(1e-12, 0), Trial(2e-12, 0)]
    first, second = train_in(Batching("single", 2), own, DATA, nowhere, CPU, "float32")
    assert first.curve == pytest.approx(second.curve, rel=1e-5)


@pytest.mark.parametrize(("make", "kind"), [(perceptron, "stacked"), (perceptron, "single"), (dropping, "single")])
def test_all_processes_give_the_same_bits(make: plain.Make, kind: Any) -> None:
    own, batching = plain.job_of(make, DATA, Recipe(steps=12, batch_size=12), seeds=3), Batching(kind, 4)
    here, there = (losses(LocalEngine(workers=count).run(own, DATA, TRIALS, batching)) for count in (1, 2))
    assert here == there
    assert len(here) == len(TRIALS)


class TestRay:
    pytestmark = RAY

    @pytest.mark.parametrize("kind", ["stacked", "single"])
    def test_ray_gives_the_same_bits(self, kind: Any) -> None:
        pytest.importorskip("ray")
        from evenstep.search.engines.ray import RayEngine

        own, batching = plain.job_of(perceptron, DATA, Recipe(steps=12, batch_size=12), seeds=3), Batching(kind, 4)
        engine = RayEngine()
        try:
            there = losses(engine.run(own, DATA, TRIALS, batching))
        finally:
            engine.close()
        assert there == losses(LocalEngine(workers=1).run(own, DATA, TRIALS, batching))


def test_data_that_begin_off_a_cache_line_are_laid_out_anew() -> None:
    shifted = torch.empty(DATA[0].numel() + 1)[1:].reshape(DATA[0].shape).copy_(DATA[0])
    assert shifted.data_ptr() % 64
    moved, labels = placed((shifted, DATA[1]), CPU)
    assert isinstance(moved, Tensor)
    assert isinstance(labels, Tensor)
    assert moved.data_ptr() % 64 == 0
    assert torch.equal(moved, DATA[0])
    assert labels is DATA[1] or labels.data_ptr() % 64 == 0


def test_trials_train_on_the_threads_of_their_form() -> None:
    seen: set[int] = set()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.add(torch.get_num_threads())
        return nn.functional.cross_entropy(output, target)

    own = plain.job_of(perceptron, DATA, Recipe(steps=2, batch_size=12, loss=loss), seeds=1)
    for count in (1, 2):
        seen.clear()
        list(LocalEngine(workers=1).run(own, DATA, [Trial(0.1, 0)], Batching("single", 1, threads=count)))
        assert seen == {count}
    assert torch.get_num_threads() == 1


class Interrupted(LocalEngine):
    """An engine that stacks by threes and stops after a number of trials, as if somebody had."""

    after: int = 10**9

    def choose(self, *_: Any) -> Batching:
        return Batching("stacked", 3)

    def run(
        self, job: Job, data: Data, trials: Sequence[Trial], batching: Batching | None = None
    ) -> Iterator[TrialResult]:
        for place, result in enumerate(super().run(job, data, trials, batching)):
            if place == self.after:
                raise KeyboardInterrupt
            yield result


def stopped_after(count: int) -> LocalEngine:
    class Stopped(Interrupted):
        after = count

    return Stopped(workers=1)


def searched(make: plain.Make, engine: Any, **options: Any) -> LRSearch:
    given: dict[str, Any] = {"seeds": 2, "batch_size": 8, "steps": 9, "on_failure": "return"}
    return search_lr(make, DATA, engine=engine, **given, **options)


@pytest.mark.parametrize("count", [0, 1, 4, 8])
def test_stacked_trials_go_on_in_the_company_they_would_have_had(count: int, tmp_path: Path) -> None:
    whole = searched(perceptron, Interrupted(workers=1), store=tmp_path / "whole.db")
    with pytest.raises(KeyboardInterrupt):
        searched(perceptron, stopped_after(count), store=tmp_path / "s.db")
    # Chunks are written whole or not at all.
    assert len(rows(tmp_path / "s.db")) == count // 3 * 3
    assert searched(perceptron, Interrupted(workers=1), store=tmp_path / "s.db", resume=True) == whole
    assert rows(tmp_path / "s.db") == rows(tmp_path / "whole.db")


@pytest.mark.parametrize("make", [dropping, normed])
def test_a_search_with_dropout_has_one_answer_without_a_store_and_in_parts(make: plain.Make, tmp_path: Path) -> None:
    whole = searched(make, LocalEngine(workers=1))
    with own_randomness(17):
        assert searched(make, LocalEngine(workers=1)) == whole
    assert searched(make, LocalEngine(workers=2)) == whole
    grid = list(whole.grid)
    for part in (grid[3:5], grid[::2], grid):
        found = searched(make, LocalEngine(workers=1), grid=part, store=tmp_path / "s.db")
        assert list(found.losses) == [whole.losses[grid.index(rate)] for rate in part]


def test_forms_differ_by_rounding_alone() -> None:
    """In single precision, over 200 steps: the losses of stacked and single trials are 1e-5 apart at most."""
    own = plain.job_of(perceptron, DATA, Recipe(steps=200, batch_size=12), seeds=3)
    stacked, single = (
        losses(train_in(Batching(kind, 100), own, DATA, TRIALS, CPU, "float32")) for kind in ("stacked", "single")
    )
    for one in TRIALS:
        assert stacked[one].loss == pytest.approx(single[one].loss, rel=1e-5, abs=1e-7)
    assert stacked != single  # or this test shows nothing


def test_where_training_is_chaotic_rounding_grows() -> None:
    """A tied language model at a rate far too large: alike for three steps, and a third apart at most after sixty.

    This is why a search keeps its form: near such rates the other one would be another draw.
    """
    data = sentences()
    planned = es.plan(Transformer(), data[0][:2], optimizer="adam")
    recipe = Recipe(steps=60, batch_size=32, loss=next_token, optimizer="adam")
    own = Job.of(Transformer, planned, recipe, range(2))
    trials = [Trial(0.01, 0), Trial(0.01, 1)]
    stacked, single = (
        losses(train_in(Batching(kind, 2), own, data, trials, CPU, "float32")) for kind in ("stacked", "single")
    )
    for one in trials:
        assert stacked[one].curve[:3] == pytest.approx(single[one].curve[:3], rel=1e-5)
        assert stacked[one].loss == pytest.approx(single[one].loss, rel=1 / 3)
    assert stacked != single  # or this test shows nothing
