"""Width factors of single layers: every layer's output changes by the same order at any width.

With a mean-field readout that holds under SGD when a weight's rate grows like fan_out/fan_in, under Adam when it grows
like 1/fan_in (the spectral form of muP). Adam's factor is taken over the base's hidden width, so that a base's rate is
of the size that Adam's rates usually are.
"""

from __future__ import annotations

import math

from evenstep.graph import Parameter
from evenstep.rules.network import Factor, Network, Optimizer


def units_in(parameter: Parameter) -> float:
    """Return fan_in without kernel positions: the channels one output unit reads."""
    return parameter.fan_in / kernel_taps(parameter)


def kernel_taps(parameter: Parameter) -> float:
    """Return the positions of a kernel: 1 for a matrix."""
    return parameter.kernel_size**parameter.kernel_axes


def hidden_width(base: Network) -> float:
    """Return the geometric mean of what the base's hidden layers read, or its readouts where it has no hidden ones."""
    weights = [p for p in base.graph.parameters if p.role == "weight" and p.name in base.roles.edges_of]
    for place in ("hidden", "readout", "input"):
        found = [math.log(units_in(p)) for p in weights if base.roles.place_of(p.name) == place]
        if found:
            return math.exp(sum(found) / len(found))
    return 1.0


def width_factor(reads: float, writes: float, base_width: float, optimizer: Optimizer) -> Factor:
    """Return the factor of a layer that reads and writes so many units."""
    if optimizer == "adam":
        return Factor("width", base_width / reads, f"reads {reads:.4g}, base's width {base_width:.4g}")
    return Factor("width", writes / reads, f"{reads:.4g} to {writes:.4g}")
