"""Ways to train a network of NAS-Bench-201, as values: how every parameter starts, and at what rate it goes on.

A protocol is a frozen dataclass with a learning rate; `treatment` says what it makes of one cell. Where the rate is
searched, `base` is the cell it is searched on, in the same whole network:

- `constant-tuned` and `weighted` take the space's own residual cell, two convolutions and a skip. It is what one would
  tune a recipe on without a theory, so that the constant rate is no straw man, and it lies in the middle of the space,
  so that the rule is not stretched from one end of it to the other: the chain of three convolutions is the deepest
  network of all, and a rate calibrated there would carry the rule's whole error to every other cell.
- `paper` takes the cell of three skips, for that has depth 1 as the authors count, their base.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from evenstep.errors import InputError, PlanError
from evenstep.graph import Graph
from evenstep.module import plan, trace
from evenstep.module.apply import draw_
from evenstep.planning import Plan
from evenstep.search.job import made
from evenstep_research.spaces import NasBench201
from evenstep_research.spaces.cells import cell_digits, cell_edges

RESIDUAL_CELL = "303101"  # '|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|skip_connect~2|'
SKIPS_CELL = "101001"
BENCHMARK_LR = 0.1


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Say what all networks share beside their cell: channels at first, cells a stage, classes, side of the images."""

    channels: int = 16
    cells: int = 5
    classes: int = 10
    side: int = 32

    def network(self, code: str, *, keep_dead: bool = False) -> NasBench201:
        """Return the network of a cell, its weights as torch draws them from the global random state."""
        return NasBench201(code, channels=self.channels, cells=self.cells, classes=self.classes, keep_dead=keep_dead)

    def parameters(self, code: str) -> int:
        """Return how many parameters the benchmark counts, those of dead edges included."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.network(code, keep_dead=True).parameters())


@lru_cache(maxsize=4096)
def graph_of(code: str, shape: NetworkShape) -> Graph:
    """Return the graph of the whole network of a cell, stem and reduction blocks included."""
    model = made(lambda: shape.network(code), 0)
    return trace(model, torch.zeros(2, 3, shape.side, shape.side))


@dataclass(frozen=True, slots=True)
class Pace:
    """Give one parameter its start and its rates.

    It starts from N(`mean`, `std`^2), or without a `std` as its module makes it, times `gain`. `lr` is its learning
    rate before the schedule, `decay` a factor of the training's weight decay, which the rate multiplies once more.
    """

    name: str
    lr: float
    std: float | None = None
    mean: float = 0.0
    gain: float = 1.0
    decay: float = 1.0


@dataclass(frozen=True)
class Treatment:
    """Hold the pace of every parameter of one network, in one order, and how they came about."""

    paces: tuple[Pace, ...]
    note: str

    def numbers(self) -> list[list[Any]]:
        """Return all that a training follows from, rounded so that other machines find the same."""
        return [
            [pace.name, *(None if number is None else f"{number:.9g}" for number in _values(pace))]
            for pace in self.paces
        ]

    def start(self, make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
        """Return a new network with weights drawn from a seed."""
        model = made(make_model, seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for pace, parameter in self.matched(model):
                if pace.std is None:
                    parameter.mul_(pace.gain)
                else:
                    draw_(parameter, pace.mean, pace.std, generator)
        return model

    def matched(self, model: nn.Module) -> list[tuple[Pace, nn.Parameter]]:
        """Pair every pace with its parameter."""
        parameters = dict(model.named_parameters())
        if parameters.keys() != {pace.name for pace in self.paces}:
            odd = next(iter(parameters.keys() ^ {pace.name for pace in self.paces}))
            raise PlanError(f"the treatment does not fit the network: '{odd}' is in one alone; treat this very network")
        return [(pace, parameters[pace.name]) for pace in self.paces]

    def param_groups(self, model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
        """Return ordinary optimiser groups, one for each pair of rate and decay."""
        groups: dict[tuple[float, float], dict[str, Any]] = {}
        for pace, parameter in self.matched(model):
            key = pace.lr, pace.decay
            groups.setdefault(key, {"params": [], "lr": pace.lr, "weight_decay": weight_decay * pace.decay})
            groups[key]["params"].append(parameter)
        return list(groups.values())


class TrainingProtocol(Protocol):
    """A way to train any cell, at a rate of its own; `base` is the cell that the rate is searched on, if it is."""

    @property
    def name(self) -> str:
        """The name the protocol is chosen by."""

    @property
    def lr(self) -> float:
        """The learning rate that all others follow from."""

    @property
    def base(self) -> str | None:
        """The cell that the rate is searched on; None where it is not searched."""

    def treatment(self, code: str, shape: NetworkShape) -> Treatment:
        """Return the start and the rates of every parameter of a cell's network."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Rated:
    """Hold a learning rate, refused where it is none."""

    lr: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.lr) or self.lr <= 0:
            raise InputError(f"the learning rate is {self.lr!r}; give a finite number above 0")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True)
