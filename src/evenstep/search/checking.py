"""Check coordinates: whether networks of different widths, depths or topologies take equal steps.

Over width it compares every layer; over depth or topology, what the readout reads. It compares the change by the first
optimiser step, to first order: later steps meet the loss's curvature, where all steps that are too large look alike.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from torch import nn
from torch.nn import functional

from evenstep.arguments import require_choice, require_function, require_whole
from evenstep.errors import EvenstepError, InputError
from evenstep.graph import Graph
from evenstep.planning import Plan
from evenstep.rules import OPTIMIZERS
from evenstep.search import plain_values
from evenstep.search.fields import Data, words
from evenstep.search.first_step import Changes, RecordedModules, measure, recorded_modules
from evenstep.search.job import Job, made
from evenstep.search.recipe import Loss, Recipe
from evenstep.search.tensors import as_tensors

Label = float | str
Compare = Literal["auto", "layers", "last"]
# Slopes that pass, over width and over depth: between those of plans and those of one rate for all layers. The tests
# measure both.
SLOPES: Mapping[str, float] = {"layers": 0.25, "last": 0.5}
OCTAVES = 1.0  # for networks with names in place of sizes
_REMEDY = "make it again: evenstep check file.py:function --json > check.json, or check.to_dict()"
_NOTHING = 1e-12  # a change below this is rounding


@dataclass(frozen=True)
class CheckedNetwork:
    """Hold the changes of one network's signals by name, as geometric means over seeds."""

    label: Label
    lr: float
    signals: Mapping[str, Changes]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "label": self.label,
            "lr": self.lr,
            "signals": {name: changes.to_dict() for name, changes in self.signals.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CheckedNetwork:
        """Read a network from `to_dict`."""
        with plain_values.reading("the checked network", remedy=_REMEDY):
            label = plain_values.mapping("a network", values)["label"]
            if not isinstance(label, str) and not _above_zero(label):
                raise ValueError(f"a label is {label!r}, not a name or a finite number above 0")
            signals = plain_values.mapping("signals", values["signals"])
            return cls(
                label,
                plain_values.positive("lr", values["lr"]),
                {name: Changes.from_dict(changes) for name, changes in signals.items()},
            )


@dataclass(frozen=True)
class Trend:
    """Compare one signal over the networks.

    `values` are its changes by the first step, to first order, and `later` those after the last step taken; if
    `relative`, they are divided by the signal's size at the start. `slope` is that of log2(value) over log2(label), or
    for named networks the octaves between the largest and the smallest value. If the first step moves the signal in no
    network (as with a readout of zeros), it is the slope of `later`.
    """

    signal: str
    relative: bool
    values: tuple[float, ...]
    later: tuple[float, ...]
    slope: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; what is not finite is None."""
        return {
            "signal": self.signal,
            "relative": self.relative,
            "values": [plain_values.finite_or_none(value) for value in self.values],
            "later": [plain_values.finite_or_none(value) for value in self.later],
            "slope": plain_values.finite_or_none(self.slope),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trend:
        """Read a trend from `to_dict`; a value or slope of None was not finite."""
        with plain_values.reading("the trend", remedy=_REMEDY):
            signal = plain_values.text("a trend's signal", plain_values.mapping("a trend", values)["signal"])
            if not isinstance(values["relative"], bool):
                raise ValueError(f"relative of '{signal}' is {values['relative']!r}, not true or false")
            first, later = (
                tuple(
                    plain_values.size_or_infinite(f"{name} of '{signal}'", value)
                    for value in plain_values.sequence(f"{name} of '{signal}'", values[name])
                )
                for name in ("values", "later")
            )
            slope = plain_values.number_or_infinite(f"the slope of '{signal}'", values["slope"])
            return cls(signal, values["relative"], first, later, slope)


@dataclass(frozen=True)
class Check:
    """Hold the measurements of a check, the trends that it judged, and the verdict.

    `compare` says which trends: those of all `layers`, or those of what the readouts read (`last`), with the outputs
    `shown` but not judged. The check fails if a trend's slope (for named networks: its octaves) exceeds `tolerance`, or
    if a change is not finite.
    """

    networks: tuple[CheckedNetwork, ...]
    trends: tuple[Trend, ...]
    shown: tuple[Trend, ...]
    compare: Literal["layers", "last"]
    tolerance: float
    steps: int
    optimizer: str

    @property
    def named(self) -> bool:
        """Whether the networks have names instead of sizes."""
        return any(isinstance(network.label, str) for network in self.networks)

    @property
    def worst(self) -> Trend:
        """The trend furthest from flat."""
        return max(self.trends, key=lambda trend: abs(trend.slope) if math.isfinite(trend.slope) else math.inf)

    @property
    def diverged(self) -> tuple[Label, ...]:
        """The networks with a change that is not finite."""
        return tuple(
            network.label
            for network in self.networks
            if not all(changes.finite for changes in network.signals.values())
        )

    @property
    def verdict(self) -> Literal["ok", "failed"]:
        """Say whether all judged trends are flat and all changes finite."""
        return "ok" if not self.diverged and abs(self.worst.slope) <= self.tolerance else "failed"

    @property
    def ok(self) -> bool:
        """Whether the check passed."""
        return self.verdict == "ok"

    def __str__(self) -> str:
        """Return the verdict and its reason in one line."""
        if self.diverged:
            return f"failed: changes are not finite at {', '.join(map(str, self.diverged))}; lower the learning rate"
        worst = self.worst
        what = "octaves between networks" if self.named else "slope"
        return (
            f"{self.verdict}: the worst of {len(self.trends)} is '{worst.signal}', {what} {worst.slope:+.2f}, "
            f"at most {self.tolerance:g} passes"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the verdict and its reason; what is not finite is None."""
        return {
            "verdict": self.verdict,
            "reason": str(self),
            "compare": self.compare,
            "tolerance": self.tolerance,
            "optimizer": self.optimizer,
            "steps": self.steps,
            "worst": self.worst.to_dict(),
            "trends": [trend.to_dict() for trend in self.trends],
            "shown": [trend.to_dict() for trend in self.shown],
            "networks": [network.to_dict() for network in self.networks],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Check:
        """Read a check from `to_dict`; the verdict and its reason are computed anew."""
        with plain_values.reading("the check", remedy=_REMEDY):
            return cls._from_values(plain_values.mapping("it", values))

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> Check:
        networks = tuple(map(CheckedNetwork.from_dict, plain_values.sequence("networks", values["networks"])))
        trends, shown = (
            tuple(map(Trend.from_dict, plain_values.sequence(name, values[name]))) for name in ("trends", "shown")
        )
        steps = plain_values.count("steps", values["steps"])
        labels = [network.label for network in networks]
        if len(set(labels)) < max(len(labels), 2) or len({isinstance(label, str) for label in labels}) > 1:
            raise ValueError(f"labels are {labels}; a check has at least two, all sizes or all names, without repeats")
        for network in networks:
            for name, changes in network.signals.items():
                if len(changes.changes) != steps:
                    raise ValueError(
                        f"'{name}' of {network.label!r} has {len(changes.changes)} changes in {steps} steps"
                    )
        if not trends:
            raise ValueError("there are no trends; a check judges at least one")
        for trend in (*trends, *shown):
            if {len(trend.values), len(trend.later)} != {len(networks)}:
                raise ValueError(
                    f"trend '{trend.signal}' has {len(trend.values)} and {len(trend.later)} values of {len(networks)} "
                    "networks"
                )
        return cls(
            networks,
            trends,
            shown,
            cast(Literal["layers", "last"], plain_values.one_of("compare", values["compare"], tuple(SLOPES))),
            plain_values.positive("tolerance", values["tolerance"]),
            steps,
            plain_values.one_of("optimizer", values["optimizer"], OPTIMIZERS),
        )


def check(
    networks: Mapping[Any, tuple[Callable[[], nn.Module], Plan]],
    data: Any,
    *,
    lr: float | None = None,
    steps: int = 3,
    batch_size: int = 64,
    seeds: int = 8,
    loss: Loss | None = None,
    compare: Compare = "auto",
    tolerance: float | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Check:
    """Measure how far the first steps move each layer of several networks, and say whether they move alike.

    - `networks`: maps a size (width, depth, ...) or a name to a function that makes a network, and its plan. All plans
      are for the same optimiser.
    - `lr`: the base's learning rate; the default is the plan's.
    - `compare`: "layers" judges every layer, "last" what the readouts read. "auto" judges every layer if the networks
      differ only in size, and what the readouts read if they differ in topology.
    - `tolerance`: the largest slope that passes; the default depends on what is compared.
    """
    recipe, rates = _recipe(networks, lr, batch_size, loss or functional.cross_entropy)
    for name, value in (("steps", steps), ("seeds", seeds)):
        require_whole(name, value)
    require_function("notify", notify, what="a function that takes a text")
    if tolerance is not None and not _above_zero(tolerance):
        raise InputError(f"tolerance is {tolerance!r}; give a finite number above 0, or leave it out")
    tensors, chosen_loss = as_tensors(data, loss, enough=steps * batch_size)
    recipe = replace(recipe, loss=chosen_loss)
    recorded = {label: recorded_modules(made(make, 0), plan) for label, (make, plan) in networks.items()}
    chosen = _compared(compare, {label: plan.graph for label, (_, plan) in networks.items()}, recorded)
    checked = []
    for label, (make, plan) in networks.items():
        notify(str(label))
        job = Job.of(make, plan, recipe, range(seeds))
        measured = [_measured(job, tensors, rates[label], steps, seed) for seed in range(seeds)]
        checked.append(CheckedNetwork(label, rates[label], {name: _over_seeds(measured, name) for name in measured[0]}))
    trends, shown = _trends(checked, chosen, list(recorded.values()))
    named = any(isinstance(label, str) for label in networks)
    allowed = tolerance if tolerance is not None else OCTAVES if named else SLOPES[chosen]
    return Check(tuple(checked), trends, shown, chosen, allowed, steps, recipe.optimizer)


def _recipe(
    networks: Mapping[Any, tuple[Callable[[], nn.Module], Plan]], lr: float | None, batch_size: int, loss: Loss
) -> tuple[Recipe, dict[Any, float]]:
    """Return how the networks train, and the base's rate for each."""
    if not isinstance(networks, Mapping) or len(networks) < 2:
        raise InputError("a check compares networks; give at least two, as {width: (make_model, plan), ...}")
    for label in networks:
        if not isinstance(label, str) and not _above_zero(label):
            raise InputError(f"a network has the label {label!r}; give its size, a number above 0, or a name")
    if len({isinstance(label, str) for label in networks}) > 1:
        raise InputError("some networks are labelled by size and some by name; label all of them the same way")
    rates = {}
    for label, given in networks.items():
        if not (isinstance(given, tuple) and len(given) == 2 and callable(given[0]) and isinstance(given[1], Plan)):
            raise InputError(f"network {label!r} is {type(given).__name__}; give (make_model, plan)")
        rate = given[1].base if lr is None else lr
        if rate is None:
            raise InputError(f"the plan of network {label!r} holds factors only; give the base's learning rate as lr")
        if not _above_zero(rate):
            raise InputError(f"lr is {rate!r}; give a finite number above 0")
        rates[label] = float(rate)
    optimizers = sorted({plan.optimizer_name for _, plan in networks.values()})
    if len(optimizers) > 1:
        raise InputError(f"the plans are for {' and '.join(optimizers)}; plan all networks for one optimizer")
    return Recipe(optimizer=optimizers[0], batch_size=batch_size, loss=loss), rates


def _above_zero(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _compared(
    compare: str, graphs: Mapping[Any, Graph], recorded: Mapping[Any, RecordedModules]
) -> Literal["layers", "last"]:
    require_choice("compare", compare, ("auto", "layers", "last"))
    for label, modules in recorded.items():
        if not modules.layers:
            raise InputError(
                f"network {label!r} has no module that owns a weight; hold weights in modules such as nn.Linear"
            )
    if compare == "last":
        return "last"
    layers = {tuple(modules.layers) for modules in recorded.values()}
    if compare == "layers" and len(layers) > 1:
        raise InputError("compare is 'layers' but the networks' layers have different names; choose last")
    alike = len(layers) == 1 and len({_topology(graph) for graph in graphs.values()}) == 1
    return "layers" if compare == "layers" or alike else "last"


def _topology(graph: Graph) -> tuple[tuple[str, ...], ...]:
    return tuple((e.source, e.target, *(o.op for o in e.operators), e.activation or "") for e in graph.edges)


def _measured(job: Job, data: Data, lr: float, steps: int, seed: int) -> dict[str, Changes]:
    try:
        changes = measure(job, data, lr=lr, steps=steps, seed=seed)
    except EvenstepError:
        raise
    except Exception as error:  # the user's forward and loss run here
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(
            f"{type(job.template).__name__} and the loss do not run on the data (inputs {words(data[0])}, "
            f"targets {words(data[1])}): {reason}"
        ) from error
    if not changes:
        raise InputError(
            f"no layer of {type(job.template).__name__} was called as a module, so there is nothing to record"
        )
    return changes


def _over_seeds(measured: list[dict[str, Changes]], name: str) -> Changes:
    seeds = [changes[name] for changes in measured]
    changes = tuple(_geometric_mean(step) for step in zip(*(seed.changes for seed in seeds), strict=True))
    return Changes(
        _geometric_mean([seed.start for seed in seeds]), _geometric_mean([seed.predicted for seed in seeds]), changes
    )


def _geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, infinite if a value is not finite.

    Slopes are taken in logarithms too, and one large seed cannot decide the mean.
    """
    if 0.0 in values:
        return 0.0
    if not all(map(math.isfinite, values)):
        return math.inf
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _trends(
    networks: list[CheckedNetwork], compare: Literal["layers", "last"], recorded: list[RecordedModules]
) -> tuple[tuple[Trend, ...], tuple[Trend, ...]]:
    """Return the trends to judge (of every layer, or of what readouts read) and those only to show."""
    labels = [network.label for network in networks]

    def over(rows: Iterable[tuple[str, ...]], *, outputs: bool) -> tuple[Trend, ...]:
        """Return the trends of signals, given by their names in each network, without those that do not move."""
        trends = []
        for names in rows:
            signals = [network.signals.get(name) for network, name in zip(networks, names, strict=True)]
            row = [signal for signal in signals if signal is not None]
            if len(row) == len(networks):
                trends.append(_trend(_common(names, output=outputs), row, labels, output=outputs))
        return tuple(trend for trend in trends if any(trend.values) or any(trend.later))

    outputs = over(zip(*(modules.readouts for modules in recorded), strict=False), outputs=True)
    if compare == "layers":
        hidden = [name for name in networks[0].signals if name not in recorded[0].readouts]
        judged = over(((name,) * len(networks) for name in hidden), outputs=False) + outputs
    else:
        judged = over(zip(*(modules.last for modules in recorded), strict=False), outputs=False)
    if not judged:
        raise InputError("no signal moves in the first steps; check that the loss depends on the weights")
    return judged, () if compare == "layers" else outputs


def _common(names: tuple[str, ...], *, output: bool) -> str:
    """Return one name for a signal that may have a different name in each network."""
    if len(set(names)) == 1:
        return names[0]
    return "output" if output else "last hidden vertex"


def _trend(name: str, row: list[Changes], labels: list[Label], *, output: bool) -> Trend:
    # The readout makes outputs start near zero, nearer in wider networks, so they cannot be measured by their size.
    relative = not output and min(changes.start for changes in row) > _NOTHING
    sizes = [changes.start if relative else 1.0 for changes in row]
    values = tuple(_moved(changes.predicted / size) for changes, size in zip(row, sizes, strict=True))
    later = tuple(_moved(changes.changes[-1] / size) for changes, size in zip(row, sizes, strict=True))
    return Trend(name, relative, values, later, _slope(values if any(values) else later, labels))


def _moved(change: float) -> float:
    """Return a change, as 0 if it is only rounding and infinite if it is not finite."""
    if not math.isfinite(change):
        return math.inf
    return 0.0 if change <= _NOTHING else change


def _slope(values: tuple[float, ...], labels: list[Label]) -> float:
    """Return the log-log slope, or without sizes the octaves from smallest to largest; infinite if there is none."""
    if not any(values):
        return 0.0
    if not all(0 < value < math.inf for value in values):
        return math.inf
    heights = [math.log2(value) for value in values]
    sizes = [math.log2(label) for label in labels if not isinstance(label, str)]
    if not sizes:
        return max(heights) - min(heights)
    middle = sum(sizes) / len(sizes)
    return sum((x - middle) * y for x, y in zip(sizes, heights, strict=True)) / sum((x - middle) ** 2 for x in sizes)
