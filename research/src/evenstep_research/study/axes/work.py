"""Train single runs: what a worker process holds, and what it does with a run, its plan and its batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from evenstep.graph import Graph
from evenstep.planning import Plan
from evenstep.search.engines.workers import end_with_parent
from evenstep_research.study.axes import plans
from evenstep_research.study.axes.scales import Setup, axes_scale_named
from evenstep_research.study.real.runs import Run
from evenstep_research.study.real.training import Batches
from evenstep_research.study.real.work import Place, optimizer_of, timed_training

_FUSED = ("adam", "momentum")


@dataclass(frozen=True)
class Details:
    """Hold what a run's name says in words alone."""

    setup: Setup
    plan: Plan | None


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


def trained(run: Run, details: Details) -> tuple[float, float]:
    """Train a run, by its plan where it has one; return its loss, infinite if it diverged, and the seconds taken."""
    network, plan = axes_scale_named(_here["place"].scale).network(run.network), details.plan

    def optimizing(model: nn.Module, *, fused: bool) -> Any:
        if plan is None:
            return optimizer_of(model, run, None, fused=fused)
        # On a CPU too: small networks spend much of a step there.
        options: dict[str, Any] = {"fused": True} if run.optimizer in _FUSED else {}
        return plan.optimizer(model, lr=run.lr, **options)

    return timed_training(run, network, plan, _batches(details.setup), optimizing)


def _batches(setup: Setup) -> Batches:
    """Return a setup's batches; setups that differ in the batch alone share the data."""
    place: Place = _here["place"]
    source = axes_scale_named(place.scale).source(setup)
    key = replace(source, batch=0)  # type: ignore[type-var]
    if key not in _here["batches"]:
        _here["batches"][key] = source.load(torch.device(place.device), place.folder)
    batches: Batches = _here["batches"][key]
    return replace(batches, size=setup.batch)
