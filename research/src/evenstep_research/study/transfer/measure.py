"""One architecture measured: its searched learning rate, and its loss at the rate each method picks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from evenstep.planning import Plan, plan_graph
from evenstep.rules import Paths, Rule, Weighted
from evenstep.search import Engine, plain_values
from evenstep.search.fields import TensorPair
from evenstep.search.grid import OCTAVE, parabola_minimum, rate_at
from evenstep.search.job import Job, Trial
from evenstep.search.recipe import Recipe, Schedule, constant_schedule, cosine_schedule
from evenstep.search.replicas import step_count
from evenstep_research.study.transfer import rivals
from evenstep_research.study.transfer.families import Architecture, FamilySetting, graph_of, maker
from evenstep_research.study.transfer.rivals import Attempt

# What can be asked for a rate without a look at the target's losses.
# The layers' own factors of the rule `weighted`, and none for topology.
LAYERS = Weighted(depth_power=0.0, size_power=0.0, adam_depth_power=0.0, adam_size_power=0.0, name="layers")
METHODS: Mapping[str, str | Rule] = {
    "constant": "constant",
    "paths": "paths",
    "paths+2": Paths(depth_offset=2),
    "mup": "mup",
    "weighted": "weighted",
}


@dataclass(frozen=True)
class TransferTraining:
    """Say how networks are trained and searched; a base, on which all else rests, with more seeds."""

    batch_size: int = 256
    epochs: int = 1
    seeds: int = 3
    cosine: bool = False
    base_seeds: int = 12

    @property
    def of_bases(self) -> TransferTraining:
        """The same for bases."""
        return replace(self, seeds=self.base_seeds)

    def schedule(self, examples: int) -> Schedule:
        """Return the schedule for so many examples."""
        if not self.cosine:
            return constant_schedule
        return cosine_schedule(self.epochs * (examples // min(self.batch_size, examples)), warm_up=0.0)


@dataclass(frozen=True)
class Choice:
    """A method's rate for one architecture, and the losses of its seeds there (infinite where they diverged).

    `steps` is what finding the rate cost on the target itself; methods that look at the base only cost none.
    """

    lr: float
    losses: tuple[float, ...]
    steps: int = 0

    @property
    def loss(self) -> float:
        """The mean loss over seeds."""
        return sum(self.losses) / len(self.losses)


Curve = dict[float, tuple[float, ...]]
SEARCHED = "searched"  # the method that tunes the target itself: what all others are held against
HOPELESS = 2.7  # nats above guessing: no minimum of a classifier's training loss
DIVERGED = 10.0  # nats: a training that ends above has diverged, if its loss is finite or not


@dataclass(frozen=True)
class Known:
    """What is known of an architecture: the seeds' losses over learning rates, and what rivals made of it."""

    curve: Curve = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """An architecture's truth: the seeds' losses over learning rates, and what the methods chose.

    `true_lr` is the minimum of a parabola fitted to the smallest mean losses, None where the search has no answer.
    """

    architecture: Architecture
    status: str
    true_lr: float | None
    curve: Curve
    choices: dict[str, Choice]
    attempts: dict[str, Attempt]
    classes: int = 10

    @property
    def best_loss(self) -> float:
        """The smallest mean loss that the search found; rates that methods chose do not count."""
        return min((_on_lattice(self.curve) or means(self.curve)).values())

    def regret(self, loss: float) -> float:
        """Return how much a mean loss over seeds loses to the best, in nats.

        A loss above that of guessing, infinite or not, counts as guessing's: who diverges has learned nothing, and all
        methods keep a mean that can be compared. The rule is the same for methods and rivals.
        """
        best = self.best_loss
        return min(loss, max(math.log(self.classes), best)) - best

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; diverged losses are None."""
        return {
            "name": self.architecture.name,
            "code": self.architecture.code,
            "kernel_size": self.architecture.kernel_size,
            "width": self.architecture.width,
            "status": self.status,
            "true_lr": self.true_lr,
            "curve": curve_to_list(self.curve),
            "choices": {
                name: {
                    "lr": choice.lr,
                    "losses": [plain_values.finite_or_none(loss) for loss in choice.losses],
                    "target_steps": choice.steps,
                }
                for name, choice in self.choices.items()
            },
            "rivals": attempts_to_dict(self.attempts),
        }


@dataclass(frozen=True)
class Bench:
    """Where measuring happens: data, engine, training."""

    data: TensorPair
    engine: Engine
    training: TransferTraining

    def losses(
        self, setting: FamilySetting, architecture: Architecture, rates: Iterable[float], seeds: int, known: Curve
    ) -> Curve:
        """Return the losses of so many seeds at given rates, which the plan's factors of single layers multiply.

        Seeds are independent of each other: those whose losses are known are not trained again.
        """
        known_losses = {rate: list(known.get(rate, ())) for rate in rates}
        trials = [Trial(rate, seed) for rate, losses in known_losses.items() for seed in range(len(losses), seeds)]
        if trials:
            job = self._job(setting, architecture, seeds)
            losses = {result.trial: result.loss for result in self.engine.run(job, self.data, trials)}
            for trial in trials:
                known_losses[trial.lr].append(losses[trial])
        return {rate: tuple(losses) for rate, losses in known_losses.items()}

    def steps(self, setting: FamilySetting, trials: int) -> int:
        """Return how many steps the training of so many trials takes."""
        return trials * step_count(len(self.data[0]), self._recipe(setting))

    def attempt(self, rival: str, setting: FamilySetting, architecture: Architecture) -> Attempt:
        """Return what a rival makes of an architecture."""
        seeds = min(self.training.seeds, FEW_SEEDS)
        job = self._job(setting, architecture, seeds)
        if rival in rivals.OPTIMISERS:
            return rivals.OPTIMISERS[rival](job, self.data, seeds)
        rate = rivals.range_test(job, self.data)
        return Attempt(rate, self.losses(setting, architecture, [rate], seeds, {})[rate], rivals.TEST_STEPS)

    def _job(self, setting: FamilySetting, architecture: Architecture, seeds: int) -> Job:
        return Job.of(maker(setting, architecture), layered(setting, architecture), self._recipe(setting), range(seeds))

    def _recipe(self, setting: FamilySetting) -> Recipe:
        return Recipe(
            optimizer=setting.optimizer,
            batch_size=self.training.batch_size,
            epochs=self.training.epochs,
            schedule=self.training.schedule(len(self.data[0])),
        )


def layered(setting: FamilySetting, architecture: Architecture) -> Plan:
    """Return the plan that initialises a network as its setting says; rates differ by layer width, or not at all."""
    graph, base = graph_of(setting, architecture), graph_of(setting, Architecture("base", "2"))
    rule = LAYERS if setting.rates == "layers" else "constant"
    return plan_graph(graph, rule=rule, init=setting.init, optimizer=setting.optimizer, base_graph=base)


def predictions(
    setting: FamilySetting,
    architecture: Architecture,
    base: Architecture,
    rate: float,
    methods: Mapping[str, str | Rule] = METHODS,
) -> dict[str, float]:
    """Return the rate each method picks for an architecture, from the base's rate alone."""
    graph, base_graph = graph_of(setting, architecture), graph_of(setting, base)
    planned = partial(plan_graph, init=setting.init, optimizer=setting.optimizer, base=rate, base_graph=base_graph)
    return {name: rate * planned(graph, rule=rule).lr_scale for name, rule in methods.items()}


