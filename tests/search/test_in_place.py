"""Models and losses that change what they are given: the data of a search, and the user's own, stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import evenstep as es
from evenstep.search import LocalEngine
from evenstep.search.fields import called, loss_of
from evenstep.search.replicas import SeparateReplicas, StackedReplicas

torch.set_num_threads(1)
COUNT, WIDTH, CLASSES = 48, 6, 3
INPUTS = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(0)) + 100
LABELS = (INPUTS[:, :CLASSES]).argmax(1)
ENGINE = LocalEngine(workers=1)


class Plain(nn.Module):
    """Takes the mean off its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.readout = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.readout(F.relu(self.hidden(self.centred(x))))
        return logits

    def centred(self, x: Tensor) -> Tensor:
        return x - 100


class InPlace(Plain):
    """Computes the same, and leaves its inputs changed."""

    def centred(self, x: Tensor) -> Tensor:
        return x.sub_(100)


def shifted(output: Tensor, target: Tensor) -> Tensor:
    """Take labels that are one too large."""
    return F.cross_entropy(output, target - 1)


def shifted_in_place(output: Tensor, target: Tensor) -> Tensor:
    """Take them, and leave them changed."""
    return F.cross_entropy(output, target.sub_(1))


def losses(make: Any, loss: Any, pair: tuple[Tensor, Tensor], **options: Any) -> Any:
    usual: dict[str, Any] = {"grid": [0.02, 0.1], "seeds": 2, "steps": 12, "batch_size": 12, "on_failure": "return"}
    return es.search_lr(make, pair, loss=loss, engine=ENGINE, **usual | options).losses


@pytest.mark.parametrize("counted", [None, 0.25], ids=["loss of all data", "loss of the last steps"])
def test_a_search_is_the_same_and_data_stay(counted: float | None) -> None:
    pair = INPUTS.clone(), LABELS + 1
    found = losses(InPlace, shifted_in_place, pair, counted=counted)
    assert torch.equal(pair[0], INPUTS)
    assert torch.equal(pair[1], LABELS + 1)
    assert found == losses(Plain, shifted, (INPUTS, LABELS + 1), counted=counted)


def test_three_lines_are_the_same_and_data_stay() -> None:
    torch.manual_seed(0)
    plain, changing = Plain(), InPlace()
    changing.load_state_dict(plain.state_dict())
    pair = INPUTS.clone(), LABELS.clone()
    loader = DataLoader(TensorDataset(*pair), batch_size=12)
    options: dict[str, Any] = {"train_steps": 40, "engine": ENGINE, "progress": False}
    planned = es.auto_plan(changing, loader, **options)
    assert torch.equal(pair[0], INPUTS)
    assert torch.equal(pair[1], LABELS)
    expected = es.auto_plan(plain, (INPUTS, LABELS), batch_size=12, **options)
    assert planned.base == expected.base
    assert [p.lr_scale for p in planned.parameters] == [p.lr_scale for p in expected.parameters]


def test_a_store_records_steps_of_models_that_change_their_inputs(tmp_path: Any) -> None:
    class Once(Plain):
        """Looks tokens up after it has changed them: a second time there are none such."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(CLASSES, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.table(x.sub_(1)) + 100)

    store = tmp_path / "runs.sqlite"
    pair = LABELS + 1, LABELS
    with torch.random.fork_rng():
        first = losses(Once, None, pair, store=store)
        assert losses(Once, None, pair, store=store, resume=True) == first


@pytest.mark.parametrize("kind", [StackedReplicas, SeparateReplicas])
def test_every_trial_of_a_group_gets_the_batch_as_it_is(kind: Any) -> None:
    from evenstep.search.job import Job, Trial
    from evenstep.search.recipe import Recipe

    def group(make: Any, loss: Any) -> Any:
        torch.manual_seed(0)
        plan = es.plan(make(), INPUTS[:2])
        job = Job.of(make, plan, Recipe(loss=loss), range(2))
        return kind(job, [Trial(0.1, seed) for seed in range(2)], torch.device("cpu"))

    inputs, targets = INPUTS.clone(), LABELS + 1
    changing, expected = group(InPlace, shifted_in_place), group(Plain, shifted)
    for _ in range(2):
        assert torch.equal(changing.step_(inputs, targets), expected.step_(INPUTS, LABELS + 1))
        assert torch.equal(changing.evaluate(inputs, targets), expected.evaluate(INPUTS, LABELS + 1))
    assert torch.equal(inputs, INPUTS)
    assert torch.equal(targets, LABELS + 1)


def test_called_and_loss_of_hand_out_copies() -> None:
    inputs, targets = INPUTS.clone(), LABELS + 1
    output = called(InPlace(), inputs)
    loss_of(shifted_in_place, output, targets)
    assert torch.equal(inputs, INPUTS)
    assert torch.equal(targets, LABELS + 1)
