"""Check that what does not belong together is refused: optimisers, searches without an answer, idle parameters."""

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import evenstep as es
from evenstep.search import LocalEngine
from evenstep.search.recipe import Recipe
from evenstep.search.result import chosen

torch.set_num_threads(1)

INPUTS = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long()
OPTIONS: dict[str, Any] = {"steps": 8, "seeds": 2, "batch_size": 32, "engine": LocalEngine(workers=1)}


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def search(make: Any = small, data: Any = (INPUTS, LABELS), **options: Any) -> es.LRSearch:
    return es.search_lr(make, data, **OPTIONS | options)


# Optimisers


def test_a_plan_for_one_optimizer_is_not_searched_with_another() -> None:
    plan = es.plan(small(), INPUTS[:2], optimizer="adam")
    with pytest.raises(
        es.InputError, match=r"plan is for optimizer 'adam', but optimizer is 'sgd'.*leave optimizer out"
    ):
        search(plan=plan, optimizer="sgd")
    found = search(plan=plan, grid=[1e-5, 0.01, 100.0])
    assert found.optimizer == "adam"
    assert found.losses == search(plan=plan, optimizer="adam", grid=[1e-5, 0.01, 100.0]).losses
    assert found.losses != search(grid=[1e-5, 0.01, 100.0], on_failure="return").losses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 2.0}, r"momentum is 2\.0; give a number from 0 and below 1"),
        ({"momentum": 1}, r"momentum is 1; give"),
        ({"momentum": "0.9"}, r"momentum is '0\.9'; give"),
        ({"weight_decay": "much"}, "weight_decay is 'much'; give a finite number from 0 up"),
        ({"schedule": "step"}, "schedule is 'step'; choose one of constant, cosine"),
        ({"schedule": lambda step: "fast"}, "the schedule's factor at step 0 is 'fast'; give"),
        ({"schedule": lambda step: 1 / step}, "the schedule raised ZeroDivisionError at step 0"),
        ({"schedule": lambda step: -1.0}, r"the schedule's factor at step 0 is -1\.0; give"),
        ({"loss": "mse"}, "loss is 'mse'; give a function"),
        ({"progress": "bar"}, "progress is 'bar'; give a function"),
        ({"plan": "plan.json"}, r"plan is 'plan\.json'; give what evenstep\.plan"),
        ({"store": 5}, "store is 5; give the path of a file"),
        ({"nesterov": 1}, "nesterov is 1; give True or False"),
        (
            {"optimizer": "sgd", "momentum": 0.9},
            r"momentum is 0\.9.*optimizer is 'sgd'.*use 'momentum' for SGD with momentum",
        ),
        ({"optimizer": "momentum", "momentum": 0.0}, r"momentum is 0 .*optimizer is 'momentum'"),
        ({"optimizer": "adam", "momentum": 0.9}, "optimizer is 'adam'; leave them out"),
        ({"grid": 0.1}, r"the grid is 0\.1; give a list"),
        ({"grid": "0.1"}, r"the grid is '0\.1'; give a list"),
        ({"start": 10**400}, "start is 1000"),
    ],
)
def test_options_that_no_training_can_run_with_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(es.InputError, match=message) as caught:
        search(**options)
    assert "\n" not in str(caught.value)


def test_a_grid_may_be_a_generator() -> None:
    rates = (0.01, 1.0, 1000.0)
    assert search(grid=(rate for rate in rates), on_failure="return") == search(grid=list(rates), on_failure="return")


@pytest.mark.parametrize("betas", [(0.9, 1.0), (-0.1, 0.9), (0.9,), "high"])
def test_betas_out_of_range_are_refused(betas: Any) -> None:
    with pytest.raises(es.InputError, match="betas"):
        Recipe(optimizer="adam", betas=betas)


# Searches without an answer


def test_a_search_that_learns_nothing_says_so_and_is_no_base() -> None:
    noise = torch.randint(2, (256,), generator=torch.Generator().manual_seed(1))
    blind = torch.zeros(256, 8)  # inputs that say nothing, and labels that are as many of each
    labels = torch.arange(256) % 2
    with pytest.raises(es.SearchError, match=r"nothing was learnt: the smallest loss 0\.69.*train longer"):
        search(data=(blind, labels))
    found = search(data=(blind, labels), on_failure="return")
    assert found.status == "learnt_nothing"
    assert found.untrained == pytest.approx(math.log(2), rel=1e-3)
    with pytest.raises(es.InputError, match=r"status 'learnt_nothing'.*train longer.*base=search\.rate"):
        es.plan(small(), INPUTS[:2], base=found)
    assert es.LRSearch.from_dict(found.to_dict()) == found
    assert search(data=(INPUTS, noise), on_failure="return").untrained is not None
    assert search(on_failure="return").status != "learnt_nothing"


def log_probabilities() -> nn.Module:
    return nn.Sequential(small(), nn.LogSoftmax(1))