def measure(
    bench: Bench,
    setting: FamilySetting,
    architecture: Architecture,
    picked: Mapping[str, float],
    known: Known | None = None,
    asked: Sequence[str] = (),
) -> Measured:
    """Search an architecture over octaves, then over all quarter octaves around the best, and train at picked rates.

    Octaves are tried with a few seeds, rates around the best and picked ones with all. The searched rate is trained
    like a picked one, where any is asked for: its regret is what tuning the target itself leaves. `known` holds what
    was measured before; nothing is trained twice. `asked` names the rivals to try.
    """
    known = known or Known()
    curve = dict(known.curve)
    settled: dict[str, float] = {}
    for name, lr in picked.items():
        settled[name] = _as_known(lr, [*curve, *settled.values()])
    picked = settled
    start = picked.get("weighted", 2.0**-9 if setting.optimizer == "adam" else 0.5)
    centre = OCTAVE * round(math.log2(start))
    every = bench.training.seeds
    few = min(every, FEW_SEEDS)
    while True:
        # A rate that another question tried with fewer seeds does not say where to look.
        enough = {lr: losses for lr, losses in curve.items() if len(losses) >= few}
        positions, status = next_positions(enough, centre, setting.classes)
        rates = [rate_at(1.0, position) for position in positions]
        seeds = few
        if status == "ok":
            rates, seeds = rates + list(picked.values()), every
        missing = [lr for lr in dict.fromkeys(rates) if len(curve.get(lr, ())) < seeds]
        if not missing:
            break
        curve |= bench.losses(setting, architecture, missing, seeds, curve)
    choices = {name: Choice(lr, curve[lr]) for name, lr in picked.items() if lr in curve}
    true_lr = best_rate(curve, every) if status == "ok" else None
    if true_lr is not None and picked:
        tried = sum(len(losses) for lr, losses in curve.items() if _position(lr) is not None)
        lr = _as_known(true_lr, curve)
        curve |= bench.losses(setting, architecture, [lr], every, curve)
        choices[SEARCHED] = Choice(lr, curve[lr], bench.steps(setting, tried))
    attempts = {rival: known.attempts.get(rival) or bench.attempt(rival, setting, architecture) for rival in asked}
    return Measured(architecture, status, true_lr, curve, choices, attempts, setting.classes)


