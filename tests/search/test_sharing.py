"""Check that what modules share is shared in every form: stacked, single and plain trials of random modules are one."""

import copy
import dataclasses
import functools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import evenstep as es
from evenstep.errors import InputError
from evenstep.planning import ParameterPlan, Plan
from evenstep.search import LocalEngine
from evenstep.search.engines.batching import Batching, stacks
from evenstep.search.job import Job, Trial
from evenstep.search.recipe import Recipe
from evenstep.search.replicas import ReplicaGroup, SeparateReplicas, StackedReplicas, TrialResult, train
from evenstep.search.sharing import move_
from tests.search import plain

torch.set_num_threads(1)

CPU = torch.device("cpu")
WIDTH = 6


class Averaging(nn.Module):
    """A layer that follows the mean of what it sees in a buffer, and subtracts part of it."""

    def __init__(self, running: Tensor) -> None:
        super().__init__()
        self.register_buffer("running", running)

    def forward(self, x: Tensor) -> Tensor:
        running = self.get_buffer("running")
        if self.training:
            running.mul_(0.8).add_(0.2 * x.detach().mean(0))
        return x - 0.3 * running


class Symmetric(nn.Module):
    """A parametrisation: a matrix and its mirror."""

    def forward(self, weight: Tensor) -> Tensor:
        return 0.5 * (weight + weight.T)


class Residual(nn.Module):
    """A layer around which its input passes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.inner(x)
        return result


BLOCKS = (
    "linear",
    "residual",
    "layer norm",
    "batch norm",
    "tied",
    "tied transposed",
    "shared module",
    "shared buffer",
    "weight norm",
    "spectral norm",
    "parametrised",
    "frozen",
)


class Transposed(nn.Module):
    """A layer that uses another's weight the other way round."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.weight = other.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.T)


def block(kind: str, first: nn.Linear, shared: nn.Module, running: Tensor) -> nn.Module:
    linear = nn.Linear(WIDTH, WIDTH)
    if kind == "residual":
        return Residual(linear)
    if kind == "layer norm":
        return nn.LayerNorm(WIDTH)
    if kind == "batch norm":
        return nn.BatchNorm1d(WIDTH)
    if kind == "tied":
        linear.weight = first.weight
    if kind == "tied transposed":
        return Transposed(first)
    if kind == "shared module":
        return shared
    if kind == "shared buffer":
        return Averaging(running)
    if kind == "weight norm":
        parametrizations.weight_norm(linear)
    if kind == "spectral norm":
        parametrizations.spectral_norm(linear)
    if kind == "parametrised":
        parametrize.register_parametrization(linear, "weight", Symmetric())
    if kind == "frozen":
        linear.requires_grad_(False)
    return linear


