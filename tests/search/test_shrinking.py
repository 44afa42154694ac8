"""Search networks of sizes that are given, and a schedule, a default and a picture by what they should be."""

import math
import pickle
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import evenstep as es
from evenstep.graph import dag_mlp_graph
from evenstep.search import LocalEngine, SearchProgress, cosine_schedule
from evenstep.search.result import chosen
from evenstep.search.store import Store
from tests.search import plain

torch.set_num_threads(1)

INPUTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
DATA = INPUTS, (INPUTS[:, 0] > 0).long()
OPTIONS: dict[str, Any] = {"epochs": 1, "batch_size": 16, "seeds": 1, "grid": [0.1, 0.4], "on_failure": "return"}
OPTIONS |= {"engine": LocalEngine(workers=1)}


def make(width: int, depth: int = 2, *, slope: float = 0.0) -> nn.Module:
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.LeakyReLU(slope))]
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), *hidden, nn.Linear(width, 2))


def test_a_shrunk_network_is_the_one_of_its_sizes() -> None:
    found = es.search_lr(make, DATA, shrink={"width": 8, "depth": 1}, **OPTIONS)
    assert found.losses == es.search_lr(partial(make, 8, 1), DATA, **OPTIONS).losses
    assert found.shrink == {"width": 8, "depth": 1}
    assert es.LRSearch.from_dict(found.to_dict()) == found
    assert hash(found) == hash(es.LRSearch.from_dict(found.to_dict()))


def anything(**sizes: int) -> nn.Module:
    return make(**sizes)


@pytest.mark.parametrize(
    ("function", "sizes", "message"),
    [
        (make, {"widht": 8}, "shrink names 'widht', and make takes width, depth, slope; give some of these"),
        (make, {"depth": 1}, "make also needs 'width'; add it to shrink"),
        (plain.mlp, {"width": 1}, "shrink names 'width', and mlp takes none; leave shrink out"),
        (make, {}, "give sizes by name"),
        (make, 64, "shrink is 64; give sizes by name"),
        (make, {"width": nn.ReLU}, "shrink gives 'width' as"),
    ],
)
def test_sizes_that_a_function_does_not_take_are_named(function: Any, sizes: Any, message: str) -> None:
    with pytest.raises(es.InputError, match=re.escape(message)):
        es.search_lr(function, DATA, shrink=sizes, **OPTIONS)


def test_a_function_of_any_names_is_called_with_them() -> None:
    assert es.search_lr(anything, DATA, shrink={"width": 4, "depth": 1}, **OPTIONS).shrink == {"width": 4, "depth": 1}


@pytest.mark.parametrize("name", [None, "mine"])
def test_a_store_tells_sizes_apart(name: str | None, tmp_path: Path) -> None:
    """A size that changes no shape, too: under a name nothing else would show it."""
    store = tmp_path / "s.db"
    for slope in (0.0, 0.1, 0.1):
        es.search_lr(make, DATA, shrink={"width": 8, "slope": slope}, store=store, name=name, **OPTIONS)
    kept = Store(store, read_only=True)
    assert len(kept.searches()) == 2
    kept.close()


# The number of steps


class Counting(LocalEngine):
    """An engine that trains nothing: the loss is the number of steps."""

    def run(self, job: Any, data: Any, trials: Any, batching: Any = None) -> Any:
        from evenstep.search.replicas import TrialResult, step_count

        for trial in trials:
            yield TrialResult(trial, float(step_count(len(data[0]), job.recipe)), ())


@pytest.mark.parametrize(
    ("examples", "options", "steps"),
    [
        (64, {}, 300),  # an epoch is 4
        (16 * 500, {}, 500),  # an epoch
        (16 * 5000, {}, 1000),  # a fifth of one
        (64, {"epochs": 1}, 4),
        (64, {"epochs": 3}, 12),
        (64, {"steps": 7}, 7),
        (64, {"steps": 7, "epochs": 3}, 7),
    ],
)
def test_enough_steps_unless_they_are_given(examples: int, options: dict[str, int], steps: int) -> None:
    inputs = torch.zeros(examples, 6)
    found = es.search_lr(
        partial(make, 4),
        (inputs, inputs[:, 0].long()),
        batch_size=16,
        seeds=1,
        grid=[0.1],
        engine=Counting(workers=1),
        on_failure="return",
        **options,  # type: ignore[arg-type]
    )
    assert (found.losses, found.steps) == (((float(steps),),), steps)


