"""Plan a model from its data: make a base, search its rate, plan, and correct the plan on the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from evenstep.arguments import require_number, require_whole
from evenstep.errors import InputError, SearchWarning, warn
from evenstep.module import plan as plan_module
from evenstep.module.trace import OnUnknown
from evenstep.planning import Plan
from evenstep.planning.optimizers import OptimizerChoice, OptimizerLike, optimizer_choice
from evenstep.planning.unwrap import unwrapped
from evenstep.rules import Factor
from evenstep.rules.rule import product
from evenstep.search.base import Base, base_of
from evenstep.search.copying import require_copies
from evenstep.search.engines import Engine
from evenstep.search.fields import each
from evenstep.search.held import require_apart
from evenstep.search.recipe import Loss
from evenstep.search.refining import TRAIN_STEPS, refine
from evenstep.search.result import LRSearch
from evenstep.search.searching import LEARNT, batch_size_of
from evenstep.search.short_runs import (
    BATCH_OF_SHORT_RUNS,
    LENGTH_OF_SHORT_RUNS,
    LONGEST,
    ShortRun,
    affordable,
    examples_of_batch,
    examples_taken,
    searched,
    short_runs,
    survivable,
)
from evenstep.search.short_runs import COST as CHEAPEST
from evenstep.search.showing import SearchProgress
from evenstep.search.tensors import Loaded, example_of

COST = 0.1  # of search and refinement together, as a share of the training, in steps of the model
RUNS = 4  # that a refinement usually takes
TRIALS = 6  # that the search of a base usually takes
SHARE_OF_BASE = 1 / 3  # of the cost; runs of the model itself say more
SMALL = 0.7  # share of the model's cost: a base above it is searched in the model's place, and nothing is refined
# Where searches of bases begin; their results do not depend on it.
STARTS = {"sgd": 0.5, "momentum": 0.05, "adam": 0.002, "muon": 0.002, "lion": 0.0003}
FAR = 10.0  # root mean square of targets that is far from outputs, which start below one
LONGER = (1, 4, 16)  # times as many steps, tried in turn while the search of a base says too little


def auto_plan(
    model: nn.Module,
    data: Any,
    *,
    optimizer: OptimizerLike = "adam",
    train_steps: int = TRAIN_STEPS,
    loss: Loss | None = None,
    batch_size: int | None = None,
    weight_decay: float | None = None,
    init: str = "conserve",
    cost: float = COST,
    on_unknown: OnUnknown = "raise",
    engine: Engine | Literal["local", "ray"] = "local",
    store: Path | str | None = None,
    name: str | None = None,
    progress: Callable[[SearchProgress], None] | bool | None = None,
) -> Plan:
    """Plan a model from its data; the plan is ready for `initialize_` and `plan.optimizer(model)`.

    Takes a small network out of the model (`base_of`), searches its learning rate, plans the model from that rate, and
    corrects the plan by short runs of the model itself (`refine`). `plan.history` says what each step found. The model,
    the order of the data and all random states stay as they are.

    - `data`: what the model trains on: a `DataLoader`, a `Dataset`, or tensors. Only the examples that short runs train
      on are read.
    - `optimizer`: a name, a class or an instance; its learning rate is ignored. `weight_decay` replaces its own.
    - `train_steps`: how many steps you will train, with a schedule that ends near zero. Longer trainings need smaller
      rates. The plan is for this length and for batches of `batch_size`; `Plan.at` moves it to others.
    - `loss`: a function of output and targets, or of the output alone. The default is cross entropy, or for batches
      that are dictionaries the loss that the model returns.
    - `batch_size`: the default is the loader's, or 64.
    - `init`: how weights are drawn; "keep" keeps them and sets rates only.
    - `cost`: how much search and refinement together may cost, as a share of the training. They cost at least a few
      short runs.
    - `store`: a file; a call that was stopped continues from it and gives the same answer. `name` stands there for code
      that cannot be read.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is {type(model).__name__}; give the torch.nn.Module that you will train")
    require_whole("train_steps", train_steps)
    require_number("cost", cost, above=0)
    model = unwrapped(model)
    require_copies(model)
    require_apart(loss, model)
    chosen = optimizer_choice(optimizer).changed(weight_decay=weight_decay)
    size = require_whole("batch_size", batch_size_of(data, batch_size))
    device = next((tensor.device for tensor in model.parameters()), None)
    few = Loaded.of(data, loss, limit=size)
    size = examples_of_batch(size, few, asked=batch_size)
    inputs = example_of(each(few.data[0], lambda tensor: tensor.to(device)), model, batch=size)
    base = base_of(model, inputs)
    small = base.share <= SMALL
    budget = cost * train_steps * size  # in examples that the model trains on
    of_base = budget * (SHARE_OF_BASE if small else 1) / base.share
    limits = {"fewest": examples_taken(model, few, size), "batch_size": size, "train_steps": train_steps}
    of_bases = affordable(of_base / TRIALS, **limits, cheapest=CHEAPEST / 2 if small else CHEAPEST)
    of_model = affordable(budget * (1 - SHARE_OF_BASE) / RUNS, **limits)

    @cache
    def read(times: int) -> Loaded:
        """Read as many examples as runs `times` as long train on."""
        return replace(Loaded.of(data, loss, limit=times * max(of_bases.examples, of_model.examples)), batch_size=None)

    _report_far_targets(read(1))
    options: dict[str, Any] = {"seeds": 1, "name": name, "engine": engine, "store": store, "progress": progress}
    of_search = options | {"optimizer": chosen, "init": init, "on_unknown": on_unknown}
    found, times, loaded = _searched(
        base,
        read,
        of_bases,
        most=budget / (TRIALS * base.share),
        octaves=2 if small else 1,
        **of_search,
    )
    planned = plan_module(
        model,
        inputs,
        base=found.rate,
        base_graph=found.graph,
        init=init,
        optimizer=chosen,
        batch_size=of_bases.batch_size,
        steps=times * of_bases.steps,
        on_unknown=on_unknown,
    ).at(batch_size=size, steps=train_steps, batch_rule=BATCH_OF_SHORT_RUNS, length_rule=LENGTH_OF_SHORT_RUNS)
    words = found.words if small else f"{found.words}, in the model's place"
    planned = replace(planned, history=(words,))
    if not small:  # the search was of the model itself, or of one that costs as much
        sizes = {"steps": times * of_bases.steps, "batch_size": of_bases.batch_size}
        return _surviving(planned, found, lambda rate: short_runs(base, loaded, grid=[rate], **sizes, **of_search))
    # If the base needs longer runs to learn, so does the model.
    steps = max(of_model.steps, min(times * of_model.steps, LONGEST, train_steps))
    return refine(
        model,
        planned,
        loaded,
        steps=steps,
        run_batch_size=of_model.batch_size,
        train_steps=train_steps,
        batch_size=size,
        **options,
    ).plan