def _as_known(rate: float, rates: Iterable[float]) -> float:
    """Return a rate as it is known already, if it differs by rounding alone: another machine adds up otherwise."""
    return next((known for known in rates if math.isclose(known, rate, rel_tol=1e-9)), rate)


FEW_SEEDS = 3  # for octaves, which only say where to look closer, and for rivals, which are trained one by one
REACH = 6  # octaves beyond the first ones after which a search gives up


def next_positions(curve: Curve, centre: int, classes: int = 10) -> tuple[list[int], str]:
    """Return the positions of the lattice to try next, and how the search stands.

    Three octaves either side of the centre come first, then two more at an edge that is best, then all quarter
    octaves up to one octave either side of the best: those are named whether tried or not, for more seeds may be asked.
    """
    tried = _on_lattice(curve)
    hopeful = {position: loss for position, loss in tried.items() if loss <= math.log(classes) + HOPELESS}
    first = [centre + OCTAVE * step for step in range(-3, 4)]
    missing = [position for position in first if position not in tried]
    if missing:
        return missing, "unknown"
    best = min(hopeful, key=lambda position: hopeful[position]) if hopeful else min(tried)
    for edge, way in ((max(tried), 1), (min(tried), -1)):
        if best == edge:
            if abs(edge - centre) > (3 + REACH) * OCTAVE:
                return [], "best_at_edge" if hopeful else "all_diverged"
            return [edge + way * OCTAVE, edge + 2 * way * OCTAVE], "unknown"
    return list(range(best - OCTAVE, best + OCTAVE + 1)), "ok"


def means(curve: Curve) -> dict[float, float]:
    """Return the mean loss at every rate, infinite where a seed diverged."""
    return {lr: sum(losses) / len(losses) for lr, losses in curve.items()}


def loss_between(curve: Curve, lr: float) -> float:
    """Return the mean loss at a rate, between measured ones along the logarithm of the rate, beyond them the last."""
    points = sorted(means(curve).items())
    below = max((point for point in points if point[0] <= lr), default=points[0])
    above = min((point for point in points if point[0] >= lr), default=points[-1])
    if below[0] == above[0]:
        return below[1]
    part = math.log(lr / below[0]) / math.log(above[0] / below[0])
    return (1 - part) * below[1] + part * above[1]


def _on_lattice(curve: Curve) -> dict[int, float]:
    """Return the mean losses at those rates that are whole quarter octaves, by position."""
    losses = {}
    for lr, loss in means(curve).items():
        position = _position(lr)
        if position is not None:
            losses[position] = loss
    return losses


def _position(lr: float) -> int | None:
    """Return where a rate lies on the lattice of quarter octaves, None where it lies between."""
    position = round(OCTAVE * math.log2(lr))
    return position if lr == rate_at(1.0, position) else None


def best_rate(curve: Curve, seeds: int = 1) -> float:
    """Return the rate at the minimum of the parabola through the nearly best rates, or the best where there is none.

    Rates with fewer seeds than asked for, far from the best, do not count: how many are known is chance.
    """
    mean_losses = _on_lattice({lr: losses for lr, losses in curve.items() if len(losses) >= seeds})
    best = min(mean_losses, key=lambda position: mean_losses[position])
    estimate = parabola_minimum(mean_losses)
    return math.pow(2.0, (best if estimate is None else estimate) / OCTAVE)


def curve_to_list(curve: Curve) -> list[Any]:
    """Return a curve as plain values, diverged losses as None."""
    return [[lr, [plain_values.finite_or_none(loss) for loss in losses]] for lr, losses in sorted(curve.items())]


def attempts_to_dict(attempts: Mapping[str, Attempt]) -> dict[str, Any]:
    """Return rivals' attempts as plain values."""
    return {
        name: {
            "lr": attempt.lr,
            "losses": [plain_values.finite_or_none(loss) for loss in attempt.losses],
            "target_steps": attempt.steps,
        }
        for name, attempt in attempts.items()
    }


def attempts_from_dict(values: Mapping[str, Any]) -> dict[str, Attempt]:
    """Return the attempts of plain values."""
    return {
        name: Attempt(
            value["lr"],
            tuple(plain_values.loss("a loss", loss) for loss in value["losses"]),
            value["target_steps"],
        )
        for name, value in values.items()
    }


def curve_from_list(values: list[Any]) -> Curve:
    """Return the curve of plain values."""
    return {
        plain_values.positive("lr", lr): tuple(plain_values.loss("a loss", loss) for loss in losses)
        for lr, losses in values
    }
