"""Short runs: what they take of a batch, how their rates are moved, and that dead networks mislead none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evenstep as es
from evenstep.data.digits import digits
from evenstep.rules.training import Training, moved
from evenstep.search import LocalEngine
from evenstep.search.recipe import Loss
from evenstep.search.short_runs import (
    BATCH_OF_SHORT_RUNS,
    LENGTH_OF_SHORT_RUNS,
    affordable,
    examples_of_batch,
    examples_taken,
    has_learnt,
    searched,
)
from evenstep.search.tensors import Loaded

torch.set_num_threads(1)


def network() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(64, 32), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(32, 32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 10))


class OfOneSize(nn.Module):
    """A network with the size of its batch written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.layer(x).view(16, 4)
        return rows


def of_rows(count: int, loss: Loss = nn.functional.cross_entropy) -> Loaded:
    generator = torch.Generator().manual_seed(0)
    return Loaded((torch.randn(count, 4, generator=generator), torch.arange(count) % 4), loss)


def test_a_quarter_of_the_batch_is_taken_where_the_model_takes_it() -> None:
    assert examples_taken(nn.Linear(4, 4), of_rows(16), 16) == 4
    assert examples_taken(OfOneSize(), of_rows(16), 16) == 16
    normed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert [examples_taken(normed, of_rows(64), size) for size in (64, 16, 4)] == [16, 8, 4]


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(reduction="sum"),
        lambda output, _: nn.functional.cross_entropy(output @ output.T, torch.arange(len(output))),
        lambda output, targets: nn.functional.cross_entropy(output.view(16, 4), targets),
    ],
    ids=["a sum", "of pairs", "of one size"],
)
def test_the_whole_batch_is_taken_where_a_part_is_another_task(loss: Loss) -> None:
    torch.manual_seed(0)
    assert examples_taken(nn.Linear(4, 4), of_rows(16, loss), 16) == 16


@pytest.mark.parametrize(("size", "normed"), [(3, False), (9, True), (15, True)])
def test_a_sum_is_recognised_in_batches_of_less_than_two_parts(size: int, normed: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), *([nn.BatchNorm1d(4)] if normed else []))
    assert examples_taken(model, of_rows(size, nn.CrossEntropyLoss(reduction="sum")), size) == size


def test_a_batch_larger_than_the_data_is_warned_of() -> None:
    assert examples_of_batch(64, of_rows(16), asked=None) == 16  # a loader's last batch
    with pytest.warns(es.SearchWarning, match="batch_size is 64, but the data has 16 examples"):
        assert examples_of_batch(64, of_rows(16), asked=64) == 16


def test_sgd_steps_alike_on_a_sum_and_on_a_mean_over_a_batch() -> None:
    """The rate of a sum is that of the mean over the size of the batch, whatever short runs take."""
    images, labels = digits().train
    rates = {}
    for kind in ("mean", "sum"):
        plan = es.auto_plan(
            network(),
            (images.flatten(1), labels),
            optimizer="sgd",
            batch_size=32,
            train_steps=300,
            loss=nn.CrossEntropyLoss(reduction=kind),
            engine=LocalEngine(workers=1),
            progress=False,
        )
        assert plan.base is not None
        rates[kind] = plan.base * plan["2.weight"].lr_scale
    assert abs(math.log2(rates["mean"] / rates["sum"] / 32)) < 1


@pytest.mark.parametrize(("size", "fewest"), [(128, 32), (48, 12), (4, 2), (1, 1)])
@pytest.mark.parametrize("of_whole_batches", [32, 50, 128, 200, 512])
def test_a_run_costs_what_is_paid_and_takes_whole_batches_before_more_steps(
    size: int, fewest: int, of_whole_batches: int
) -> None:
    run = affordable(of_whole_batches * size, fewest=fewest, batch_size=size, train_steps=1500)
    assert run.examples == pytest.approx(of_whole_batches * size, rel=0.02)
    assert fewest <= run.batch_size <= size
    if run.batch_size > fewest:
        assert run.steps == pytest.approx(128, rel=0.02) or run.batch_size == size
    if run.steps > 130:
        assert run.batch_size == size


def test_a_run_is_no_longer_than_its_training_unless_that_is_cheaper_than_any_run() -> None:
    kinds = [affordable(1e9, fewest=16, batch_size=64, train_steps=steps) for steps in (10, 200, 10_000)]
    assert [(run.steps, run.batch_size) for run in kinds] == [(32, 64), (200, 64), (512, 64)]


def test_rates_are_moved_by_the_rules_of_length_and_batch() -> None:
    runs, training = Training(16, 128), Training(64, 6000)
    rules: dict[str, Any] = {"batch": BATCH_OF_SHORT_RUNS, "length": LENGTH_OF_SHORT_RUNS}
    (length,) = moved("adam", runs, training, **rules)
    assert length.name == "length"
    assert length.value == pytest.approx(4**-0.32)
    assert moved("adam", runs, Training(64, 1500), **rules) == ()
    (batch,) = moved("momentum", runs, training, **rules)
    assert (batch.name, batch.value) == ("batch", 2.0)
    assert moved("sgd", runs, Training(16, 6000), **rules) == ()


def test_a_start_where_networks_die_is_left() -> None:
    """From 256 times as large a rate the search finds what it finds from a good one."""
    images, labels = digits().train
    data = Loaded((images.flatten(1), labels), nn.functional.cross_entropy)
    found = [
        searched(
            network,
            data,
            start=start,
            octaves=1,
            optimizer="adam",
            steps=100,
            batch_size=16,
            seeds=1,
            engine=LocalEngine(workers=1),
            progress=False,
        )
        for start in (0.008, 0.008 * 256)
    ]
    assert all(has_learnt(search, 0.3) for search in found)
    assert abs(math.log2(found[0].rate / found[1].rate)) < 0.75
    assert len(found[1].grid) > 3 + len(found[0].grid) // 2
