"""Width factors of single layers: every layer's output changes by the same order at any width.

With a mean-field readout that holds under SGD when a weight's rate grows like fan_out/fan_in, under Adam when it grows
like 1/fan_in (the spectral form of muP). Adam's factor is taken over the base's hidden width, so that a base's rate is
of the size that Adam's rates usually are. What an input layer reads is the task's size, and may be very little (three
colours, one row of an embedding): it counts as an eighth of the base's width at least, which bounds the layer's rate.
"""

from __future__ import annotations

import math

from evenstep.graph import Parameter
from evenstep.rules.network import Factor, Network, Optimizer
from evenstep.rules.roles import Place

LEAST_READ = 1 / 8  # of the base's width, by an input layer
PLACES: tuple[Place, ...] = ("hidden", "readout", "input")  # where a base's width is looked for, in this order


def units_in(parameter: Parameter) -> float:
    """Return fan_in without kernel positions: the channels one output unit reads."""
    return parameter.fan_in / kernel_taps(parameter)


def kernel_taps(parameter: Parameter) -> float:
    """Return the positions of a kernel: 1 for a matrix."""
    return parameter.kernel_size**parameter.kernel_axes


def groups(parameter: Parameter) -> float:
    """Return the groups of a convolution, 1 for a matrix."""
    if not parameter.kernel_axes or not parameter.fan_in or not parameter.fan_out:
        return 1.0
    return math.prod(parameter.shape) * kernel_taps(parameter) / (parameter.fan_in * parameter.fan_out)


def hidden_width(base: Network) -> float:
    """Return the geometric mean of what the base's hidden layers read, or its readouts where it has no hidden ones."""
    for place in PLACES:
        found = [math.log(read) for read in _reads(base, place)]
        if found:
            return math.exp(sum(found) / len(found))
    return 1.0


def _reads(network: Network, place: Place) -> list[float]:
    """Return how many units every weight at a place reads."""
    weights = [p for p in network.graph.parameters if p.role == "weight" and p.name in network.roles.edges_of]
    return [units_in(p) for p in weights if network.roles.place_of(p.name) == place]


def width_factor(
    reads: float, writes: float, place: Place, base_width: float, optimizer: Optimizer, *, groups: float = 1.0
) -> Factor:
    """Return the factor of a layer that reads and writes so many units, in each of its groups.

    Under Adam a layer of groups counts as one that reads them all: no more than a full layer of its width would get.
    """
    counted = max(reads, LEAST_READ * base_width) if place == "input" else reads
    if optimizer == "adam":
        counted *= groups if place != "input" else 1.0
        note = "" if counted == reads else f" as {counted:.4g}"
        return Factor("width", base_width / counted, f"reads {reads:.4g}{note}, base's width {base_width:.4g}")
    note = "" if counted == reads else f" as {counted:.4g}"
    return Factor("width", writes / counted, f"{reads:.4g}{note} to {writes:.4g}")
