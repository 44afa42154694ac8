"""Search a network's learning rate, from coarse to fine, training nothing twice."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import nn

from evenstep.arguments import require_choice, require_function, require_number, require_whole, shown
from evenstep.errors import EvenstepError, InputError, SearchError, SearchWarning, warn
from evenstep.graph import Graph
from evenstep.module import plan as plan_module
from evenstep.module.trace import OnUnknown
from evenstep.planning import OptimizerChoice, OptimizerLike, Plan, optimizer_choice, plan_graph
from evenstep.planning.moving import moved_betas
from evenstep.planning.optimizers import choice_from
from evenstep.search import plain_values
from evenstep.search.base import Base
from evenstep.search.engines import Engine, LocalEngine
from evenstep.search.engines.batching import Batching, BatchingKind
from evenstep.search.fields import Data
from evenstep.search.grid import OCTAVE, left_after, rate_at, wanted
from evenstep.search.held import report_held
from evenstep.search.job import Job, Trial, made
from evenstep.search.key import search_key
from evenstep.search.provenance import provenance
from evenstep.search.recipe import (
    MOST_STEPS,
    Loss,
    Recipe,
    Schedule,
    constant_schedule,
    default_steps,
    recipe_settings,
    schedule_of,
)
from evenstep.search.replicas import TrialResult, step_count
from evenstep.search.result import LRSearch, chosen, of_positions
from evenstep.search.showing import SearchProgress, shown_progress
from evenstep.search.shrinking import plain_sizes, shrunk
from evenstep.search.store import Store, StoreRow
from evenstep.search.store_rows import damage_named
from evenstep.search.tensors import as_tensors, example_of, loader_batch_size
from evenstep.search.trying import Untrained, require_same_network, require_trainable, try_out, unfit

OCTAVES = 3  # tried first on either side of the start
FINEST = 4  # parts of an octave between rates in the end
LEARNT = 0.1  # share of the untrained loss that a network has to lose to have learnt something
DEAD_OCTAVES = 12  # of rates at which nothing is learnt, below those at which training diverges


@torch.enable_grad()
def search_lr(
    make_model: Callable[..., nn.Module],
    data: Any,
    *,
    shrink: Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    optimizer: OptimizerLike | None = None,
    init: str = "conserve",
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    momentum: float | None = None,
    nesterov: bool | None = None,
    weight_decay: float | None = None,
    no_decay: bool | None = None,
    schedule: Schedule | Literal["constant", "cosine"] = constant_schedule,
    loss: Loss | None = None,
    seeds: int = 3,
    start: float = 0.1,
    grid: Sequence[float] | None = None,
    octaves: int = OCTAVES,
    finest: int = FINEST,
    counted: float | None = None,
    engine: Engine | Literal["local", "ray"] = "local",
    store: Path | str | None = None,
    resume: bool = False,
    name: str | None = None,
    on_unknown: OnUnknown = "raise",
    progress: Callable[[SearchProgress], None] | bool | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> LRSearch:
    """Search for a network's learning rate with the smallest training loss; the answer is the result's `rate`.

    Each trial trains the network at one rate from one seed. The search tries octaves around `start`, adds octaves
    while the best rate is at the edge, then tries half and quarter octaves next to the best. If every trial diverges,
    nothing is learnt, or the best rate stays at the edge, it raises `SearchError`; with `on_failure="return"` the
    result's `status` says so instead. Ctrl-C reports which trials are kept.

    The network and its data:

    - `make_model`: returns a new module at each call. With `shrink`, such as `{"depth": 1, "width": 64}`, it is called
      with these sizes.
    - `data`: a pair of tensors, a `Dataset` or a `DataLoader`. It is read once, so random transforms are drawn once.
    - `plan`: sets the initialisation and the ratios of rates. Without one, `init` draws the weights, and rates differ
      by layer width alone, as in the plans that take the result as their base.

    How a trial trains:

    - `steps` or `epochs`: its length; the default is one epoch, but at least 300 and at most 1000 steps.
    - `batch_size`: the default is the loader's, or 64.
    - `optimizer`: a name, a class or an instance; the default is the plan's, or "sgd". "momentum" is SGD with Nesterov
      momentum 0.9, "adam" (or "adamw") is AdamW, "muon" is Muon on hidden matrices with AdamW on the rest. A class or
      an instance brings its own settings; its learning rate is ignored.
    - `momentum`, `nesterov`, `weight_decay`: replace the optimiser's settings.
    - `no_decay`: spares norms, biases, gates and embeddings weight decay; by default only for Muon and Lion.
    - `schedule`: "constant", "cosine", or a function of the step that returns a factor of the rate.
    - `loss`: a function of output and targets, or of the output alone.
    - `counted`: a share of the steps. A trial's loss is then its mean training loss over that share, at its end;
      without it, the loss over all the data after the last step.

    Which rates are tried:

    - `seeds`: trials per rate.
    - `octaves`: how many octaves to try first on either side of `start`.
    - `finest`: into how many parts an octave next to the best rate is divided in the end: 1, 2 or 4.
    - `grid`: the only rates to try, instead of all this.

    Where trials run and are kept:

    - `engine`: "local", "ray", or an engine of your own.
    - `store`: a file to which each finished trial is written at once. A search of the same configuration continues from
      it; `resume` requires that there is one. Configurations are the same if they compute the same: data, plan,
      settings, tensors that model and loss hold, the operators of a step, and the code of your functions.
    - `name`: stands for operators and code where they cannot be read (a warning says so). Change it whenever the model
      or the loss changes.
    - `progress`: by default a bar on terminals and in notebooks; False for none, or a function of `SearchProgress`.
    """
    require_choice("on_failure", on_failure, ("raise", "return"))
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise InputError(
            f"make_model is a {type(make_model).__name__}; give a function that returns a new module at each call: "
            "each rate and seed trains a new one"
        )
    make_model = shrunk(make_model, shrink)
    require_whole("seeds", seeds)
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise InputError(
            f"name is {shown(name)}; give a few words that stand for the model and the loss, or leave it out"
        )
    require_number("start", start, above=0)
    rates = None if grid is None else _rates(grid)
    require_whole("octaves", octaves)
    if finest not in (1, 2, 4):
        raise InputError(f"finest is {shown(finest)}; give 1, 2 or 4 parts of an octave")
    if progress is not None and not isinstance(progress, bool):
        require_function("progress", progress, what="a function that takes a SearchProgress, True or False")
    if store is not None and not isinstance(store, str | Path):
        raise InputError(f"store is {shown(store)}; give the path of a file")
    chosen_optimizer = _optimizer(plan, optimizer).changed(
        momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
    )
    size = require_whole("batch_size", batch_size_of(data, batch_size))
    tensors, loss = as_tensors(data, loss, enough=_enough(epochs, steps, size))
    recipe = Recipe(
        **recipe_settings(chosen_optimizer),
        epochs=1 if epochs is None else epochs,
        steps=default_steps(len(tensors[0]), size) if epochs is None and steps is None else steps,
        batch_size=size,
        schedule=constant_schedule if isinstance(schedule, str) else schedule,
        loss=loss,
        counted=counted,
    )
    if no_decay is not None:
        recipe = replace(recipe, no_decay=no_decay)
    taken = step_count(len(tensors[0]), recipe)
    recipe = replace(recipe, schedule=schedule_of(schedule, taken))
    sizes = plain_sizes(shrink)
    planned = plan or _planned_as_base(make_model, tensors, size, init, chosen_optimizer, on_unknown)
    graph = planned.graph
    job = Job.of(make_model, planned, recipe, range(seeds))
    require_same_network(job.template, graph)
    report_held(loss)
    untrained = try_out(job, tensors, seeds)
    opened = _engine(engine) if isinstance(engine, str) else None
    session = None
    try:
        with shown_progress(progress) as show:
            session = _Session(
                job,
                tensors,
                seeds,
                opened or _given(engine),
                store,
                show,
                stage=_stage(make_model, plan),
                resume=resume,
                name=name,
                shrink=sizes,
            )
            if rates is not None:
                result = session.over_grid(rates, graph, untrained)
            else:
                result = session.coarse_to_fine(start, graph, untrained, octaves=octaves, finest=OCTAVE // finest)
            session.finish()
        if session.store:
            session.store.require_present()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_stopped(session, store)) from None
    finally:
        if session:
            session.close()
        if opened:
            opened.close()
    trained_with = choice_from(recipe.optimizer, chosen_optimizer.options)
    result = replace(
        result,
        rule=planned.rule,
        optimizer=trained_with.name,
        optimizer_options=trained_with.options,
        steps=taken,
        batch_size=min(size, len(tensors[0])),
        shrink=sizes,
        network=make_model.words if isinstance(make_model, Base) else "",
    )
    return result.require_ok() if on_failure == "raise" else result


def _stage(make_model: Callable[..., Any], plan: Plan | None) -> str:
    """Return the name of this search for progress."""
    if isinstance(make_model, Base):
        return "searching the base"
    return "searching" if plan is None else "refining"


def _stopped(session: _Session | None, store: Path | str | None) -> str:
    """Say what an interrupted search has kept, and how to continue it."""
    if session is None or not session.asked:
        return "stopped before the first trial"
    session.recall()  # Ctrl-C may have come after a trial was written but before it was counted
    done = f"stopped after {session.done} of at most {session.expected} trials"
    if store is None:
        return (
            f"{done}; they are lost: with a store (store='runs.sqlite', or --store runs.sqlite) finished trials are "
            "kept, and the same search continues from them"
        )
    return f"{done}; they are in '{store}': run the same search again with this store to continue"


class _Session:
    """A search under way: the trials known so far, and how to train more."""

    def __init__(
        self,
        job: Job,
        data: Data,
        seeds: int,
        engine: Engine,
        store: Path | str | None,
        progress: Callable[[SearchProgress], None] | None,
        *,
        stage: str,
        resume: bool,
        name: str | None,
        shrink: Mapping[str, Any] | None,
    ) -> None:
        self.job, self.data, self.seeds, self.engine, self.progress = job, data, seeds, engine, progress
        self.known: dict[Trial, float] = {}
        self.asked: dict[Trial, None] = {}
        self.expected = 0
        self.share = 0.0
        self.stage = stage
        self.batching: Batching | None = None
        self.config, self.store = "", None
        self.provenance = provenance()
        if store is not None:
            precision = getattr(engine, "precision", "float32")
            key = search_key(job, data, name=name, precision=precision, shrink=shrink)
            self.config = key.config
            if key.unreadable is not None:
                _report_unreadable(key.unreadable, resume=resume)
            if resume:
                _require_known(Path(store), self.config)
            self.store = Store(Path(store))
            self.store.begin(self.config, key.description)
            self.recall()

    def recall(self) -> None:
        """Read the trials that the store holds."""
        if self.store:
            self.known = {Trial(row.lr, row.seed): row.loss for row in self.store.rows(self.config)}

    def close(self) -> None:
        if self.store:
            self.store.close()

    @property
    def done(self) -> int:
        """The number of known trials among those that this search asked for."""
        return sum(trial in self.known for trial in self.asked)

    def over_grid(self, rates: tuple[float, ...], graph: Graph, untrained: Untrained) -> LRSearch:
        """Train a given grid."""
        return chosen(rates, tuple(self.losses(list(rates))), graph, untrained.seeds)

    def coarse_to_fine(
        self, start: float, graph: Graph, untrained: Untrained, *, octaves: int, finest: int
    ) -> LRSearch:
        """Train the rates that the strategy asks for, until it asks for none.

        A loss far above the untrained network's is not a minimum, whatever its neighbours are: units that die at a huge
        rate leave such losses finite.
        """
        known: dict[int, tuple[float, ...]] = {}
        low, high = -octaves * OCTAVE, octaves * OCTAVE
        while positions := wanted(_minima(known, untrained.first), low=low, high=high, finest=finest):
            left = left_after({*known, *positions}, low=low, high=high, finest=finest)
            losses = self.losses([rate_at(start, position) for position in positions], left=left)
            known |= dict(zip(positions, losses, strict=True))
        return of_positions(known, start, graph, untrained.seeds)

    def losses(self, rates: list[float], *, left: int = 0) -> list[tuple[float, ...]]:
        """Return the seeds' losses at each rate, training what is missing; at most `left` more rates will follow."""
        trials = [Trial(rate, seed) for rate in rates for seed in range(self.seeds)]
        missing = [trial for trial in trials if trial not in self.known]
        self.asked |= dict.fromkeys(trials)
        self.expected = len(self.asked) + left * self.seeds
        if missing:
            self._tell()
            before = time.perf_counter()
            # The whole wave decides the chunks, and a chunk is written whole: after a kill whole chunks are missing,
            # and they train together as they would have without it, to the same bits.
            batching = self._settled_batching(trials).for_wave(len(trials))
            chunk_of = {trial: place // batching.chunk for place, trial in enumerate(missing)}
            untrained = Counter(chunk_of.values())
            waiting: dict[int, list[TrialResult]] = {}
            # Close the generator whatever ends the loop: an engine's workers end with it.
            with closing(self._trained(missing, batching)) as results:
                for result in results:
                    chunk = chunk_of[result.trial]
                    waiting.setdefault(chunk, []).append(result)
                    untrained[chunk] -= 1
                    if not untrained[chunk]:
                        self._note(waiting.pop(chunk), time.perf_counter() - before)
        return [tuple(self.known[Trial(rate, seed)] for seed in range(self.seeds)) for rate in rates]

    def _trained(self, trials: list[Trial], batching: Batching) -> Generator[TrialResult, None, None]:
        """Train trials; what the user's model, loss or schedule raises in a later batch becomes one line."""
        try:
            yield from self.engine.run(self.job, self.data, trials, batching)
        except (EvenstepError, MemoryError, GeneratorExit):
            raise
        except Exception as error:
            raise unfit(self.job, self.data, error) from error

    def _settled_batching(self, trials: list[Trial]) -> Batching:
        """Return the batching of this search: the stored one if there is one, so that resumed rows are the same."""
        if self.batching is None:
            chosen_now = self._stored_batching() or self.engine.choose(self.job, self.data, trials)
            if self.store:
                self.store.settle_batching(self.config, asdict(chosen_now))
                chosen_now = self._stored_batching() or chosen_now
            self.batching = chosen_now
        return self.batching

    def _stored_batching(self) -> Batching | None:
        """Return the batching in the store, if any."""
        stored = self.store.batching(self.config) if self.store else None
        if not self.store or stored is None:
            return None
        with damage_named(self.store.path, f"the form of search {self.config[:12]}"):
            plain_values.one_of("kind", stored.get("kind"), get_args(BatchingKind))
            for name in ("chunk", "threads", "processes"):
                plain_values.count(name, stored.get(name))
            plain_values.number("seconds", stored.get("seconds", 0.0))
            return Batching(**stored)

    def _note(self, results: list[TrialResult], seconds: float) -> None:
        """Keep the results of a chunk, all or none of them."""
        if self.store:
            self.store.add(
                [
                    StoreRow(self.config, r.trial.lr, r.trial.seed, r.loss, r.curve, seconds, self.provenance)
                    for r in results
                ]
            )
        for result in results:
            self.known[result.trial] = result.loss
            self._tell()

    def finish(self) -> None:
        """Report that nothing more is wanted, if more was thought possible."""
        if self.expected > len(self.asked):
            self.expected = len(self.asked)
            self._tell()

    def _tell(self) -> None:
        if not self.progress:
            return
        known = {trial: self.known[trial] for trial in self.asked if trial in self.known}
        self.share = max(self.share, len(known) / self.expected)
        lowest = min(known, key=lambda trial: known[trial], default=None)
        value = math.inf if lowest is None else known[lowest]
        best = lowest.lr if lowest is not None and math.isfinite(value) else None
        diverged = sum(not math.isfinite(loss) for loss in known.values())
        steps = step_count(len(self.data[0]), self.job.recipe)
        self.progress(SearchProgress(len(known), self.expected, best, value, diverged, self.share, self.stage, steps))


def _report_unreadable(reason: str, *, resume: bool) -> None:
    """Report that a search cannot be told from others: an error if it is to be resumed, else a warning."""
    if resume:
        raise SearchError(
            f"{reason}, so this search cannot be found in the store; give the name that it was started with "
            "(name=...), or start it without resume"
        )
    warn(
        f"{reason}, so the trials are stored but no other search can continue from them; give the search a name "
        "(name=...), and a new name whenever the model or the loss changes",
        SearchWarning,
    )


def _require_known(path: Path, config: str) -> None:
    """Refuse a store without a search of this configuration, without making or changing a file."""
    known = set()
    if os.path.exists(path):
        store = Store(path, read_only=True)
        known = {search["config"] for search in store.searches()}
        store.close()
    if config not in known:
        raise SearchError(
            f"the store '{path}' holds no search of this configuration ({config[:12]}); start it without resume, or "
            "give the store, model, data and options it was started with"
        )


def _minima(known: dict[int, tuple[float, ...]], untrained: float) -> dict[int, float]:
    """Return the mean losses, infinite where they are too large to be a minimum.

    At rates just below divergence, networks may die and end as if untrained. There a loss has to be clearly below the
    untrained one, unless none is for `DEAD_OCTAVES` octaves.
    """
    means = _means(known, untrained + abs(untrained))
    trained = [position for position, mean in means.items() if math.isfinite(mean)]
    if not trained or math.isfinite(means[max(means)]) or min(means) <= max(trained) - DEAD_OCTAVES * OCTAVE:
        return means
    return _means(known, untrained - LEARNT * abs(untrained))


def _means(known: dict[int, tuple[float, ...]], limit: float) -> dict[int, float]:
    """Return the mean losses, infinite above a limit."""
    means = {position: sum(losses) / len(losses) for position, losses in known.items()}
    return {position: mean if mean <= limit else math.inf for position, mean in means.items()}


def _planned_as_base(
    make_model: Callable[[], nn.Module],
    data: Data,
    batch_size: int,
    init: str,
    optimizer: OptimizerChoice,
    on_unknown: OnUnknown,
) -> Plan:
    """Return the plan of a network that is its own base."""
    model = made(make_model, 0)
    require_trainable(model)  # before tracing, which finds no graph in a network without weights
    inputs = example_of(data[0], model, batch=batch_size)
    graph = plan_module(model, inputs, init=init, optimizer=optimizer, on_unknown=on_unknown).graph
    return plan_graph(graph, init=init, optimizer=optimizer, base_graph=graph)


def _enough(epochs: int | None, steps: int | None, batch_size: int) -> int | None:
    """Return the most examples that the steps of a trial take, or None if it trains on all of them."""
    if steps is None:
        return None if epochs is not None else MOST_STEPS * batch_size
    return require_whole("steps", steps) * batch_size


def batch_size_of(data: Any, asked: int | None, *, usual: int | None = None) -> int:
    """Return how many examples a step takes: the loader's batch size, else what was asked for, usual, or 64."""
    own = loader_batch_size(data)
    if own is not None and asked is not None and own != asked:
        raise InputError(
            f"batch_size is {shown(asked)}, but the DataLoader's is {own}; leave batch_size out, or give the data set"
        )
    return own or (usual or 64 if asked is None else asked)


def _given(engine: Engine | str) -> Engine:
    if isinstance(engine, str) or not hasattr(engine, "run"):
        raise InputError(f"engine is {engine!r}; choose 'local' or 'ray', or give an engine of your own")
    return engine


def _engine(engine: str) -> Engine:
    if engine == "local":
        return LocalEngine()
    if engine == "ray":
        from evenstep.search.engines.ray import RayEngine  # here: ray is an optional extra

        return RayEngine()
    raise InputError(f"engine is '{engine}'; choose 'local' or 'ray', or give an engine of your own")


def _rates(grid: object) -> tuple[float, ...]:
    """Return the learning rates of a grid, ascending and each once."""
    try:
        if isinstance(grid, str | bytes | dict):
            raise TypeError
        listed = list(cast(Iterable[object], grid))
    except Exception:  # not iterable, or iterating raises
        raise InputError(f"the grid is {shown(grid)}; give a list of learning rates, or leave it out") from None
    rates = tuple(sorted({require_number("the grid holds a rate that", rate, above=0) for rate in listed}))
    if not rates:
        raise InputError("the grid is empty; give at least one learning rate")
    return rates


def _optimizer(plan: Plan | None, given: OptimizerLike | None) -> OptimizerChoice:
    """Return the optimiser to train with: the one asked for, which has to match the plan's if there is a plan."""
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(f"plan is {shown(plan)}; give what evenstep.plan(make_model(), example_inputs) returns")
    asked = None if given is None else optimizer_choice(given)
    planned = None if plan is None else choice_from(plan.optimizer_name, plan.optimizer_options)
    if asked and planned and asked.name != planned.name:
        raise InputError(
            f"the plan is for optimizer '{planned.name}', but optimizer is '{asked.name}', which needs other rates; "
            f"plan with optimizer='{asked.name}', or leave optimizer out"
        )
    chosen = asked or planned or OptimizerChoice("sgd")
    if plan is None or not plan.scales("betas"):
        return chosen
    return chosen.changed(betas=moved_betas(plan, chosen.options.get("betas")))