def _surviving(planned: Plan, found: LRSearch, run_at: Callable[[float], LRSearch]) -> Plan:
    """Return a plan at rates that survive a short run of the network that was searched in the model's place."""
    wanted = found.rate * product(tuple(factor for factor in planned.factors if factor.name in ("batch", "length")))
    rate, _ = survivable(wanted, found, run_at)
    if rate == wanted:
        return planned
    factor = Factor("survived", rate / wanted, f"a short run at {wanted:.3g} diverged, one at {rate:.3g} did not")
    return replace(planned.with_factor(factor), history=(*planned.history, f"lowered: {factor.why}"))


def _report_far_targets(loaded: Loaded) -> None:
    """Warn of targets far from where outputs start: short runs then show only how fast outputs get there."""
    targets = loaded.data[1]
    if not isinstance(targets, Tensor) or not targets.is_floating_point():
        return
    size = float(targets.float().pow(2).mean().sqrt())
    if size > FAR:
        mean, spread = float(targets.float().mean()), float(targets.float().std(correction=0))
        warn(
            f"the targets have mean {mean:.3g} and standard deviation {spread:.3g}, but outputs start near zero, so "
            f"short runs mostly move them there; train on (target - {mean:.3g}) / {spread or 1.0:.3g}",
            SearchWarning,
        )


def _searched(
    base: Base,
    read: Callable[[int], Loaded],
    run: ShortRun,
    *,
    most: float,
    optimizer: OptimizerChoice,
    **options: Any,
) -> tuple[LRSearch, int, Loaded]:
    """Return the search of a base, how many times as long its trials trained, and the data they trained on.

    They train longer if they learnt nothing, or if they said too little and `most` examples allow it.
    """
    for times in LONGER:
        loaded = read(times)
        start = STARTS[optimizer.name]
        sizes = {"steps": times * run.steps, "batch_size": run.batch_size}
        found = searched(base, loaded, start=start, optimizer=optimizer, **sizes, **options)
        next_too_long = found.status != "learnt_nothing" and 4 * times * run.examples > most
        if next_too_long or not says_too_little(found):
            break
    if found.status == "best_at_edge":  # losses hardly depend on the rate; short runs of the model say more
        warn(
            f"the search of the base cannot tell rates apart up to {found.grid[-1]:.3g} (its losses are "
            f"{min(found.mean_losses):.3g} there); the plan starts from {found.rate:.3g}",
            SearchWarning,
        )
        return found, times, loaded
    return found.require_ok(), times, loaded


def says_too_little(found: LRSearch) -> bool:
    """Say whether longer trials are needed: they learnt nothing, or so little that noise decides between rates."""
    if found.status == "learnt_nothing":
        return True
    fall = (found.untrained or 0.0) - min(found.mean_losses)
    return found.is_vague and fall < LEARNT * abs(found.untrained or 0.0)
