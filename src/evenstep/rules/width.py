"""Width factors of single layers, relative to the layers of the base network.

With a mean-field readout, SGD changes every layer's output by the same order at any width when a weight's rate
grows like fan_out/fan_in, Adam when it grows like 1/fan_in. The sizes of data and classes are those of the task and
drop out of the ratio to the base, whose layers all train at the base's one rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.graph import Parameter
from evenstep.rules.network import Factor, Network, Optimizer
from evenstep.rules.roles import Place


@dataclass(frozen=True, slots=True)
class BaseShape:
    """Hold the base's widths: what its input layers write, its hidden layers read, its readouts read."""

    input_out: float
    hidden_in: float
    readout_in: float


def units_in(parameter: Parameter) -> float:
    """Return fan_in without kernel positions: the channels one output unit reads."""
    return parameter.fan_in / kernel_taps(parameter)


def units_out(parameter: Parameter) -> float:
    """Return fan_out without kernel positions."""
    return parameter.fan_out / kernel_taps(parameter)


def kernel_taps(parameter: Parameter) -> float:
    """Return the positions of a kernel: 1 for a matrix."""
    return parameter.kernel_size**parameter.kernel_axes


def base_shape(base: Network) -> BaseShape:
    """Return the geometric means of the base's widths by place; places it lacks borrow from those it has."""
    found: dict[Place, list[Parameter]] = {"input": [], "hidden": [], "readout": []}
    for parameter in base.graph.parameters:
        if parameter.role == "weight" and parameter.name in base.roles.edges_of:
            found[base.roles.place_of(parameter.name)].append(parameter)
    written = _mean([units_out(p) for p in found["input"]])
    hidden = _mean([units_in(p) for p in found["hidden"]])
    read = _mean([units_in(p) for p in found["readout"]])
    fallback = hidden or read or written or 1.0
    return BaseShape(written or fallback, hidden or fallback, read or fallback)


def width_factor(reads: float, writes: float, place: Place, shape: BaseShape, optimizer: Optimizer) -> Factor:
    """Return the factor of a layer that reads and writes so many units: SGD fan_out/fan_in, Adam 1/fan_in.

    Each is taken over the base's layer at the same place.
    """
    if place == "readout":
        return Factor("width", shape.readout_in / reads, f"readout of {reads:.4g}, base's {shape.readout_in:.4g}")
    if place == "input":
        if optimizer == "adam":
            return Factor("width", 1.0, "input layer under adam")
        return Factor("width", writes / shape.input_out, f"input into {writes:.4g}, base's {shape.input_out:.4g}")
    if optimizer == "adam":
        return Factor("width", shape.hidden_in / reads, f"hidden from {reads:.4g}, base's {shape.hidden_in:.4g}")
    return Factor("width", writes / reads, f"hidden {reads:.4g} to {writes:.4g}")


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0
