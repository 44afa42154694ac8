"""Train every network of the demo over a grid of rates: one rate for all parameters, and by its plan."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from evenstep.arguments import require_whole
from evenstep.demo.data import digits, require_digits, text
from evenstep.demo.networks import KINDS, Kind
from evenstep.errors import InputError
from evenstep.module import plan as plan_module
from evenstep.module.threads import threads
from evenstep.planning import Plan
from evenstep.search import LocalEngine, auto_plan, search_lr
from evenstep.search.engines.batching import Batching
from evenstep.search.engines.workers import answers
from evenstep.search.fields import Data
from evenstep.search.job import Job, Trial, made
from evenstep.search.plain_values import finite_or_none

DEFAULT_RATE = 1e-3  # torch.optim.AdamW's default
GRID = tuple(DEFAULT_RATE * 2.0**octave for octave in range(-3, 7))
STEPS = 150
BATCH_SIZE = 16
COUNTED = 0.1  # share of the steps, at the end, whose training loss is the result
OPTIMIZER: Literal["adamw"] = "adamw"

Losses = Mapping[float, tuple[float, ...]]


@dataclass(frozen=True)
class Measured:
    """Hold one network's losses by rate, one for each seed, infinite where it diverged.

    `one_rate` holds the losses at one rate for all parameters, from torch's default initialisation; `planned` holds
    those of the plan, by the base's rate; `base` is the plan's own rate. Seconds are processor time, spent on the plan
    and on the trainings at one rate.
    """

    kind: str
    depth: int
    parameters: int
    one_rate: Losses
    planned: Losses
    base: float
    history: tuple[str, ...]
    plan_seconds: float
    tuning_seconds: float

    @property
    def name(self) -> str:
        """The network's kind and depth."""
        return f"{self.kind}, depth {self.depth}"

    @property
    def tuned_rate(self) -> float:
        """The single rate with the smallest loss."""
        return best_rate(self.one_rate)

    @property
    def tuned(self) -> float:
        """The loss at the best single rate."""
        return mean(self.one_rate[self.tuned_rate])

    @property
    def default(self) -> float:
        """The loss at AdamW's default rate."""
        return mean(self.one_rate[DEFAULT_RATE])

    @property
    def plan(self) -> float:
        """The loss of the plan at its own rate."""
        return mean(self.planned[self.base])


@dataclass(frozen=True)
class Demo:
    """Hold the results, the settings, and the plans by network name (none if read from a record)."""

    networks: tuple[Measured, ...]
    steps: int
    seeds: int
    plans: Mapping[str, Plan] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {
            "steps": self.steps,
            "seeds": self.seeds,
            "batch_size": BATCH_SIZE,
            "optimizer": OPTIMIZER,
            "schedule": "warm-up and cosine",
            "loss": f"mean training loss of the last {COUNTED:.0%} of the steps",
            "grid": list(GRID),
        }

    def results(self) -> list[dict[str, Any]]:
        """Return the results as plain values; a loss that is not finite is None."""
        return [
            {
                "kind": network.kind,
                "depth": network.depth,
                "parameters": network.parameters,
                "one_rate": _rows(network.one_rate),
                "planned": _rows(network.planned),
                "base": network.base,
                "history": list(network.history),
                "plan_seconds": round(network.plan_seconds, 2),
                "tuning_seconds": round(network.tuning_seconds, 2),
            }
            for network in self.networks
        ]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Demo:
        """Read a demo from a record with its `config` and `results`."""
        try:
            networks = tuple(_from_row(row) for row in record["results"])
            steps, seeds = record["config"]["steps"], record["config"]["seeds"]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the record is not the demo's ({type(error).__name__}: {error}); write it again with "
                "benchmarks/record_demo.py"
            ) from None
        return cls(networks, require_whole("steps", steps), require_whole("seeds", seeds))


@dataclass(frozen=True)
class DemoProgress:
    """Say how many networks are done, and which one was last."""

    done: int
    total: int
    network: str


def mean(losses: Sequence[float]) -> float:
    """Return the mean over seeds, infinite if one diverged."""
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.inf


def best_rate(losses: Losses) -> float:
    """Return the rate of the smallest mean loss."""
    return min(losses, key=lambda rate: mean(losses[rate]))


