"""Check single runs and the processes that train them: starts, rates, plans, data, and what goes wrong."""

from __future__ import annotations

import math
import multiprocessing
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import evenstep as es
from evenstep.errors import InputError, SearchError
from evenstep.init import Conserve
from evenstep.planning import plan_graph
from evenstep.rules import Weighted
from evenstep_research.study.real import work, workers
from evenstep_research.study.real.plans import Plans, fingerprint, traced
from evenstep_research.study.real.runs import Run
from evenstep_research.study.real.scales import REAL_SCALES, require_packages, rows_at
from evenstep_research.study.real.sources import Cifar10Source
from evenstep_research.study.real.training import train
from evenstep_research.study.real.work import Place
from evenstep_research.study.real.workers import RunWorkers
from research.tests.data import made

SMOKE = REAL_SCALES["smoke"]
CNN = "small cnn 3 x 16"
PLACE = Place("smoke", "cpu")


def run_of(treatment: str = "own", *, lr: float = 0.01, optimizer: str = "adam", steps: int = 8) -> Run:
    return Run(CNN, optimizer, steps, 3, treatment, lr, "")


def own_plan(rule: str = "weighted") -> es.Plan:
    base = traced("smoke", SMOKE.bases["cnn"].name)
    return plan_graph(traced("smoke", CNN), rule=rule, optimizer="adam", base_graph=base)


@pytest.mark.parametrize("optimizer", ["adam", "momentum", "prodigy"])
@pytest.mark.parametrize("planned", [False, True])
def test_a_run_is_what_a_user_would_write(optimizer: str, planned: bool) -> None:
    if planned and optimizer == "prodigy":
        pytest.skip("Prodigy sets its rates itself")
    plan = own_plan() if planned else None
    run = run_of("weighted" if planned else "own", optimizer=optimizer)
    work.settle(PLACE)
    state = torch.get_rng_state()
    loss, seconds = work.trained(run, plan)
    assert torch.equal(torch.get_rng_state(), state)
    assert seconds > 0
    torch.manual_seed(3)
    model = SMOKE.network(CNN).make()
    groups = list(model.parameters())
    if plan is not None:
        torch.manual_seed(3)
        es.initialize_(model, plan)
        groups = plan.param_groups(model, lr=0.01)  # type: ignore[assignment]
    made_optimizer: torch.optim.Optimizer
    if optimizer == "adam":
        made_optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0)
    elif optimizer == "momentum":
        made_optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True)
    else:
        from prodigyopt import Prodigy

        made_optimizer = Prodigy(groups, lr=0.01)
    batches = SMOKE.sources["images"].load(torch.device("cpu"), None)
    assert loss == train(model, made_optimizer, batches, steps=8, seed=3)


def test_a_run_that_diverges_has_an_infinite_loss() -> None:
    work.settle(PLACE)
    loss, _ = work.trained(run_of(lr=1e30, optimizer="momentum"), None)
    assert loss == math.inf


def test_the_same_plan_has_the_same_fingerprint_and_a_changed_one_another() -> None:
    plan, base = own_plan(), traced("smoke", SMOKE.bases["cnn"].name)
    traced.cache_clear()
    torch.manual_seed(123)  # networks are made anew, whatever the generator has seen
    assert fingerprint(own_plan()) == fingerprint(plan)
    slower = replace(plan, parameters=tuple(reversed(plan.parameters)))
    assert fingerprint(slower) == fingerprint(plan)
    others = [
        own_plan("spectral"),
        own_plan("constant"),
        plan_graph(plan.graph, rule=Weighted(kernel_length=0.0), optimizer="adam", base_graph=base),
        plan_graph(plan.graph, init=Conserve(readout_second_moment=1.0), optimizer="adam", base_graph=base),
        plan_graph(plan.graph, optimizer="momentum", base_graph=base),
        replace(plan, parameters=(replace(plan.parameters[0], kept=True), *plan.parameters[1:])),
        replace(plan, parameters=(replace(plan.parameters[0], mean=0.5), *plan.parameters[1:])),
    ]
    prints = {fingerprint(other) for other in others}
    assert len(prints) == len(others)
    assert fingerprint(plan) not in prints
    close = replace(plan.parameters[0], std=plan.parameters[0].std * (1 + 1e-9))
    assert fingerprint(replace(plan, parameters=(close, *plan.parameters[1:]))) == fingerprint(plan)