# The schedule


def test_a_cosine_rises_and_falls_and_travels() -> None:
    schedule = cosine_schedule(100, warm_up=0.1)
    factors = [schedule(step) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert factors[10] == 1.0
    assert factors[10:] == pytest.approx([0.5 * (1 + math.cos(math.pi * k / 90)) for k in range(90)])
    assert 0 < factors[-1] < 0.001
    assert pickle.loads(pickle.dumps(schedule)) == schedule == cosine_schedule(100, 0.1)
    assert cosine_schedule(1)(0) == 1.0


def test_a_schedule_by_its_name_is_that_of_the_steps_taken() -> None:
    options = {**OPTIONS, "epochs": 5}
    named, given = (
        es.search_lr(partial(make, 8), DATA, schedule=schedule, **options)
        for schedule in ("cosine", cosine_schedule(20))
    )
    assert named.losses == given.losses
    constant = es.search_lr(partial(make, 8), DATA, **options)
    assert es.search_lr(partial(make, 8), DATA, schedule="constant", **options).losses == constant.losses
    assert named.losses != constant.losses


# Progress far from the start


def test_a_search_that_walks_far_never_goes_back(tmp_path: Path) -> None:
    seen: list[SearchProgress] = []
    options = {**OPTIONS, "grid": None, "start": 1e-7, "store": tmp_path / "s.db"}
    found = es.search_lr(partial(make, 8), DATA, progress=seen.append, **options)
    shares = [point.share for point in seen]
    assert shares == sorted(shares)
    assert (seen[-1].done, seen[-1].total, shares[-1]) == (len(found.grid), len(found.grid), 1.0)
    assert len(found.grid) > 17  # more than was expected: the walk is long enough to show something


# Pictures


def a_search() -> es.LRSearch:
    losses = ((1.0, 1.1), (0.5, 0.6), (0.7, 0.8), (math.inf, 0.9))
    return chosen((0.1, 0.2, 0.4, 0.8), losses, dag_mlp_graph("2"))


def test_a_notebook_shows_the_rate_the_curve_and_every_loss() -> None:
    search = a_search()
    root = ElementTree.fromstring(search._repr_html_())
    text = " ".join(root.itertext())
    assert f"learning rate {search.rate:.4g}" in text
    assert text.count("diverged") >= 2
    for loss in ("1.1", "0.55", "0.75"):
        assert loss in text
    (svg,) = root.iter("svg")
    dots = {
        colour: [dot for dot in svg.iter("circle") if dot.get("fill") == colour] for colour in ("#9bb8d3", "#1b6ca8")
    }
    assert [len(found) for found in dots.values()] == [7, 3]  # every finite loss, every finite mean
    heights = [float(dot.get("cy", "nan")) for dot in dots["#1b6ca8"]]
    assert heights[0] < heights[2] < heights[1]  # the lower the loss, the lower the dot
    assert "<script" not in search._repr_html_()
    lost = chosen((0.1, 0.2), ((math.inf,), (math.inf,)), dag_mlp_graph("2"))
    assert "every trial diverged" in lost._repr_html_()


def test_a_plot_draws_the_means_and_the_rate() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    search = a_search()
    axes = search.plot()
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["mean over seeds"].get_ydata()) == pytest.approx([1.05, 0.55, 0.75])
    assert list(lines[f"rate {search.rate:.3g}"].get_xdata()) == [search.rate] * 2
    assert search.plot(axes) is axes
    matplotlib.pyplot.close(axes.figure)


def test_without_matplotlib_a_plot_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(es.InputError, match=r"install it with pip install 'evenstep\[pictures\]'"):
        a_search().plot()
