"""The search for a network's maximal learning rate: coarse to fine, and nothing trained twice."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from evenstep.arguments import require_choice, require_function, require_number, require_whole, shown
from evenstep.errors import EvenstepError, InputError, SearchError, SearchWarning
from evenstep.graph import Graph
from evenstep.module import plan as plan_module
from evenstep.planning import Plan, plan_graph
from evenstep.rules import OPTIMIZERS, Optimizer
from evenstep.search import plain_values
from evenstep.search.engines import Engine, LocalEngine
from evenstep.search.engines.batching import Batching, BatchingKind
from evenstep.search.grid import OCTAVE, rate_at, wanted
from evenstep.search.job import Data, Job, Trial, made
from evenstep.search.key import search_key
from evenstep.search.provenance import provenance
from evenstep.search.recipe import Loss, Recipe, Schedule, constant_schedule
from evenstep.search.replicas import TrialResult
from evenstep.search.result import LRSearch, chosen, of_positions
from evenstep.search.store import Store, StoreRow
from evenstep.search.store_rows import damage_named
from evenstep.search.tensors import as_tensors
from evenstep.search.trying import Untrained, require_same_network, require_trainable, try_out, unfit

OCTAVES = 3  # first tried either side of the start
LEARNT = 0.1  # the part of the untrained loss that is gone where a network has learnt something
DEAD_OCTAVES = 12  # of rates at which nothing is learnt, below those at which training diverges


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """How a search stands: trials done and known to be needed, the best rate and loss so far, trials diverged."""

    done: int
    total: int
    best: float | None
    loss: float
    diverged: int


def search_lr(
    make_model: Callable[[], nn.Module],
    data: Any,
    *,
    plan: Plan | None = None,
    optimizer: Optimizer | None = None,
    init: str = "conserve",
    epochs: int = 1,
    steps: int | None = None,
    batch_size: int | None = None,
    momentum: float | None = None,
    nesterov: bool | None = None,
    weight_decay: float = 0.0,
    schedule: Schedule = constant_schedule,
    loss: Loss = functional.cross_entropy,
    seeds: int = 3,
    start: float = 0.1,
    grid: Sequence[float] | None = None,
    engine: Engine | Literal["local", "ray"] = "local",
    store: Path | str | None = None,
    resume: bool = False,
    name: str | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> LRSearch:
    """Return the maximal learning rate of a network: the largest with the smallest training loss.

    `make_model` returns a new module at each call; `data` is a pair of tensors, a `Dataset` or a `DataLoader`, read
    once: random transforms stay as they came. `batch_size` left out is the loader's, or 64. Octaves
    around `start` come first, more of them while the best is at the edge, then half and quarter octaves beside the
    best; a `grid` of your own is trained as it is. A `plan` of the network sets its start and the ratios of its
    parameters' rates; without one it is initialised by `init` and trained at rates that differ by layer width alone, as
    the plans that take the result as their base go on from. With a `store`, finished trials are written to it as soon
    as they are known, and a search of the same configuration goes on where it stopped (`resume` insists that there is
    one). The same is what computes the same: data, plan, the recipe's numbers, the tensors that model and loss hold,
    the operators of a step, the code of the user's functions. A `name` stands for operators and code: give one where
    these cannot be read (a warning says so), and another whenever the model or the loss changes. `optimizer`, left out,
    is the plan's, or `sgd`; `momentum` is SGD with Nesterov's momentum of 0.9, unless `momentum` and `nesterov` say
    otherwise. Where all trials diverge, nothing is learnt or the best rate stays at the edge the search raises, or with
    `on_failure='return'` says so in its `status`.
    """
    require_choice("on_failure", on_failure, ("raise", "return"))
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise InputError(
            f"make_model is a {type(make_model).__name__}; give a function that returns a new module at each call: "
            "every learning rate and seed trains one of its own"
        )
    require_whole("seeds", seeds)
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise InputError(f"name is {shown(name)}; give a few words that stand for the model and the loss, or none")
    require_number("start", start, above=0)
    rates = None if grid is None else _rates(grid)
    if progress is not None:
        require_function("progress", progress, what="a function that takes a SearchProgress")
    if store is not None and not isinstance(store, str | Path):
        raise InputError(f"store is {shown(store)}; give the path of a file")
    optimizer = _optimizer(plan, optimizer)
    tensors = as_tensors(data)
    recipe = Recipe(
        optimizer=optimizer,
        epochs=epochs,
        steps=steps,
        batch_size=_batch_size(data, batch_size),
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        schedule=schedule,
        loss=loss,
    )
    planned = plan or _planned_as_base(make_model, tensors, init, optimizer)
    graph = planned.graph
    job = Job.of(make_model, planned, recipe, range(seeds))
    require_same_network(job.template, graph)
    untrained = try_out(job, tensors, seeds)
    opened = _engine(engine) if isinstance(engine, str) else None
    session = None
    try:
        session = _Session(job, tensors, seeds, opened or _given(engine), store, progress, resume=resume, name=name)
        if rates is not None:
            result = session.over_grid(rates, graph, untrained)
        else:
            result = session.coarse_to_fine(start, graph, untrained)
        if session.store:
            session.store.require_present()
    finally:
        if session:
            session.close()
        if opened:
            opened.close()
    result = replace(result, rule=planned.rule, optimizer=optimizer)
    return result.require_ok() if on_failure == "raise" else result


class _Session:
    """One search under way: what is known, and how more becomes known."""

    def __init__(
        self,
        job: Job,
        data: Data,
        seeds: int,
        engine: Engine,
        store: Path | str | None,
        progress: Callable[[SearchProgress], None] | None,
        *,
        resume: bool,
        name: str | None,
    ) -> None:
        self.job, self.data, self.seeds, self.engine, self.progress = job, data, seeds, engine, progress
        self.known: dict[Trial, float] = {}
        self.needed = 0
        self.batching: Batching | None = None
        self.config, self.store = "", None
        self.provenance = provenance()
        if store is not None:
            key = search_key(job, data, name=name, precision=getattr(engine, "precision", "float32"))
            self.config = key.config
            if key.unreadable is not None:
                _report_unreadable(key.unreadable, resume=resume)
            if resume:
                _require_known(Path(store), self.config)
            self.store = Store(Path(store))
            self.store.begin(self.config, key.description)
            self.known = {Trial(row.lr, row.seed): row.loss for row in self.store.rows(self.config)}

    def close(self) -> None:
        if self.store:
            self.store.close()

    def over_grid(self, rates: tuple[float, ...], graph: Graph, untrained: Untrained) -> LRSearch:
        """Train a grid as given."""
        return chosen(rates, tuple(self.losses(list(rates))), graph, untrained.seeds)

    def coarse_to_fine(self, start: float, graph: Graph, untrained: Untrained) -> LRSearch:
        """Train what the strategy wants, until it wants no more.

        Losses far above the untrained network's are no minimum, whatever is beside them: units that died at a huge
        rate leave such losses finite.
        """
        known: dict[int, tuple[float, ...]] = {}
        low, high = -OCTAVES * OCTAVE, OCTAVES * OCTAVE
        while positions := wanted(_minima(known, untrained.first), low=low, high=high):
            losses = self.losses([rate_at(start, position) for position in positions])
            known |= dict(zip(positions, losses, strict=True))
        return of_positions(known, start, graph, untrained.seeds)

    def losses(self, rates: list[float]) -> list[tuple[float, ...]]:
        """Return the seeds' losses at every rate, training the trials that are not known yet."""
        trials = [Trial(rate, seed) for rate in rates for seed in range(self.seeds)]
        missing = [trial for trial in trials if trial not in self.known]
        self.needed = len(self.known) + len(missing)
        if missing:
            before = time.perf_counter()
            # Chunks follow from the whole wave and are noted whole: after a kill whole chunks are missing, and these
            # train in the same company as without it, to the same bits.
            batching = self._settled_batching(trials).for_wave(len(trials))
            chunk_of = {trial: place // batching.chunk for place, trial in enumerate(missing)}
            left = Counter(chunk_of.values())
            waiting: dict[int, list[TrialResult]] = {}
            for result in self._trained(missing, batching):
                chunk = chunk_of[result.trial]
                waiting.setdefault(chunk, []).append(result)
                left[chunk] -= 1
                if not left[chunk]:
                    self._note(waiting.pop(chunk), time.perf_counter() - before)
        return [tuple(self.known[Trial(rate, seed)] for seed in range(self.seeds)) for rate in rates]

    def _trained(self, trials: list[Trial], batching: Batching) -> Iterator[TrialResult]:
        """Train trials; what the user's own model, loss or schedule raises in a later batch is one line, too."""
        try:
            yield from self.engine.run(self.job, self.data, trials, batching)
        except (EvenstepError, MemoryError, GeneratorExit):
            raise
        except Exception as error:
            raise unfit(self.job, self.data, error) from error

    def _settled_batching(self, trials: list[Trial]) -> Batching:
        """Return the batching of this search: as it began, if the store knows, so that resumed rows are the same."""
        if self.batching is None:
            chosen_now = self._stored_batching() or self.engine.choose(self.job, self.data, trials)
            if self.store:
                self.store.settle_batching(self.config, asdict(chosen_now))
                chosen_now = self._stored_batching() or chosen_now
            self.batching = chosen_now
        return self.batching

    def _stored_batching(self) -> Batching | None:
        """Return the batching that the store knows, if any."""
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
        """Keep the results of a chunk, all or none."""
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

    def _tell(self) -> None:
        if self.progress:
            lowest = min(self.known, key=lambda trial: self.known[trial])
            value = self.known[lowest]
            best = lowest.lr if math.isfinite(value) else None
            diverged = sum(not math.isfinite(loss) for loss in self.known.values())
            self.progress(SearchProgress(len(self.known), self.needed, best, value, diverged))


def _report_unreadable(reason: str, *, resume: bool) -> None:
    """Say that a search cannot be told from others: an error where it has to be."""
    if resume:
        raise SearchError(
            f"{reason}; no search of the store can be known to be this one: give the name that it was started with "
            "(name=...), or start it without resume"
        )
    warnings.warn(
        f"{reason}; the trials are stored, but no other search can go on from them: give the search a name (name=...), "
        "and another whenever the model or the loss changes",
        SearchWarning,
        stacklevel=4,
    )


def _require_known(path: Path, config: str) -> None:
    """Refuse a store that has no search of this configuration, without making or changing a file."""
    known = set()
    if os.path.exists(path):
        store = Store(path, read_only=True)
        known = {search["config"] for search in store.searches()}
        store.close()
    if config not in known:
        raise SearchError(
            f"the store '{path}' knows no search of this configuration ({config[:12]}); start it without resume, or "
            "give the store, model, data and options it was started with"
        )


def _minima(known: dict[int, tuple[float, ...]], untrained: float) -> dict[int, float]:
    """Return the mean losses, infinite where they are too large to be a minimum.

    Below rates at which training diverges, networks may die and end as if they had not been trained: there a loss has
    to be clearly lower than that, until so many octaves have shown none.
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


def _planned_as_base(make_model: Callable[[], nn.Module], data: Data, init: str, optimizer: Optimizer) -> Plan:
    """Return the plan of a network that is its own base, its signals as they were measured."""
    model = made(make_model, 0)
    require_trainable(model)  # before the trace, which has no graph for a network without weights
    graph = plan_module(model, data[0][: min(2, len(data[0]))], init=init, optimizer=optimizer).graph
    return plan_graph(graph, init=init, optimizer=optimizer, base_graph=graph)


def _batch_size(data: Any, asked: int | None) -> int:
    """Return how many examples a step takes: as many as a loader's, unless something else holds the data."""
    own = data.batch_size if isinstance(data, DataLoader) else None
    if own is not None and asked is not None and own != asked:
        raise InputError(
            f"batch_size is {shown(asked)}, and that of the DataLoader {own}; leave one out: give its data set"
        )
    return own or (64 if asked is None else asked)


def _given(engine: Engine | str) -> Engine:
    if isinstance(engine, str) or not hasattr(engine, "run"):
        raise InputError(f"engine is {engine!r}; choose 'local' or 'ray', or give an engine of your own")
    return engine


def _engine(engine: str) -> Engine:
    if engine == "local":
        return LocalEngine()
    if engine == "ray":
        from evenstep.search.engines.ray import RayEngine  # ray is an extra

        return RayEngine()
    raise InputError(f"engine is '{engine}'; choose 'local' or 'ray', or give an engine of your own")


def _rates(grid: object) -> tuple[float, ...]:
    """Return the learning rates of a grid, ascending and each once."""
    try:
        if isinstance(grid, str | bytes | dict):
            raise TypeError
        listed = list(cast(Iterable[object], grid))
    except Exception:  # what is no iterable, or one that raises
        raise InputError(f"the grid is {shown(grid)}; give a list of learning rates, or leave it out") from None
    rates = tuple(sorted({require_number("the grid holds a rate that", rate, above=0) for rate in listed}))
    if not rates:
        raise InputError("the grid is empty; give at least one learning rate")
    return rates


def _optimizer(plan: Plan | None, asked: Optimizer | None) -> Optimizer:
    """Return the optimiser to train with: the one asked for, which has to be the plan's where there is one."""
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(f"plan is {shown(plan)}; give what evenstep.plan(make_model(), example_inputs) returns")
    if asked is not None:
        require_choice("optimizer", asked, OPTIMIZERS)
    planned = None if plan is None else cast(Optimizer, plan.optimizer)
    if asked and planned and asked != planned:
        raise InputError(
            f"the plan is for optimizer '{planned}', and optimizer is '{asked}', whose rates are of another size; plan "
            f"with optimizer='{asked}', or leave optimizer out"
        )
    return asked or planned or "sgd"
