"""Check the base search against a fine grid trained by a loop of its own."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenstep as es
from evenstep.data import digits
from evenstep.errors import SearchError
from evenstep.graph import dag_mlp_graph
from evenstep.search import LocalEngine, SearchProgress
from evenstep.search.engines.batching import Batching
from evenstep.search.fields import Data, TensorPair, called, loss_of
from evenstep.search.job import Job, Trial
from evenstep.search.recipe import Recipe
from evenstep.search.replicas import TrialResult
from evenstep.search.result import chosen
from tests.search import plain

torch.set_num_threads(1)

GRAPH = dag_mlp_graph("2", width=8, inputs=4)


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def data() -> TensorPair:
    images, labels = digits().train
    return images[:512], labels[:512]


@cache
def searched() -> es.LRSearch:
    return es.search_lr(small, data(), epochs=1, seeds=3, batch_size=16)


def brute_force(rates: list[float], seeds: int) -> list[float]:
    """Train one epoch at every rate: weights by hand, plain SGD by hand; return mean losses over seeds.

    A first layer of deviation 1/sqrt(fan_in), a readout of 1/sqrt(3 fan_in). Rates are fan_in var(W) sqrt(out / in),
    and those of biases the second moment of what they are added to: what the plan says of a base that is its own base.
    """
    ratios = [math.sqrt(32 / 64), 1.0, math.sqrt(10 / 32) / 3, 1 / 3]
    images, labels = data()
    images = images.flatten(1)
    losses = []
    for rate in rates:
        total = 0.0
        for seed in range(100, 100 + seeds):
            generator = torch.Generator().manual_seed(seed)
            weights = [
                torch.randn(32, 64, generator=generator) / math.sqrt(64),
                torch.zeros(32),
                torch.randn(10, 32, generator=generator) / math.sqrt(3 * 32),
                torch.zeros(10),
            ]
            for start in range(0, 512, 16):
                order = slice(start, start + 16)
                for w in weights:
                    w.requires_grad_(True)
                hidden = F.relu(F.linear(images[order], weights[0], weights[1]))
                loss = F.cross_entropy(F.linear(hidden, weights[2], weights[3]), labels[order])
                gradients = torch.autograd.grad(loss, weights)
                moves = [rate * ratio * g for ratio, g in zip(ratios, gradients, strict=True)]
                weights = [w.detach() - move for w, move in zip(weights, moves, strict=True)]
            with torch.no_grad():
                hidden = F.relu(F.linear(images, weights[0], weights[1]))
                total += float(F.cross_entropy(F.linear(hidden, weights[2], weights[3]), labels))
        losses.append(total / seeds if math.isfinite(total) else math.inf)
    return losses


def test_the_search_agrees_with_a_fine_grid() -> None:
    found = searched()
    rates = [found.best * 2 ** (step / 2) for step in range(-6, 7)]
    losses = brute_force(rates, seeds=6)
    truth = rates[min(range(len(rates)), key=losses.__getitem__)]
    assert truth / 2 <= found.best <= truth * 2
    # At the searched rate the hand-made training does nearly as well as at its own best.
    assert losses[6] <= min(losses) + 0.1
    assert found.status == "ok"


def test_the_result_is_a_record_of_the_search() -> None:
    found = searched()
    assert list(found.grid) == sorted(found.grid)
    assert len(found.grid) == len(found.losses)
    assert {len(seeds) for seeds in found.losses} == {3}
    assert found.best in found.grid
    at = found.grid.index(found.best)
    assert found.bracket == (found.grid[at - 1], found.grid[at + 1])
    assert es.plan(found.graph).parameters == es.plan(small(), data()[0][:2]).parameters
    # Finer than an octave around the best, which is as good as the lowest but for one standard error.
    assert found.bracket[1] / found.bracket[0] < 2
    lowest = min(found.losses, key=statistics.fmean)
    assert found.mean_losses[at] <= statistics.fmean(lowest) + statistics.stdev(lowest) / math.sqrt(3)
    assert found.interval is not None
    assert found.grid[0] <= found.interval[0] < found.rate < found.interval[1] <= found.grid[-1]


class Steady(LocalEngine):
    """An engine of one form: which is fastest is another on a busy machine, and the last digits with it."""

    def choose(self, job: Job, data: Data, trials: Sequence[Trial]) -> Batching:
        return Batching("stacked", 4)


def test_the_same_seeds_give_the_same_search_and_the_global_state_stays() -> None:
    before = torch.random.get_rng_state()
    first, again = (
        es.search_lr(small, data(), epochs=1, seeds=3, batch_size=16, engine=Steady(workers=1)) for _ in range(2)
    )
    assert again == first
    assert torch.equal(before, torch.random.get_rng_state())
    assert again.best == searched().best


def test_progress_counts_every_trial_and_names_the_best_so_far() -> None:
    seen: list[SearchProgress] = []
    found = es.search_lr(small, data(), epochs=1, seeds=2, batch_size=64, progress=seen.append)
    trials = 2 * len(found.grid)
    assert sorted({point.done for point in seen}) == list(range(trials + 1))
    assert [point.done for point in seen] == sorted(point.done for point in seen)
    assert all(point.done <= point.total for point in seen)
    assert (seen[-1].total, seen[-1].share) == (trials, 1.0)
    lowest = min(loss for seeds in found.losses for loss in seeds)
    assert seen[-1].loss == lowest
    assert seen[-1].best in [rate for rate, seeds in zip(found.grid, found.losses, strict=True) if lowest in seeds]
    assert seen[-1].diverged == found.diverged
    assert [point.loss for point in seen] == sorted((point.loss for point in seen), reverse=True)


def test_a_start_far_off_is_walked_back_from() -> None:
    """From rates at which training diverges, or crawls, to the same octave as from the middle."""
    middle = es.search_lr(small, data(), epochs=1, seeds=1, batch_size=64)
    for start in (1e4, 1e-3):
        far = es.search_lr(small, data(), epochs=1, seeds=1, batch_size=64, start=start)
        assert middle.best / 2.1 <= far.best <= middle.best * 2.1


def test_a_quadratic_is_solved_at_the_rate_of_the_textbook() -> None:
    """A linear model on whitened inputs, full batch: loss = |w - w*|^2, one step at rate 1/2 lands on the minimum.

    Its layer makes a third of what it reads, of 8 units one: it trains at 1 / (3 sqrt(8)) of the searched rate.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = torch.linalg.qr(torch.randn(64, 8, generator=generator)).Q * 8.0  # x^T x / n = 1
    targets = inputs @ torch.randn(8, 1, generator=generator)

    def model() -> nn.Module:
        return nn.Linear(8, 1, bias=False)

    found = es.search_lr(model, (inputs, targets), seeds=2, epochs=1, batch_size=64, start=0.3, loss=F.mse_loss)
    assert found.best / (3 * math.sqrt(8)) == pytest.approx(0.5, rel=0.2)


