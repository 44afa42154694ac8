"""Correct a plan on the network itself: short runs at a few multiples, weighed against what the plan expects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass, replace
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
from evenstep.search.short_runs import BATCH_OF_SHORT_RUNS, STEPS, examples_taken, fall_of, has_learnt, searched
from evenstep.search.showing import SearchProgress
from evenstep.search.tensors import Loaded
from evenstep.search.weighing import Expectation, weigh

TRAIN_STEPS = 1500
# Three numbers settled together on the curves of results/short-runs, `Expectation.spread` among them.
NOISE = 0.005  # of the fall of the loss: two short runs that differ by less are as good as each other
BLUR = 0.6  # octaves between the best of short runs, moved to the training, and the training's best
LEAST = 0.01  # of the untrained loss that is gone: where no run has lost more, none says anything
LEAST_STEPS = 4  # of a run
EXPECTED = Expectation()


@dataclass(frozen=True)
class Refinement:
    """Hold a corrected plan, the multiple of the rates that corrects it, and what says so.

    All rates of `plan` are `multiple` times those of the plan that was refined, moved to this training; with 95%
    probability the best multiple lies in `interval`. `search` holds the rates and losses of the short runs, `steps`
    long each, on so many examples as its `batch_size` says; `train_steps` is the length of the training that the plan
    is for, `batch_size` its batch.
    """

    plan: Plan
    multiple: float
    interval: tuple[float, float]
    search: LRSearch
    steps: int
    train_steps: int
    batch_size: int

    def __str__(self) -> str:
        """Say in one line what was corrected, and by what evidence."""
        low, high = self.interval
        runs = sum(map(len, self.search.losses))
        return (
            f"rates x {self.multiple:.3g} ({low:.3g} to {high:.3g}) by {runs} runs of the network itself, "
            f"{self.steps} steps on {self.search.batch_size} examples each"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the refinement as plain values for JSON."""
        return {
            "multiple": self.multiple,
            "interval": list(self.interval),
            "steps": self.steps,
            "train_steps": self.train_steps,
            "batch_size": self.batch_size,
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
    """Return a plan whose rates were corrected by short runs of the network itself.

    Copies of the model, drawn as planned, train for `steps` steps (128, or the training's own number if that is
    smaller), with a warm-up and a cosine of their own, at the plan's rates, at half and at twice these, and further
    where the best is at the edge. Each takes `batch_size` examples a step, as the training does; `run_batch_size` takes
    fewer, which is cheaper and says less. What they say is moved to `train_steps`, the length of the training that the
    plan is for, and to its batch (`evenstep.rules.length`, `evenstep.rules.batch`), and weighed against the expectation
    that the plan is right: noise cannot move it far, clear evidence can. `train_steps` left out is the plan's own, or
    1500 where it knows none, `batch_size` the loader's, the plan's, or 64. A plan for another training is moved first,
    by the usual rules: choose others by `Plan.at`. The model, the order of the data and all random states stay as they
    are. With a `store` a refinement that was stopped continues where it was.
    """
    require_module_and_plan(model, plan)
    model = unwrapped(model)
    list(matched(model, plan))  # another model's plan is refused before anything is trained
    require_apart(loss, model)
    if steps is not None:
        require_whole("steps", steps, least=LEAST_STEPS)
    train_steps = require_whole("train_steps", (plan.steps or TRAIN_STEPS) if train_steps is None else train_steps)
    if plan.base is None:
        raise InputError(
            "the plan holds factors only; plan with a base: a search's result, or a rate with its optimizer"
        )
    steps = min(STEPS, max(train_steps, LEAST_STEPS)) if steps is None else steps
    size = require_whole("batch_size", batch_size_of(data, batch_size, usual=plan.batch_size))
    wanted = size if run_batch_size is None else require_whole("run_batch_size", run_batch_size)
    if wanted > size:
        raise InputError(f"run_batch_size is {wanted}, more than the training's {size}; give {size} at most")
    if not isinstance(data, Loaded):
        data = Loaded.of(data, loss, limit=max(steps * wanted, size))
    size = min(size, len(data.data[0]))
    taken = size if wanted >= size else max(wanted, examples_taken(model, data, size))
    training = Training(size, train_steps)
    base, plan = plan.base, _for(plan, training)
    to_training = moved(plan.optimizer_name, Training(taken, steps), training, batch=BATCH_OF_SHORT_RUNS)
    preferred = 1 / product(to_training)  # what short runs like, in rates of the training
    found = searched(
        lambda: copied(model),
        data,
        start=base * preferred,
        octaves=1,
        plan=plan,
        steps=steps,
        batch_size=taken,
        seeds=seeds,
        engine=engine,
        store=store,
        name=name,
        progress=progress,
    )
    return _refined(plan, found, train_steps, size, preferred)


def _for(plan: Plan, training: Training) -> Plan:
    """Return a plan moved to a training by the usual rules; what it does not know of its own is taken to be right."""
    unknown = plan.training.batch_size is None, plan.training.steps is None
    assumed = Training(*(size if missing else None for missing, size in zip(unknown, astuple(training), strict=True)))
    return replace(plan, training=plan.training.changed(assumed)).at(**asdict(training))


def _refined(plan: Plan, found: LRSearch, train_steps: int, batch_size: int, preferred: float) -> Refinement:
    """Return the refinement that short runs give."""
    assert plan.base is not None
    assert found.steps is not None
    if found.status == "all_diverged":
        raise SearchError(
            f"every short run diverged, at {found.grid[0] / plan.base:.3g} to {found.grid[-1] / plan.base:.3g} times "
            "the plan's rates; check the data's scale and the loss, or plan from another base"
        )
    start, fall = found.untrained or 0.0, fall_of(found)
    losses = {
        # What ended further above its start than the best run fell has diverged, however finite its loss.
        math.log2(rate / plan.base / preferred): mean if mean <= start + abs(fall) else math.inf
        for rate, mean in zip(found.grid, found.mean_losses, strict=True)
    }
    if not has_learnt(found, LEAST):
        warn(
            f"short runs of {found.steps} steps learn next to nothing (loss {start:.4g} to {start - fall:.4g}), so the "
            "plan stays as it was; give more steps, and check the targets and the loss",
            SearchWarning,
        )
        losses, fall = {0.0: 0.0}, 1.0
    weighed = weigh(losses, EXPECTED, noise=NOISE * fall + NOTHING * abs(start), blur=BLUR)
    multiple, low, high = (float(f"{math.pow(2.0, x):.3g}") for x in (weighed.octave, *weighed.interval))
    refinement = Refinement(plan, multiple, (low, high), found, found.steps, train_steps, batch_size)
    training = f"{train_steps} steps on {batch_size}"
    factor = Factor("refined", multiple, f"{str(refinement).partition(' by ')[2]}, for {training}")
    history = (*plan.history, f"refined: {refinement}")
    return replace(refinement, plan=replace(plan.with_factor(factor), history=history))