@pytest.mark.parametrize("name", [CNN, "small gpt2 base"])
def test_a_network_is_traced_alike_in_every_process(name: str) -> None:
    before = traced("smoke", name)
    traced.cache_clear()
    torch.manual_seed(321)
    assert traced("smoke", name) == before


def test_a_base_is_planned_relative_to_itself() -> None:
    rows = rows_at(SMOKE, networks=("small cnn*",), optimizers=("adam",))
    plans = Plans.of(SMOKE, rows, lambda names: [traced("smoke", name) for name in names])
    assert len(plans.plans) == 2 * 3
    base = plans.plans["small cnn base", "adam", "weighted"]
    assert base.lr_scale == pytest.approx(1.0)
    assert base.base is None
    assert plans.plans[CNN, "adam", "weighted"].lr_scale < 1.0  # deeper


def test_cifar10_is_normalised_and_enlarged(tmp_path: Path) -> None:
    parts = [made.images(number, 6) for number in range(5)]
    for number, part in enumerate(parts, 1):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(made.records(part))
    (tmp_path / "test_batch.bin").write_bytes(made.records(parts[0]))
    source = Cifar10Source(count=8, side=64, batch=4)
    batches = source.load(torch.device("cpu"), str(tmp_path))
    pixels = np.concatenate([parts[0][0], parts[1][0]])[:8].reshape(8, 3, 32, 32)
    assert batches.inputs.shape == (8, 3, 64, 64)
    assert batches.targets is not None
    assert batches.targets.tolist() == [*parts[0][1], *parts[1][1]][:8]
    plain = (pixels / 255 - 0.473) / 0.251
    corners = batches.inputs[:, :, ::63, ::63].numpy()  # half a pixel outside, where nothing is between
    np.testing.assert_allclose(corners, plain[:, :, ::31, ::31], rtol=1e-5, atol=1e-5)
    # Enlarged twice, a pixel lies a quarter of the way from one to the next.
    between = 0.75 * plain[:, :, 0, 4] + 0.25 * plain[:, :, 0, 5]
    np.testing.assert_allclose(batches.inputs[:, :, 0, 9].numpy(), between, rtol=1e-4, atol=1e-5)
    assert batches.draw(torch.Generator().manual_seed(0))[0].shape == (4, 3, 64, 64)
    with pytest.raises(InputError, match="--data"):
        source.load(torch.device("cpu"), None)


def test_packages_that_are_missing_are_told_in_one_error() -> None:
    full = REAL_SCALES["full"]
    strange = replace(full.networks[0], needs="a_package_nobody_has")
    other = replace(full.networks[1], needs="another_one")
    rows = [replace(row, network=network) for row in rows_at(full)[:1] for network in (strange, other)]
    with pytest.raises(
        InputError, match=r"'a_package_nobody_has'.*resnet18.*'another_one'.*evenstep-research\[real\].*--networks"
    ):
        require_packages(rows)
    require_packages(rows_at(SMOKE))


def test_a_run_that_fails_is_named() -> None:
    with RunWorkers(PLACE, 1, apart=False) as here, pytest.raises(SearchError, match=f"'{CNN}, adam.*rate -1.*seed 3'"):
        here.hand_out(run_of(lr=-1.0), None)


def test_a_run_without_memory_is_asked_for_again() -> None:
    future: Future[tuple[float, float]] = Future()
    future.set_exception(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert workers._result(run_of(), future) == workers.Done(run_of(), None)


@pytest.mark.slow
def test_processes_train_as_this_one_does_name_what_fails_and_say_when_one_dies() -> None:
    before = set(multiprocessing.active_children())
    plan = own_plan()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        work.settle(PLACE)
        expected, _ = work.trained(run_of("weighted"), plan)
    finally:
        torch.set_num_threads(threads)
    with RunWorkers(PLACE, 2, apart=True) as pool:
        assert pool.graphs([CNN]) == [plan.graph]
        pool.hand_out(run_of("weighted"), plan)
        (done,) = pool.finished(deadline=None)
        assert done.loss == expected
        pool.hand_out(run_of(lr=-1.0), None)
        with pytest.raises(SearchError, match="rate -1"):
            pool.finished(deadline=None)
        pool.hand_out(run_of(steps=100_000), None)
        assert pool.finished(deadline=time.monotonic() + 0.2) == []
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        with pytest.raises(SearchError, match="a worker process died"):
            pool.finished(deadline=None)
        with pytest.raises(SearchError, match="a worker process died"):
            pool.hand_out(run_of(), None)
    assert set(multiprocessing.active_children()) <= before