def test_the_base_of_a_plan_is_the_searched_network() -> None:
    found = searched()
    planned = es.plan(small(), data()[0][:2], base=found)
    assert planned.base == found.rate == (found.estimate or found.best)
    # Its own base: what is left is every parameter's own.
    assert planned.lr_scale == pytest.approx(1.0)
    expected = [math.sqrt(32 / 64), 1.0, math.sqrt(10 / 32) / 3, 1 / 3]
    assert [p.lr_scale for p in planned.parameters] == pytest.approx(expected)


# What is trained, and where the search looks


def half_cosine(step: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / 8))


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - F.one_hot(target, 3)).square().mean()


sgd, adam = torch.optim.SGD, torch.optim.Adam
OPTIONS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "epochs": ({"epochs": 2}, sgd, {}),
    "steps": ({"steps": 5, "epochs": 3}, sgd, {"steps": 5}),
    "batch_size": ({"batch_size": 6}, sgd, {"batch_size": 6}),
    "weight_decay": ({"weight_decay": 0.2}, partial(sgd, weight_decay=0.2), {}),
    "momentum": ({"optimizer": "momentum", "momentum": 0.7}, partial(sgd, momentum=0.7, nesterov=True), {}),
    "nesterov": ({"optimizer": "momentum", "nesterov": False}, partial(sgd, momentum=0.9), {}),
    "optimizer": ({"optimizer": "adam"}, adam, {}),
    "schedule": ({"schedule": half_cosine}, sgd, {"schedule": half_cosine}),
    "loss": ({"loss": squares}, sgd, {"loss": squares}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_a_recipe_is_trained_by(name: str) -> None:
    """Against a loop of torch's own; an option that is left on the way would train as if it were not given."""
    options, optimizer, literal = OPTIONS[name]
    pair = plain.images()
    # Starts as torch draws it, at one rate, whatever the optimiser.
    planned = replace(plain.job_of(plain.mlp, pair, Recipe()).plan, optimizer_name=options.get("optimizer", "sgd"))
    rates, defaults = [0.005, 0.02], {"batch_size": 12, "epochs": 1} | options
    found = es.search_lr(plain.mlp, pair, plan=planned, grid=rates, seeds=2, on_failure="return", **defaults)
    by_hand = {"batch_size": 12, "steps": 48 // defaults["batch_size"] * defaults["epochs"]} | literal
    for rate, losses in zip(found.grid, found.losses, strict=True):
        expected = [plain.trained(plain.mlp, pair, lr=rate, seed=s, optimizer=optimizer, **by_hand) for s in (0, 1)]
        assert losses == pytest.approx([one.loss for one in expected], rel=1e-9)
    plainly = replace(planned, optimizer_name="momentum" if planned.optimizer_name == "momentum" else "sgd")
    defaults = {"batch_size": 12, "epochs": 1, "on_failure": "return"}
    usual = es.search_lr(plain.mlp, pair, plan=plainly, grid=rates, seeds=2, **defaults)
    assert found.losses != usual.losses


def test_without_a_plan_the_network_starts_by_the_named_initialisation() -> None:
    graph = es.trace(small(), data()[0][:2])
    options: dict[str, Any] = {
        "epochs": 1,
        "seeds": 1,
        "grid": [0.05],
        "on_failure": "return",
        "engine": Steady(workers=1),
    }
    found = {init: es.search_lr(small, data(), init=init, **options) for init in ("conserve", "he")}
    for init, search in found.items():
        assert (
            search.losses
            == es.search_lr(small, data(), plan=es.plan(graph, init=init, base_graph=graph), **options).losses
        )
    assert found["he"].losses != found["conserve"].losses


class Told:
    """An engine whose losses are told, in units of the untrained network's, by the quarter octaves above rate 1."""

    def __init__(self, loss: Callable[[int], float]) -> None:
        self.loss = loss

    def choose(self, job: Job, data: Data, trials: Sequence[Trial]) -> Batching:
        return Batching("single", 1)

    def run(
        self, job: Job, data: Data, trials: Sequence[Trial], batching: Batching | None = None
    ) -> Iterator[TrialResult]:
        with torch.no_grad():
            untrained = float(loss_of(job.recipe.loss, called(job.start(0), data[0]), data[1]))
        for trial in trials:
            yield TrialResult(trial, self.loss(round(4 * math.log2(trial.lr))) * untrained, ())

    def close(self) -> None:
        pass


def positions(loss: Callable[[int], float]) -> tuple[int, list[int]]:
    """Return the best position and all that were tried, in quarter octaves above rate 1."""
    found = es.search_lr(small, data(), epochs=1, seeds=1, start=1.0, batch_size=512, engine=Told(loss))
    best, *tried = (round(4 * math.log2(rate)) for rate in (found.best, *found.grid))
    return best, tried


def valley(position: int, bottom: int, depth: float) -> float:
    return depth + 0.01 * abs(position - bottom)


def test_the_first_rates_are_three_octaves_either_side_of_the_start() -> None:
    best, tried = positions(lambda position: valley(position, 1, 0.3))
    assert best == 1
    assert [position for position in tried if position % 4 == 0] == list(range(-12, 13, 4))


def test_losses_far_above_the_untrained_ones_are_no_minimum() -> None:
    """Units that died at huge rates leave losses finite, here the lower the larger the rate: no way to go."""
    best, tried = positions(lambda position: 3 - 0.001 * position if position > -20 else valley(position, -29, 0.5))
    assert best == -29
    assert tried[-1] == 12


def test_below_rates_that_diverge_a_network_has_to_learn_something() -> None:
    """Dead networks end just below where they began: not a tenth is learnt, and the search goes on to where it is."""

    def loss(position: int) -> float:
        if position > 4:
            return math.inf
        return 0.91 + 0.001 * abs(position) if position > -13 else valley(position, -17, 0.85)

    best, tried = positions(loss)
    assert best == -17
    assert tried[0] == -20  # an octave beyond the first that learns, and no further


def test_after_twelve_octaves_of_dead_networks_the_best_of_them_is_taken() -> None:
    best, tried = positions(lambda position: math.inf if position > 4 else 0.95 + 0.001 * abs(position - 1))
    assert best == 1
    assert tried[0] == 4 - 12 * 4


# Choosing from a finished grid


def test_the_largest_rate_within_the_noise_of_the_smallest_loss_is_best() -> None:
    grid = (0.1, 0.2, 0.4, 0.8)
    losses = ((2.0, 2.0), (1.0, 1.2), (1.1, 1.15), (3.0, math.inf))
    found = chosen(grid, losses, GRAPH)
    # The mean at 0.2 is 1.1 with a standard error of 0.1; 1.125 at 0.4 is within it.
    assert (found.best, found.status) == (0.4, "ok")
    assert found.bracket == (0.2, 0.8)
    assert found.mean_losses[-1] == math.inf


@pytest.mark.parametrize(("losses", "best"), [((1.0, 2.0, 3.0), 0.1), ((3.0, 2.0, 1.0), 0.4)])
def test_a_best_at_the_edge_says_so(losses: tuple[float, ...], best: float) -> None:
    found = chosen((0.1, 0.2, 0.4), tuple((loss,) for loss in losses), GRAPH)
    assert (found.best, found.status) == (best, "best_at_edge")


def test_when_all_diverge_there_is_no_best_and_no_plan() -> None:
    found = chosen((0.1, 0.2), ((math.inf,), (math.inf,)), GRAPH)
    assert found.status == "all_diverged"
    assert math.isnan(found.best)
    with pytest.raises(es.InputError, match="base learning rate is nan"):
        es.plan(GRAPH, base=found)


def squared_to_infinity(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean() / (output * 0).sum().abs()  # x / 0: infinite whatever the rate


def test_a_network_that_always_diverges_raises_and_says_what_to_change() -> None:
    pair = torch.ones(32, 4), torch.zeros(32, 1)
    options: dict[str, Any] = {"epochs": 1, "seeds": 1, "batch_size": 32, "loss": squared_to_infinity}
    with pytest.raises(SearchError, match=r"every trial diverged .* search lower rates"):
        es.search_lr(lambda: nn.Linear(4, 1), pair, **options)
    found = es.search_lr(lambda: nn.Linear(4, 1), pair, on_failure="return", **options)
    assert found.status == "all_diverged"
    assert found.diverged == len(found.grid)
    # It looked lower before it gave up: a billion times below the start, and nowhere twice.
    assert found.grid[0] < 0.1 * 2**-29
    assert len(set(found.grid)) == len(found.grid)


def test_a_best_that_stays_at_the_edge_raises_and_says_what_to_change() -> None:
    with pytest.raises(SearchError, match=r"at the edge of the grid, learning rate 0\.02; widen"):
        es.search_lr(small, data(), epochs=1, seeds=1, grid=[0.005, 0.01, 0.02])
    found = es.search_lr(small, data(), epochs=1, seeds=1, grid=[0.02, 0.005, 0.01, 0.01], on_failure="return")
    assert (found.status, found.best, found.grid) == ("best_at_edge", 0.02, (0.005, 0.01, 0.02))


# Bad input


@pytest.mark.parametrize("given", [nn.Linear(4, 2), "small", None])
def test_a_module_in_the_place_of_the_function_that_makes_it_is_named(given: Any) -> None:
    with pytest.raises(
        es.InputError, match=f"make_model is a {type(given).__name__}; give a function that returns a new"
    ):
        es.search_lr(given, data())


@pytest.mark.parametrize(
    ("option", "value"),
    [("epochs", 0), ("batch_size", -1), ("seeds", 1.5), ("start", 0.0), ("start", math.nan), ("optimizer", "lamb")],
)
def test_wrong_options_are_named(option: str, value: Any) -> None:
    with pytest.raises(es.InputError, match=option):
        es.search_lr(small, data(), **{option: value})


def test_a_model_that_does_not_fit_the_data_is_refused() -> None:
    make: Callable[[], nn.Module] = lambda: nn.Linear(5, 10)  # noqa: E731
    with pytest.raises(es.TraceError, match="does not run on a batch of the data"):
        es.search_lr(make, (torch.zeros(8, 64), torch.zeros(8, dtype=torch.long)))