def measure(
    *,
    steps: int = STEPS,
    seeds: int = 1,
    kinds: Sequence[Kind] = KINDS,
    workers: int | None = None,
    notify: Callable[[DemoProgress], None] = lambda _: None,
) -> Demo:
    """Plan every network as a user would, and train it over the grid at one rate for all and by its plan.

    Both train with AdamW, on the same batches, with the same warm-up and cosine decay. `workers` processes share the
    networks; by default one for each core, two at most. The result depends neither on workers nor on timing.
    """
    require_whole("steps", steps, least=10)
    require_whole("seeds", seeds)
    if any(kind.data == "digits" for kind in kinds):
        require_digits()
    sizes = {(kind, depth): _size(made(kind.maker(depth), 0)) for kind in kinds for depth in kind.depths}
    largest_first = sorted(sizes, key=lambda network: -sizes[network])
    workers = min(2, os.cpu_count() or 1) if workers is None else require_whole("workers", workers)
    known: dict[tuple[Kind, int], tuple[Measured, Plan]] = {}
    tasks = [(*network, steps, seeds) for network in largest_first]
    for place, result in answers(_measured, tasks, workers, remedy="run the command again, with fewer workers"):
        known[largest_first[place]] = result
        notify(DemoProgress(len(known), len(sizes), result[0].name))
    in_order = [known[network] for network in sizes]
    return Demo(
        tuple(network for network, _ in in_order), steps, seeds, {network.name: plan for network, plan in in_order}
    )


@dataclass(frozen=True)
class _Engine(LocalEngine):
    """Train on one CPU thread, stacked where the kind says so: a choice by timing would change the last digits."""

    stacked: bool = False

    def choose(self, job: Job, data: Data, trials: Sequence[Trial]) -> Batching:
        """Return the batching that the kind asks for."""
        del job, data
        return Batching("stacked", len(trials)) if self.stacked else Batching("single", 1)


def _measured(kind: Kind, depth: int, steps: int, seeds: int) -> tuple[Measured, Plan]:
    """Plan and train one network."""
    make = kind.maker(depth)
    data = digits() if kind.data == "digits" else text()
    training: dict[str, Any] = {
        "batch_size": BATCH_SIZE,
        "loss": functional.cross_entropy if kind.data == "digits" else loss_of_text,
        "engine": _Engine(device="cpu", workers=1, stacked=kind.stacked),
        "progress": False,
    }
    model = made(make, 0)
    with threads(1, torch.device("cpu")):
        begun = time.process_time()
        planned = auto_plan(model, data, optimizer=OPTIMIZER, train_steps=steps, **training)
        plan_seconds = time.process_time() - begun
        unplanned = plan_module(model, data[0][:BATCH_SIZE], rule="constant", init="keep", optimizer=OPTIMIZER)
        assert planned.base is not None

        def losses(plan: Plan, grid: Sequence[float]) -> Losses:
            found = search_lr(
                make,
                data,
                plan=plan,
                grid=grid,
                steps=steps,
                seeds=seeds,
                schedule="cosine",
                counted=COUNTED,
                on_failure="return",
                **training,
            )
            return dict(zip(found.grid, found.losses, strict=True))

        begun = time.process_time()
        one_rate = losses(unplanned, GRID)
        tuning_seconds = time.process_time() - begun
        by_plan = losses(planned, (*GRID, planned.base))
    measured = Measured(
        kind.name, depth, _size(model), one_rate, by_plan, planned.base, planned.history, plan_seconds, tuning_seconds
    )
    return measured, planned


def loss_of_text(logits: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross entropy over all positions of a text."""
    return functional.cross_entropy(logits.flatten(0, -2), following.flatten())


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _rows(losses: Losses) -> list[list[Any]]:
    return [[rate, [finite_or_none(loss) for loss in losses[rate]]] for rate in sorted(losses)]


def _from_row(row: Mapping[str, Any]) -> Measured:
    def losses(name: str) -> Losses:
        return {
            float(rate): tuple(math.inf if loss is None else float(loss) for loss in seeds) for rate, seeds in row[name]
        }

    measured = Measured(
        str(row["kind"]),
        int(row["depth"]),
        int(row["parameters"]),
        losses("one_rate"),
        losses("planned"),
        float(row["base"]),
        tuple(row["history"]),
        float(row["plan_seconds"]),
        float(row["tuning_seconds"]),
    )
    _ = measured.default, measured.plan, measured.tuned  # a network that lacks a rate raises here
    return measured