class Summing(nn.Module):
    """A model that computes its own loss, a sum over examples."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layers(x)
        return {"logits": logits} | (
            {} if labels is None else {"loss": functional.cross_entropy(logits, labels, reduction="sum")}
        )


@pytest.mark.parametrize(
    ("make", "data", "options"),
    [
        (log_probabilities, (INPUTS, LABELS), {"loss": functional.nll_loss}),
        (Summing, {"x": INPUTS, "labels": LABELS}, {}),
    ],
)
def test_what_a_loss_makes_of_zeros_is_no_guess_where_it_reads_no_logits(
    make: Any, data: Any, options: dict[str, Any]
) -> None:
    """Zeros are certain of every class where they are logarithms of probabilities, and nothing ends below that."""
    found = search(make, data, steps=40, seeds=1, on_failure="return", **options)
    assert found.untrained is not None
    assert found.untrained > math.log(2) * 0.9
    assert found.status != "learnt_nothing"


def test_noise_is_the_spread_of_the_seeds() -> None:
    graph = es.trace(small(), INPUTS[:2])
    rates, steady = (0.1, 0.2, 0.4), ((1.0, 1.0), (0.9, 0.9), (1.0, 1.0))
    assert chosen(rates, steady, graph, (1.0, 1.0)).status == "ok"
    assert chosen(rates, steady, graph, (0.9, 0.9)).status == "learnt_nothing"
    assert chosen(rates, steady, graph, (0.9001, 0.9001)).status == "learnt_nothing"  # less than a thousandth
    assert chosen(rates, steady, graph, (0.8, 1.2)).status == "learnt_nothing"  # a tenth, where seeds differ by more
    assert chosen(rates, steady, graph, (math.inf, 1.0)).status == "ok"  # a start that says nothing
    assert chosen(rates, steady, graph).status == "ok"


@pytest.mark.parametrize("status", ["best_at_edge", "learnt_nothing", "all_diverged"])
def test_a_search_without_an_answer_is_no_base(status: Any) -> None:
    found = search(grid=[1e-5, 1.0, 1000.0], on_failure="return")
    answered = replace(found, status="ok")
    assert es.plan(small(), INPUTS[:2], base=answered).base
    with pytest.raises(es.InputError, match=rf"status '{status}'"):
        es.plan(small(), INPUTS[:2], base=replace(found, status=status))
    taken = es.plan(small(), INPUTS[:2], base=found.best, base_graph=found.graph, optimizer="sgd")
    assert taken.base == found.best


# Models, losses and data that do not fit


def test_a_label_out_of_range_after_the_first_batch_is_said_before_training() -> None:
    labels = LABELS.clone()
    labels[200] = 7
    with pytest.raises(es.InputError, match=r"2 outputs.*target of example 200 is 7; give labels from 0 to 1"):
        search(data=(INPUTS, labels))
    labels[200] = -100  # what cross entropy leaves out
    search(data=(INPUTS, labels), grid=[1e-5, 1.0, 1000.0], on_failure="return")


def late(output: Tensor, target: Tensor) -> Tensor:
    if bool((target == 7).any()):
        raise ValueError("seven\nis too many")
    return functional.cross_entropy(output, target.clamp(0, 1))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_a_later_batch_raises_is_one_line() -> None:
    labels = LABELS.clone()
    labels[255] = 7
    with pytest.raises(es.InputError, match=r"do not fit the data .*seven is too many") as caught:
        es.search_lr(small, (INPUTS, labels), loss=late, epochs=1, batch_size=8, seeds=1, engine=LocalEngine(workers=1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, target: functional.cross_entropy(output.detach(), target),
        lambda output, target: (output.argmax(1) == target).float().mean(),
        lambda output, target: (output.argmax(1) == target).sum(),
    ],
)
def test_a_loss_without_a_gradient_is_refused(loss: Any) -> None:
    with pytest.raises(es.InputError, match="has no gradient, so nothing can be trained"):
        search(loss=loss)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((INPUTS.to_sparse(), LABELS), r"the inputs are sparse \(sparse_coo\); give dense ones"),
        ((INPUTS, LABELS.to_sparse()), "the targets are sparse"),
        ((INPUTS.to("meta"), LABELS), "the inputs are on the device 'meta'"),
        ((INPUTS, LABELS.to("meta")), "the targets are on the device 'meta'"),
    ],
)
def test_data_that_holds_no_plain_values_is_refused(data: Any, message: str) -> None:
    with pytest.raises(es.InputError, match=message):
        search(data=data)


@pytest.mark.parametrize("init", ["conserve", "keep"])
def test_a_function_that_makes_another_network_at_each_call_is_refused(init: str) -> None:
    widths = iter(range(16, 100))

    def make() -> nn.Module:
        width = next(widths)
        return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))

    with pytest.raises(
        es.InputError, match=r"make_model returned Sequential with '0\.weight' of shape.*the same network"
    ):
        search(make, init=init)


def test_a_function_that_makes_another_network_for_a_later_seed_is_refused() -> None:
    made: list[int] = []

    def make() -> nn.Module:
        made.append(len(made))
        width = 16 if len(made) < 4 else 17
        return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))

    with pytest.raises(es.InputError, match="the same network at each call"):
        search(make, init="keep", seeds=5)


# Parameters that nothing trains


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.idle = nn.Linear(8, 16), nn.Linear(16, 2), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.body(x)))
        return out


class Detached(Idle):
    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.body(x))
        out: Tensor = self.head(hidden + self.idle(hidden).detach())
        return out


@pytest.mark.filterwarnings("ignore:.*no output depends on it:evenstep.PlanWarning")
def test_parameters_without_a_gradient_are_said_and_searched_around() -> None:
    grid = [1e-5, 1.0, 1000.0]
    with pytest.warns(UserWarning, match=r"'idle\.weight' and 1 more of Idle gets no gradient.*freeze it"):
        found = search(Idle, grid=grid, on_failure="return")
    assert math.isfinite(min(found.mean_losses))
    with pytest.warns(UserWarning, match=r"'idle\.weight' and 1 more of Detached gets no gradient.*freeze it"):
        found = search(Detached, grid=grid, on_failure="return")
    assert math.isfinite(min(found.mean_losses))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search(lambda: _frozen(Idle()), grid=grid, on_failure="return")


def _frozen(model: Idle) -> Idle:
    model.idle.requires_grad_(False)
    return model
