"""Check rivals against plain loops."""

import math
from collections.abc import Callable

import pytest
import torch
from prodigyopt import Prodigy
from torch import Tensor, nn
from torch.nn import functional

from evenstep.search.job import Job
from evenstep.search.recipe import CosineSchedule, Recipe
from evenstep_research.study.transfer import rivals
from evenstep_research.study.transfer.families import maker
from evenstep_research.study.transfer.measure import layered
from research.tests.study.small import FAMILY, SETTING

torch.set_num_threads(1)
BATCH, EPOCHS = 16, 2


def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(100, 1, 8, 8, generator=generator)
    return inputs, (inputs.flatten(1) @ torch.randn(64, 10, generator=generator)).argmax(1)


def job(**changed: object) -> Job:
    recipe = Recipe(**{"batch_size": BATCH, "epochs": EPOCHS, "optimizer": "sgd", **changed})  # type: ignore[arg-type]
    network = FAMILY.architectures[1]
    return Job.of(maker(SETTING, network), layered(SETTING, network), recipe, range(2))


def plain(
    start: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer], schedule: Callable[[int], float]
) -> float:
    """Train in shuffled batches, the incomplete last one left out, and return the loss over all the data."""
    inputs, labels = examples()
    optimizer = make(start)
    rate = optimizer.param_groups[0]["lr"]
    generator = torch.Generator().manual_seed(0)
    step = 0
    for _ in range(EPOCHS):
        shuffled = torch.randperm(len(inputs), generator=generator)
        for at in range(0, len(inputs) - BATCH + 1, BATCH):
            batch = shuffled[at : at + BATCH]
            optimizer.param_groups[0]["lr"] = rate * schedule(step)
            optimizer.zero_grad()
            functional.cross_entropy(start(inputs[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
    with torch.no_grad():
        return float(functional.cross_entropy(start(inputs), labels))


@pytest.mark.parametrize("schedule", [lambda _: 1.0, CosineSchedule(12, warm_up=0.0)], ids=["constant", "cosine"])
@pytest.mark.parametrize(
    ("rival", "make"),
    [
        ("adamw", lambda model: torch.optim.AdamW(model.parameters())),
        ("prodigy", lambda model: Prodigy(model.parameters())),
    ],
)
def test_an_optimiser_of_its_own_is_a_plain_loop(
    rival: str, make: Callable[[nn.Module], torch.optim.Optimizer], schedule: Callable[[int], float]
) -> None:
    one = job(schedule=schedule)
    found = rivals.OPTIMISERS[rival](one, examples(), 2)
    assert found.losses == pytest.approx([plain(one.start(seed), make, schedule) for seed in range(2)], rel=1e-5)
    assert found.losses[0] != found.losses[1]
    assert found.steps == 0
    assert found.loss == pytest.approx(sum(found.losses) / 2)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_the_range_tests_rate_lets_the_loss_fall(optimizer: str) -> None:
    one, data = job(optimizer=optimizer), examples()
    rate = rivals.range_test(one, data)
    low, high = (1e-7, 1.0) if optimizer == "adam" else (1e-5, 10.0)
    assert low < rate < high
    model = one.start(0)
    groups = one.plan.param_groups(model, lr=rate)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.AdamW}
    stepper = kinds.get(optimizer, torch.optim.SGD)(groups)
    losses = []
    for _ in range(30):
        stepper.zero_grad()
        loss = functional.cross_entropy(model(data[0]), data[1])
        loss.backward()  # type: ignore[no-untyped-call]
        stepper.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert rivals.range_test(one, data) == rate  # nothing drawn at random


def test_a_diverged_rival_has_an_infinite_loss() -> None:
    inputs, labels = examples()
    found = rivals.adamw(job(), (inputs * math.inf, labels), 1)
    assert found.losses == (math.inf,)
    assert found.loss == math.inf
    assert rivals.range_test(job(), (inputs * math.inf, labels)) == 1e-5
