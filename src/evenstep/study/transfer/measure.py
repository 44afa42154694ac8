"""One architecture measured: its searched learning rate, and its loss at the rate each method picks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evenstep.rules import Plan, Rule, plan_graph
from evenstep.rules.paths import Paths
from evenstep.search import Engine, LRSearch, search_lr
from evenstep.search.grid import OCTAVE
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


@dataclass(frozen=True)
class Measured:
    """An architecture's truth: the losses over learning rates, the best rate, and what the methods chose.

    `true_lr` is the minimum of the parabola through the smallest mean losses, None where the search has no answer.
    """

    architecture: Architecture
    status: str
    true_lr: float | None
    maximal_lr: float
    curve: dict[float, tuple[float, ...]]
    choices: dict[str, Choice]

    @property
    def best_loss(self) -> float:
        """The smallest mean loss at any rate, chosen ones included."""
        return min(sum(seeds) / len(seeds) for seeds in self.curve.values())

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
            "maximal_lr": self.maximal_lr,
            "curve": [[lr, [_finite(loss) for loss in losses]] for lr, losses in sorted(self.curve.items())],
            "choices": {
                name: {"lr": choice.lr, "losses": [_finite(loss) for loss in choice.losses]}
                for name, choice in self.choices.items()
            },
        }


@dataclass(frozen=True)
class Bench:
    """Where measuring happens: data, engine, training, and the store that remembers."""

    data: Data
    engine: Engine
    training: Training
    store: Path | None = None

    def search(self, setting: Setting, architecture: Architecture, start: float) -> LRSearch:
        """Return the search of one architecture at one rate for all its parameters."""
        return self._run(setting, architecture, start=start)

    def losses(
        self, setting: Setting, architecture: Architecture, rates: Sequence[float]
    ) -> dict[float, tuple[float, ...]]:
        """Return the seeds' losses at given rates."""
        found = self._run(setting, architecture, grid=sorted(set(rates)))
        return dict(zip(found.grid, found.losses, strict=True))

    def _run(self, setting: Setting, architecture: Architecture, **asked: Any) -> LRSearch:
        return search_lr(
            maker(setting, architecture),
            self.data,
            plan=one_rate(setting, architecture),
            optimizer=setting.optimizer,
            batch_size=self.training.batch_size,
            epochs=self.training.epochs,
            seeds=self.training.seeds,
            schedule=self.training.schedule(len(self.data[0])),
            engine=self.engine,
            store=self.store,
            on_failure="return",
            **asked,
        )


def one_rate(setting: Setting, architecture: Architecture) -> Plan:
    """Return the plan that initialises a network as its setting says and trains it at one rate."""
    graph = graph_of(setting, architecture)
    return plan_graph(graph, rule="constant", init=setting.init, optimizer=setting.optimizer, base_graph=graph)


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
    bench: Bench, setting: Setting, architecture: Architecture, picked: Mapping[str, float], *, around: int = OCTAVE
) -> Measured:
    """Search an architecture, fill the quarter octaves around its best rate in, and train at every picked rate."""
    usual = 2.0**-9 if setting.optimizer == "adam" else 0.25
    start = lattice(picked.get("weighted", usual))
    search = bench.search(setting, architecture, start)
    curve = dict(zip(search.grid, search.losses, strict=True))
    means = {lr: sum(losses) / len(losses) for lr, losses in curve.items()}
    best = min(means, key=lambda lr: means[lr])
    rates = [best * 2 ** (step / OCTAVE) for step in range(-around, around + 1)] if search.status == "ok" else []
    wanted = [lr for lr in rates if not any(math.isclose(lr, known) for known in curve)]
    curve |= bench.losses(setting, architecture, [*wanted, *picked.values()])
    choices = {name: Choice(lr, curve[lr]) for name, lr in picked.items()}
    true_lr = (search.estimate or best) if search.status == "ok" else None
    return Measured(architecture, search.status, true_lr, search.best, curve, choices)


def lattice(rate: float) -> float:
    """Return the power of two nearest to a rate: all searches stand on one lattice.

    >>> lattice(0.3)
    0.25
    """
    return 2.0 ** round(math.log2(rate))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
