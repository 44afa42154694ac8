"""Correct a plan on the network itself: short runs at a few multiples, weighed against the plan's expectation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn

from evenstep.arguments import require_whole
from evenstep.errors import InputError, SearchError, SearchWarning, warn
from evenstep.module.apply import require_module_and_plan
from evenstep.planning import Plan
from evenstep.planning.groups import matched
from evenstep.planning.unwrap import unwrapped
from evenstep.rules import Factor
from evenstep.rules.rule import product
from evenstep.rules.training import Training, moved
from evenstep.search import plain_values
from evenstep.search.engines import Engine
from evenstep.search.held import require_apart
from evenstep.search.randomness import copied
from evenstep.search.recipe import Loss
from evenstep.search.result import NOTHING, LRSearch
from evenstep.search.searching import batch_size_of
from evenstep.search.short_runs import (
    BATCH_OF_SHORT_RUNS,
    LENGTH_OF_SHORT_RUNS,
    STEPS,
    diverged_above,
    examples_of_batch,
    examples_taken,
    fall_of,
    has_learnt,
    searched,
    short_runs,
    survivable,
)
from evenstep.search.showing import SearchProgress
from evenstep.search.tensors import Loaded
from evenstep.search.weighing import Expectation, weigh

TRAIN_STEPS = 1500
# Fitted together with `Expectation.spread` to the curves in results/short-runs.
NOISE = 0.005  # share of the loss's fall: two short runs that differ by less are equally good
BLUR = 0.6  # octaves between the best rate of short runs, translated to the training, and the training's best
LEAST = 0.01  # share of the untrained loss: if no run loses more, the runs say nothing
LEAST_STEPS = 4  # of a run
EXPECTED = Expectation()


@dataclass(frozen=True)
class Refinement:
    """Hold a corrected plan, the multiple that corrects it, and the evidence.

    All rates of `plan` are `multiple` times those of the original plan, moved to this training. The best multiple lies
    in `interval` with 95% probability. `search` holds the rates and losses of the short runs: `steps` steps each, on
    `search.batch_size` examples. The plan is for a training of `train_steps` steps on batches of `batch_size`. If a
    short run at the corrected rates diverged, `multiple` is lower than `diverged_at`, which they would have been.
    """

    plan: Plan
    multiple: float
    interval: tuple[float, float]
    search: LRSearch
    steps: int
    train_steps: int
    batch_size: int
    diverged_at: float | None = None

    def __str__(self) -> str:
        """Return the correction and its evidence in one line."""
        low, high = self.interval
        runs = sum(map(len, self.search.losses))
        lowered = "" if self.diverged_at is None else f"; lowered from x {self.diverged_at:.3g}, where one diverged"
        return (
            f"rates x {self.multiple:.3g} ({low:.3g} to {high:.3g}) by {runs} runs of the network itself, "
            f"{self.steps} steps on {self.search.batch_size} examples each{lowered}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the refinement as plain values for JSON."""
        return {
            "multiple": self.multiple,
            "interval": list(self.interval),
            "steps": self.steps,
            "train_steps": self.train_steps,
            "batch_size": self.batch_size,
            "diverged_at": self.diverged_at,
            "search": self.search.to_dict(),
            "plan": self.plan.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Refinement:
        """Read a refinement from `to_dict`."""
        with plain_values.reading("the refinement", remedy="make it again with evenstep.refine(model, plan, data)"):
            known = plain_values.mapping("it", values)
            low, high = (
                plain_values.positive("interval", end) for end in plain_values.sequence("interval", known["interval"])
            )
            return cls(
                Plan.from_dict(known["plan"]),
                plain_values.positive("multiple", known["multiple"]),
                (low, high),
                LRSearch.from_dict(known["search"]),
                plain_values.count("steps", known["steps"]),
                plain_values.count("train_steps", known["train_steps"]),
                plain_values.count("batch_size", known["batch_size"]),
                None if (at := known.get("diverged_at")) is None else plain_values.positive("diverged_at", at),
            )


def refine(
    model: nn.Module,
    plan: Plan,
    data: Any,
    *,
    steps: int | None = None,
    train_steps: int | None = None,
    batch_size: int | None = None,
    run_batch_size: int | None = None,
    loss: Loss | None = None,
    seeds: int = 1,
    engine: Engine | Literal["local", "ray"] = "local",
    store: Path | str | None = None,
    name: str | None = None,
    progress: Callable[[SearchProgress], None] | bool | None = None,
) -> Refinement:
    """Correct a plan's rates by short runs of the model itself.

    Copies of the model, initialised by the plan, train at the plan's rates, at half and at twice these rates, and
    further if the best is at the edge. Each run has its own warm-up and cosine decay. The result is translated to the
    length and the batch of the training (`evenstep.rules.length`, `evenstep.rules.batch`), then weighed against the
    expectation that the plan is right: clear evidence moves the plan, noise hardly does. The model, the order of the
    data and all random states stay as they are.

    - `steps`: the length of a run; the default is 128, or `train_steps` if that is smaller.
    - `run_batch_size`: examples per step of a run; the default is `batch_size`. Fewer cost less and say less.
    - `train_steps`: the length of the training; the default is the plan's, or 1500.
    - `batch_size`: the batch of the training; the default is the loader's, the plan's, or 64.
    - `store`: a file; a refinement that was stopped continues from it.

    A plan for another training is first moved to this one by the default rules; to use others, call `Plan.at` first.
    """
    require_module_and_plan(model, plan)
    model = unwrapped(model)
    list(matched(model, plan))  # refuse another model's plan before anything trains
    require_apart(loss, model)
    if steps is not None:
        require_whole("steps", steps, least=LEAST_STEPS)
    train_steps = require_whole("train_steps", (plan.steps or TRAIN_STEPS) if train_steps is None else train_steps)
    if plan.base is None:
        raise InputError(
            "the plan holds factors only; plan with base=: a search's result, or a rate with its optimizer"
        )
    steps = min(STEPS, max(train_steps, LEAST_STEPS)) if steps is None else steps
    size = require_whole("batch_size", batch_size_of(data, batch_size, usual=plan.batch_size))
    wanted = size if run_batch_size is None else require_whole("run_batch_size", run_batch_size)
    if wanted > size:
        raise InputError(f"run_batch_size is {wanted}, more than the training's {size}; give {size} at most")
    if not isinstance(data, Loaded):
        data = Loaded.of(data, loss, limit=max(steps * wanted, size))
    size = examples_of_batch(size, data, asked=batch_size)
    taken = size if wanted >= size else max(wanted, examples_taken(model, data, size))
    training = Training(size, train_steps)
    base, plan = plan.base, _for(plan, training)
    run = Training(taken, steps)
    to_training = moved(plan.optimizer_name, run, training, batch=BATCH_OF_SHORT_RUNS, length=LENGTH_OF_SHORT_RUNS)
    preferred = 1 / product(to_training)  # multiple that short runs prefer, in the training's rates
    options: dict[str, Any] = {
        "plan": plan,
        "steps": steps,
        "batch_size": taken,
        "seeds": seeds,
        "engine": engine,
        "store": store,
        "name": name,
        "progress": progress,
    }

    def make() -> nn.Module:
        return copied(model)

    found = searched(make, data, start=base * preferred, octaves=1, **options)
    run_at = partial(_run_at, make, data, options)
    return _refined(plan, found, run_at, train_steps, size, preferred)


def _run_at(make: Callable[[], nn.Module], data: Loaded, options: Mapping[str, Any], rate: float) -> LRSearch:
    return short_runs(make, data, grid=[rate], **options)


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def _for(plan: Plan, training: Training) -> Plan:
    """Return a plan moved to a training by the default rules; a batch or length unknown to it counts as right."""
    unknown = plan.training.batch_size is None, plan.training.steps is None
    assumed = Training(*(size if missing else None for missing, size in zip(unknown, astuple(training), strict=True)))
    return replace(plan, training=plan.training.changed(assumed)).at(**asdict(training))


def _refined(
    plan: Plan,
    found: LRSearch,
    run_at: Callable[[float], LRSearch],
    train_steps: int,
    batch_size: int,
    preferred: float,
) -> Refinement:
    """Return the refinement that follows from the short runs, at rates that survive one."""
    assert plan.base is not None
    assert found.steps is not None
    if found.status == "all_diverged":
        raise SearchError(
            f"every short run diverged, at {found.grid[0] / plan.base:.3g} to {found.grid[-1] / plan.base:.3g} times "
            "the plan's rates; check the data's scale and the loss, or plan from another base"
        )
    start, fall, limit = found.untrained or 0.0, fall_of(found), diverged_above(found)
    losses = {
        math.log2(rate / plan.base / preferred): mean if mean <= limit else math.inf
        for rate, mean in zip(found.grid, found.mean_losses, strict=True)
    }
    learnt = has_learnt(found, LEAST)
    if not learnt:
        warn(
            f"short runs of {found.steps} steps learn next to nothing (loss {start:.4g} to {start - fall:.4g}), so the "
            "plan stays unchanged; give more steps, and check the targets and the loss",
            SearchWarning,
        )
        losses, fall = {0.0: 0.0}, 1.0
    weighed = weigh(losses, EXPECTED, noise=NOISE * fall + NOTHING * abs(start), blur=BLUR)
    wanted, low, high = (_rounded(math.pow(2.0, octave)) for octave in (weighed.octave, *weighed.interval))
    steps, rate = found.steps, plan.base * wanted
    if learnt:
        rate, found = survivable(rate, found, run_at)
    multiple, diverged_at = _rounded(rate / plan.base), wanted if rate < plan.base * wanted else None
    interval = min(low, multiple), high
    refinement = Refinement(plan, multiple, interval, found, steps, train_steps, batch_size, diverged_at)
    training = f"{train_steps} steps on {batch_size}"
    factor = Factor("refined", multiple, f"{str(refinement).partition(' by ')[2]}, for {training}")
    history = (*plan.history, f"refined: {refinement}")
    return replace(refinement, plan=replace(plan.with_factor(factor), history=history))
