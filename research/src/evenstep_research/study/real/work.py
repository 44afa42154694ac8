"""Train single runs: what a worker process holds, and what it does with a run and its plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from evenstep.graph import Graph
from evenstep.module.apply import initialize_
from evenstep.planning import Plan
from evenstep.search.cuda import free_memory
from evenstep.search.engines.workers import end_with_parent
from evenstep_research.study.real import plans
from evenstep_research.study.real.networks import Data, RealNetwork
from evenstep_research.study.real.runs import Run
from evenstep_research.study.real.scales import real_scale_named
from evenstep_research.study.real.training import Batches, train


@dataclass(frozen=True)
class Place:
    """Where runs train: the scale's name, the device, the folder of CIFAR-10, and whether other processes do too."""

    scale: str
    device: str
    folder: str | None = None
    shared: bool = False

    @property
    def precision(self) -> str:
        """What networks are computed in."""
        return "bfloat16" if torch.device(self.device).type == "cuda" else "float32"


_here: dict[str, Any] = {}


def settle(place: Place) -> None:
    """Prepare a process: one thread where several share the machine, data loaded when first needed."""
    if place.shared:
        torch.set_num_threads(1)
        end_with_parent()
    _here.update(place=place, batches={})


def traced(name: str) -> Graph:
    """Return the graph of a network of the scale."""
    return plans.traced(_here["place"].scale, name)


def trained(run: Run, plan: Plan | None) -> tuple[float, float]:
    """Train a run, by its plan where it has one; return its loss, infinite if it diverged, and the seconds taken."""
    place: Place = _here["place"]
    device = torch.device(place.device)
    network = real_scale_named(place.scale).network(run.network)
    batches = _batches(network.data, device)
    return timed_training(run, network, plan, batches, partial(optimizer_of, run=run, plan=plan))


def timed_training(
    run: Run, network: RealNetwork, plan: Plan | None, batches: Batches, optimizing: Callable[..., Any]
) -> tuple[float, float]:
    """Make a network, start it by its plan, and train it; `optimizing` takes the model and whether steps are fused."""
    device = batches.inputs.device
    begun = time.perf_counter()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(run.seed)
            with device:
                model = network.make()
            if plan is not None:
                torch.manual_seed(run.seed)
                initialize_(model, plan)
            optimizer = optimizing(model, fused=device.type == "cuda")
            loss = train(model, optimizer, batches, steps=run.steps, seed=run.seed)
        return loss, time.perf_counter() - begun
    finally:
        model = optimizer = None  # type: ignore[assignment]
        free_memory(device)  # other processes share the device


def optimizer_of(model: nn.Module, run: Run, plan: Plan | None, *, fused: bool) -> torch.optim.Optimizer:
    """Return the optimiser of a run, at one rate for all or at the plan's."""
    if run.optimizer == "prodigy":
        from prodigyopt import Prodigy

        adaptive: torch.optim.Optimizer = Prodigy(model.parameters(), lr=run.lr)
        return adaptive
    groups = list(model.parameters()) if plan is None else plan.param_groups(model, lr=run.lr)
    if run.optimizer == "adam":
        return torch.optim.AdamW(groups, lr=run.lr, weight_decay=0.0, fused=fused)
    return torch.optim.SGD(groups, lr=run.lr, momentum=0.9, nesterov=True, fused=fused)


def _batches(data: Data, device: torch.device) -> Batches:
    place: Place = _here["place"]
    if data not in _here["batches"]:
        _here["batches"][data] = real_scale_named(place.scale).sources[data].load(device, place.folder)
    batches: Batches = _here["batches"][data]
    return batches
