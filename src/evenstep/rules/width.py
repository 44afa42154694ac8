"""Width factors of single layers: every layer's output changes by the same order at any width.

With a mean-field readout that holds under SGD when a weight's rate grows like fan_out/fan_in, under Adam when it grows
like 1/fan_in (the spectral form of muP). Adam's factor is taken over the base's hidden width, so that a base's rate is
of the size that Adam's rates usually are. What an input layer reads is the task's size, and may be very little (three
colours, one row of an embedding): it counts as a part of the base's width at least, which bounds the layer's rate.
"""

from __future__ import annotations

import math

from evenstep.graph.roles import LayerPosition
from evenstep.init import Network
from evenstep.rules.layers import Layer, geometric_mean, layers_of
from evenstep.rules.rule import Factor, Optimizer, steps_by_rate

# Where a base's width is looked for, in this order.
POSITIONS: tuple[LayerPosition, ...] = ("hidden", "readout", "input")


def hidden_width(base: Network) -> float:
    """Return the geometric mean of what the base's hidden layers read, or its readouts where it has no hidden ones."""
    for position in POSITIONS:
        reads = [layer.units_in for layer in layers_of(base, position)]
        if reads:
            return geometric_mean(reads)
    return 1.0


def width_factor(layer: Layer, base_width: float, optimizer: Optimizer, *, floor: float) -> Factor:
    """Return the factor of a layer; one at the input counts as reading `floor` of the base's width at least.

    Under Adam a layer of groups counts as one that reads them all: no more than a full layer of its width would get.
    """
    at_input = layer.position == "input"
    counted = max(layer.units_in, floor * base_width) if at_input else layer.units_in
    if optimizer == "muon" and layer.position == "hidden":
        return _orthogonal(layer, base_width)
    if steps_by_rate(optimizer):
        counted *= 1 if at_input else layer.groups
        over, what = base_width, f"base's width {base_width:.4g}"
    else:
        over, what = layer.units_out, f"{layer.units_out:.4g} out"
    note = "" if counted == layer.units_in else f" counted as {counted:.4g}"
    return Factor("width", over / counted, f"{what} / {layer.units_in:.4g} in{note}")


def _orthogonal(layer: Layer, base_width: float) -> Factor:
    """Return the factor of a hidden matrix under Muon: its largest singular value is to be sqrt(out / in).

    Its step's is the rate times sqrt(max(in, out)).
    """
    value = math.sqrt(base_width * layer.units_out / layer.units_in / max(layer.units_in, layer.units_out))
    return Factor("width", value, f"{layer.units_out:.4g} out, {layer.units_in:.4g} in, base's width {base_width:.4g}")