class BenchmarkProtocol(Rated):
    """Train as the benchmark does: one rate for all, torch's own initialisation."""

    lr: float = BENCHMARK_LR
    base: str | None = None
    name: str = field(default="benchmark", init=False)

    def treatment(self, code: str, shape: NetworkShape) -> Treatment:
        """Return one rate for all, and every parameter as its module makes it."""
        return _untouched(code, shape, self.lr, f"one rate, {self.lr:g}, for all")


@dataclass(frozen=True)
class ConstantTunedProtocol(Rated):
    """Train as the benchmark does, but at the rate that is best for the base cell."""

    base: str | None = RESIDUAL_CELL
    name: str = field(default="constant-tuned", init=False)

    def treatment(self, code: str, shape: NetworkShape) -> Treatment:
        """Return one rate for all, and every parameter as its module makes it."""
        return _untouched(code, shape, self.lr, f"the base cell's rate, {self.lr:.4g}, for all")


@dataclass(frozen=True)
class PaperProtocol(Rated):
    """Train as the paper's authors do: one rate by the cell's paths, variances by in-degrees.

    The rate is that of depth 1 times (sum_p (L_p + 1)^3)^(-1/2) over the paths of the *cell*, L_p the convolutions on
    a path. Weights of the cell start with variance 2 / (d fan_in), d the in-degree of the vertex they read, where every
    edge that is not none counts; those of a reduction block that read its input count d = 2; the readout's deviation is
    2 / fan_in; biases start at 0.
    """

    base: str | None = SKIPS_CELL
    name: str = field(default="paper", init=False)

    def treatment(self, code: str, shape: NetworkShape) -> Treatment:
        """Return one rate for all, and weights by in-degrees."""
        total = sum(count * (depth + 1) ** 3 for depth, count in path_depths(code).items())
        lr = self.lr / math.sqrt(total)
        network = made(lambda: shape.network(code), 0)
        in_degrees = Counter(edge.target for edge in cell_edges(code))
        paces = [
            Pace(name, lr, std, mean)
            for name, p in network.named_parameters()
            for std, mean in [_degree_start(name, p, in_degrees)]
        ]
        return Treatment(tuple(paces), f"{self.lr:.4g} over the root of {total}, the cell's cubed depths")


@dataclass(frozen=True)
class WeightedProtocol(Rated):
    """Train by this package's plan of the whole network, from the rate of the base cell's network."""

    base: str | None = RESIDUAL_CELL
    name: str = field(default="weighted", init=False)

    def treatment(self, code: str, shape: NetworkShape) -> Treatment:
        """Return what `evenstep.plan` says."""
        return of_plan(self.plan(code, shape))

    def plan(self, code: str, shape: NetworkShape) -> Plan:
        """Return the plan of a cell's network, relative to the base cell's."""
        base = graph_of(cell_digits(self.base or RESIDUAL_CELL), shape)
        return plan(graph_of(cell_digits(code), shape), base=self.lr, base_graph=base, optimizer="momentum")


def of_plan(planned: Plan) -> Treatment:
    """Return the treatment that a plan with a base's rate asks for."""
    if planned.base is None:
        raise InputError("the plan holds factors only; plan with the base's learning rate, base=...")
    paces = [
        Pace(p.name, planned.base * p.lr_scale, None if p.kept else p.std, p.mean, decay=planned.decay_scale(p))
        for p in planned.parameters
    ]
    why = " x ".join(f"{factor.name} {factor.value:.4g} ({factor.why})" for factor in planned.factors)
    return Treatment(tuple(paces), f"{planned.base:.4g} x {why}")


def path_depths(code: str) -> Counter[int]:
    """Return how many paths of a cell have so many convolutions; there are four paths at most.

    >>> sorted(path_depths("313001").elements())
    [0, 2]
    """
    depths: dict[int, Counter[int]] = {vertex: Counter() for vertex in range(4)}
    depths[0][0] = 1
    for edge in sorted(cell_edges(code), key=lambda edge: edge.source):
        convolutions = int(edge.op.startswith("nor_conv"))
        for depth, count in depths[edge.source].items():
            depths[edge.target][depth + convolutions] += count
    if not depths[3]:
        raise InputError(f"no live path leads through the cell {cell_digits(code)}; leave it out")
    return depths[3]


def _untouched(code: str, shape: NetworkShape, lr: float, note: str) -> Treatment:
    with torch.device("meta"):
        names = [name for name, _ in shape.network(code).named_parameters()]
    return Treatment(tuple(Pace(name, lr) for name in names), note)


def _degree_start(name: str, parameter: Tensor, in_degrees: Counter[int]) -> tuple[float, float]:
    """Return the deviation and the mean that the authors' code starts a parameter from."""
    if parameter.dim() == 1:
        return 0.0, 1.0 if name.endswith("norm.weight") else 0.0
    fan_in = parameter[0].numel()
    if name == "readout.weight":
        return 2 / fan_in, 0.0
    degree = 1
    if ".edges." in name:
        source = int(name.split(".edges.")[1].split("_")[0])
        degree = max(in_degrees[source], 1)
    elif ".first." in name or ".shortcut." in name:
        degree = 2
    return math.sqrt(2 / (degree * fan_in)), 0.0


def _values(pace: Pace) -> tuple[float | None, ...]:
    return pace.lr, pace.std, pace.mean, pace.gain, pace.decay
