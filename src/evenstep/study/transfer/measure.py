"""One architecture measured: its searched learning rate, and its loss at the rate each method picks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from evenstep.rules import Plan, Rule, plan_graph
from evenstep.rules.paths import Paths
from evenstep.search import Engine, search_lr
from evenstep.search.grid import OCTAVE, parabola_minimum, rate_at
from evenstep.search.job import Data
from evenstep.search.recipe import Schedule, constant_schedule
from evenstep.study.transfer.families import Architecture, Setting, graph_of, maker

# What can be asked for a rate without a look at the target's losses.
METHODS: Mapping[str, str | Rule] = {
    "constant": "constant",
    "paths": "paths",
    "paths+2": Paths(depth_offset=2),
    "mup": "mup",
    "weighted": "weighted",
}


@dataclass(frozen=True)
class Cosine:
    """Fall from 1 to 0 along half a cosine over so many steps."""

    steps: int

    def __call__(self, step: int) -> float:
        """Return the factor of a step."""
        return 0.5 * (1 + math.cos(math.pi * min(step, self.steps) / self.steps))


@dataclass(frozen=True)
class Training:
    """Say how networks are trained and searched."""

    batch_size: int = 256
    epochs: int = 1
    seeds: int = 3
    cosine: bool = False

    def schedule(self, examples: int) -> Schedule:
        """Return the schedule for so many examples."""
        if not self.cosine:
            return constant_schedule
        return Cosine(self.epochs * (examples // min(self.batch_size, examples)))


@dataclass(frozen=True)
class Choice:
    """A method's rate for one architecture, and the losses of its seeds there (infinite where they diverged)."""

    lr: float
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean loss over seeds."""
        return sum(self.losses) / len(self.losses)


Curve = dict[float, tuple[float, ...]]


@dataclass(frozen=True)
class Measured:
    """An architecture's truth: the seeds' losses over learning rates, and what the methods chose.

    `true_lr` is the minimum of the parabola through the smallest mean losses, None where the search has no answer.
    """

    architecture: Architecture
    status: str
    true_lr: float | None
    curve: Curve
    choices: dict[str, Choice]

    @property
    def best_loss(self) -> float:
        """The smallest mean loss at any rate, chosen ones included."""
        return min(means(self.curve).values())

    def regret(self, method: str) -> float:
        """Return how much a method's choice loses to the best, in nats."""
        return self.choices[method].loss - self.best_loss

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
                name: {"lr": choice.lr, "losses": [_finite(loss) for loss in choice.losses]}
                for name, choice in self.choices.items()
            },
        }


@dataclass(frozen=True)
class Bench:
    """Where measuring happens: data, engine, training."""

    data: Data
    engine: Engine
    training: Training

    def losses(self, setting: Setting, architecture: Architecture, rates: Sequence[float]) -> Curve:
        """Return the seeds' losses at given rates, which the plan's factors of single layers multiply."""
        found = search_lr(
            maker(setting, architecture),
            self.data,
            plan=layered(setting, architecture),
            optimizer=setting.optimizer,
            batch_size=self.training.batch_size,
            epochs=self.training.epochs,
            seeds=self.training.seeds,
            schedule=self.training.schedule(len(self.data[0])),
            grid=rates,
            engine=self.engine,
            on_failure="return",
        )
        return dict(zip(found.grid, found.losses, strict=True))


def layered(setting: Setting, architecture: Architecture) -> Plan:
    """Return the plan that initialises a network as its setting says; its rates differ by layer width alone."""
    graph, base = graph_of(setting, architecture), graph_of(setting, Architecture("base", "2"))
    return plan_graph(graph, rule="mup", init=setting.init, optimizer=setting.optimizer, base_graph=base)


def predictions(
    setting: Setting,
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
    setting: Setting,
    architecture: Architecture,
    picked: Mapping[str, float],
    known: Curve | None = None,
) -> Measured:
    """Search an architecture over octaves, then over all quarter octaves around the best, and train at picked rates.

    `known` holds what was measured before; nothing is trained twice.
    """
    curve = dict(known or {})
    start = picked.get("weighted", 2.0**-9 if setting.optimizer == "adam" else 0.5)
    centre = OCTAVE * round(math.log2(start))
    status = "unknown"
    while status == "unknown":
        positions, status = next_positions(curve, centre)
        rates = [rate_at(1.0, position) for position in positions]
        if status == "ok":
            rates += picked.values()
        missing = [lr for lr in dict.fromkeys(rates) if lr not in curve]
        if missing:
            curve |= bench.losses(setting, architecture, missing)
        if status == "ok" and next_positions(curve, centre)[0]:
            status = "unknown"
    choices = {name: Choice(lr, curve[lr]) for name, lr in picked.items() if lr in curve}
    true_lr = _minimum(curve) if status == "ok" else None
    return Measured(architecture, status, true_lr, curve, choices)


REACH = 6  # octaves beyond the first ones after which a search gives up


def next_positions(curve: Curve, centre: int) -> tuple[list[int], str]:
    """Return the positions of the lattice to try next, and how the search stands.

    Three octaves either side of the centre come first, then two more at an edge that is best, then all quarter
    octaves up to one octave either side of the best.
    """
    found = {position: loss for position, loss in _on_lattice(curve).items() if loss <= HOPELESS}
    tried = _on_lattice(curve)
    first = [centre + OCTAVE * step for step in range(-3, 4)]
    missing = [position for position in first if position not in tried]
    if missing:
        return missing, "unknown"
    best = min(found, key=lambda position: found[position]) if found else min(tried)
    for edge, way in ((max(tried), 1), (min(tried), -1)):
        if best == edge:
            if abs(edge - centre) > (3 + REACH) * OCTAVE:
                return [], "best_at_edge" if found else "all_diverged"
            return [edge + way * OCTAVE, edge + 2 * way * OCTAVE], "unknown"
    around = range(best - OCTAVE, best + OCTAVE + 1)
    return [position for position in around if position not in tried], "ok"


HOPELESS = 5.0  # nats: no minimum of a classifier's training loss


def means(curve: Curve) -> dict[float, float]:
    """Return the mean loss at every rate, infinite where a seed diverged."""
    return {lr: sum(losses) / len(losses) for lr, losses in curve.items()}


def _on_lattice(curve: Curve) -> dict[int, float]:
    """Return the mean losses at those rates that are whole quarter octaves, by position."""
    found = {}
    for lr, loss in means(curve).items():
        position = round(OCTAVE * math.log2(lr))
        if lr == rate_at(1.0, position):
            found[position] = loss
    return found


def _minimum(curve: Curve) -> float:
    found = _on_lattice(curve)
    estimate = parabola_minimum(found)
    best = min(found, key=lambda position: found[position])
    return math.pow(2.0, (best if estimate is None else estimate) / OCTAVE)


def curve_to_list(curve: Curve) -> list[Any]:
    """Return a curve as plain values, diverged losses as None."""
    return [[lr, [_finite(loss) for loss in losses]] for lr, losses in sorted(curve.items())]


def curve_from_list(values: list[Any]) -> Curve:
    """Return the curve of plain values."""
    return {lr: tuple(math.inf if loss is None else loss for loss in losses) for lr, losses in values}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