def module(stem: str, kinds: tuple[str, ...]) -> nn.Module:
    """Return a stem, blocks with smooth functions between them, and a readout."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(72, WIDTH)]
    if stem == "convolution":
        layers = [nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, WIDTH)]
    first, shared, running = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), torch.zeros(WIDTH, dtype=torch.float64)
    layers += [nn.Tanh(), first]
    for kind in kinds:
        layers += [nn.Tanh(), block(kind, first, shared, running)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3)).double()


def kept_job(make: Callable[[], nn.Module], recipe: Recipe) -> Job:
    """Return a job whose trials start as made, all parameters at one rate; no graph is needed for that."""
    named = [(name, p) for name, p in make().named_parameters() if p.requires_grad]
    own = tuple(ParameterPlan(name, 0.0, (), "as made", kept=True, shape=tuple(p.shape)) for name, p in named)
    return Job.of(make, dataclasses.replace(some_plan(), parameters=own), recipe, range(2))


@functools.cache
def some_plan() -> Plan:
    return es.plan(plain.mlp(), plain.images()[0][:2], init="keep")


def trained(
    kind: type[StackedReplicas] | type[SeparateReplicas], job: Job, trials: list[Trial]
) -> dict[Trial, TrialResult]:
    group: ReplicaGroup = kind(job, trials, CPU)
    return {result.trial: result for result in train(group, plain.images(), job.recipe)}


@settings(max_examples=40)
@given(
    st.sampled_from(("flat", "convolution")),
    st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4).map(tuple),
    st.sampled_from(("sgd", "momentum", "adam")),
)
def test_stacked_single_and_plain_trials_are_one(stem: str, kinds: tuple[str, ...], optimizer: Any) -> None:
    make = functools.partial(module, stem, kinds)
    job = kept_job(make, Recipe(optimizer=optimizer, steps=6, batch_size=12))
    trials = [Trial(lr, seed) for lr in (0.003, 0.02) for seed in range(2)]
    forms = [trained(SeparateReplicas, job, trials)]
    if "spectral norm" in kinds:  # torch does not stack one of its operators, and says so
        assert not stacks(job, plain.images(), trials, CPU)
    else:
        assert stacks(job, plain.images(), trials, CPU)
        forms.append(trained(StackedReplicas, job, trials))
    torch_optimizers: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "momentum": functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True),
        "adam": torch.optim.Adam,
    }
    for one in trials:
        expected = plain.trained(
            make,
            plain.images(),
            lr=one.lr,
            seed=one.seed,
            optimizer=torch_optimizers[optimizer],
            steps=6,
            batch_size=12,
        )
        for found in forms:
            assert found[one].curve == pytest.approx(expected.curve, rel=1e-7)
            assert found[one].loss == pytest.approx(expected.loss, rel=1e-7)
    # The trials learn, or agreeing would mean little.
    assert len({result.loss for result in forms[0].values()}) == len(trials)


def tied() -> nn.Module:
    return module("flat", ("tied", "tied transposed", "shared module", "linear", "shared module"))


def buffered() -> nn.Module:
    return module("flat", ("shared buffer", "linear", "shared buffer"))


def parametrised() -> nn.Module:
    return module("flat", ("weight norm", "tied", "parametrised"))


def spectral() -> nn.Module:
    return module("flat", ("spectral norm", "tied"))


def sharing(model: nn.Module) -> list[list[str]]:
    """Return which names are one tensor or one module, by identity, independent of the code under test."""
    places: dict[int, list[str]] = {}
    named: Iterator[tuple[str, Any]]
    for named in (
        model.named_parameters(remove_duplicate=False),
        model.named_buffers(remove_duplicate=False),
        model.named_modules(remove_duplicate=False),
    ):
        for name, thing in named:
            places.setdefault(id(thing), []).append(name)
    return sorted(sorted(names) for names in places.values())


@pytest.mark.parametrize("make", [tied, buffered, parametrised, spectral])
def test_sharing_survives_starts_moves_and_journeys(make: Callable[[], nn.Module]) -> None:
    job = kept_job(make, Recipe(steps=4, batch_size=12))
    expected = sharing(make())
    assert any(len(names) > 1 for names in expected)
    assert sharing(job.start(1)) == expected
    again: Job = pickle.loads(pickle.dumps(job))
    assert sharing(again.template) == expected
    assert sharing(job.template) == expected  # packing left it alone
    assert [type(m).__name__ for m in again.template.modules()] == [type(m).__name__ for m in job.template.modules()]
    one = [Trial(0.02, 1)]
    assert trained(SeparateReplicas, again, one) == trained(SeparateReplicas, job, one)
    copied = copy.deepcopy(again.template)
    assert sharing(copied) == expected


def test_a_shared_buffer_stays_one_on_another_device() -> None:
    """On the device 'meta', as on a GPU, buffers are new tensors."""
    alone = buffered().to("meta")
    assert len({id(b) for b in alone.buffers()}) == 2  # or this test shows nothing
    assert len({id(b) for b in move_(buffered(), torch.device("meta")).buffers()}) == 1


@pytest.mark.parametrize("make", [tied, parametrised])
def test_workers_train_shared_weights_as_this_process_does(make: Callable[[], nn.Module]) -> None:
    job = kept_job(make, Recipe(steps=4, batch_size=12))
    trials = [Trial(lr, seed) for lr in (0.003, 0.02) for seed in range(2)]
    for batching in (Batching("stacked", 2), Batching("single", 1)):
        here, there = (
            {r.trial: r for r in LocalEngine(workers=workers).run(job, plain.images(), trials, batching)}
            for workers in (1, 2)
        )
        assert here == there  # to the last bit
        assert len(here) == 4


# What is silently another network when stacked


class Listed(nn.Module):
    """A network that reads a weight through a list, which no function that swaps parameters knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(72, 72), nn.Linear(72, 3)
        self.weights = [self.layer.weight]

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(torch.tanh(F.linear(torch.tanh(self.layer(x.flatten(1))), self.weights[0])))
        return result


def drawing() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.Dropout(0.2), nn.Linear(8, 3)).double()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (tied, True),
        (buffered, True),
        (parametrised, True),
        (spectral, False),
        (plain.batch_norm, True),
        (drawing, False),
        (lambda: Listed().double(), False),
    ],
)
def test_only_what_trains_alike_is_stacked(make: Callable[[], nn.Module], expected: bool) -> None:
    job = kept_job(make, Recipe(steps=4, batch_size=12))
    assert stacks(job, plain.images(), [Trial(0.1, 0), Trial(0.2, 1)], CPU) is expected


def test_a_network_that_cannot_be_copied_is_refused_with_the_remedy(tmp_path: Path) -> None:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.log = nn.Linear(72, 3), (tmp_path / "log").open("w")

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(x.flatten(1))
            return result

    made = Holding()
    try:
        with pytest.raises(InputError, match="Holding cannot be copied"):
            es.search_lr(lambda: made, plain.images(dtype=torch.float32), epochs=1, seeds=1)
    finally:
        made.log.close()
