"""Width factors of single layers: every layer's output changes by the same order at any width.

With a mean-field readout this holds if a weight's rate is proportional to fan_out/fan_in under SGD, and to 1/fan_in
under Adam (the spectral form of muP). Adam's factor is multiplied by the base's hidden width, so that a base's rate has
the usual size of Adam's rates. The task sets how many units an input layer reads, which may be very few (three colours,
one row of an embedding): the layer counts as reading at least a fraction of the base's width, which bounds its rate.
"""

from __future__ import annotations

import math

from evenstep.graph.roles import LayerPosition
from evenstep.init import Network
from evenstep.rules.layers import Layer, geometric_mean, layers_of
from evenstep.rules.rule import Factor, Optimizer, steps_by_rate

# The layers that define a base's width: the first kind that it has.
POSITIONS: tuple[LayerPosition, ...] = ("hidden", "readout", "input")


def hidden_width(base: Network) -> float:
    """Return the geometric mean of the units that the base's hidden layers read, or its readouts if it has none."""
    for position in POSITIONS:
        reads = [layer.units_in for layer in layers_of(base, position)]
        if reads:
            return geometric_mean(reads)
    return 1.0


def width_factor(layer: Layer, base_width: float, optimizer: Optimizer, *, floor: float) -> Factor:
    """Return the factor of a layer; one at the input counts as reading at least `floor` of the base's width.

    Under Adam a grouped layer counts as reading all its groups: its rate is no larger than that of a full layer.
    """
    at_input = layer.position == "input"
    counted = max(layer.units_in, floor * base_width) if at_input else layer.units_in
    if optimizer == "muon" and layer.position == "hidden":
        return _orthogonal(layer, base_width)
    if steps_by_rate(optimizer):
        counted *= 1 if at_input else layer.groups
        numerator, words = base_width, f"base's width {base_width:.4g}"
    else:
        numerator, words = layer.units_out, f"{layer.units_out:.4g} units written"
    note = "" if counted == layer.units_in else f", counted as {counted:.4g}"
    return Factor("width", numerator / counted, f"{words} / {layer.units_in:.4g} units read{note}")


def _orthogonal(layer: Layer, base_width: float) -> Factor:
    """Return the factor of a hidden matrix under Muon, whose step should have largest singular value sqrt(out / in).

    That of its step is the rate times sqrt(max(in, out)).
    """
    value = math.sqrt(base_width * layer.units_out / layer.units_in / max(layer.units_in, layer.units_out))
    words = f"writes {layer.units_out:.4g} units, reads {layer.units_in:.4g}, base's width {base_width:.4g}"
    return Factor("width", value, words)
