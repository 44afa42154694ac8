"""Layers as rules see them: every use of a weight, and the factors of a parameter from those of its uses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from evenstep.graph import Parameter
from evenstep.graph.operators import Recurrent, Weight
from evenstep.graph.roles import LayerPosition
from evenstep.init import Network
from evenstep.rules.rule import Factor, product


class Layer(NamedTuple):
    """Describe one use of a weight: where it stands, and the units it reads and writes.

    Kernel positions are left out of both, and both are those of one group.
    """

    position: LayerPosition
    units_in: float
    units_out: float
    groups: int


# Returns the factors of a layer's rate besides those of the whole network; the number is the index of its edge.
LayerFactors = Callable[[Layer, int], tuple[Factor, ...]]


def for_every_layer(network: Network, factors: LayerFactors) -> Mapping[str, tuple[Factor, ...]]:
    """Return the factors of every weight and bias that stands on a path, the smallest where it has several uses.

    Norms' gains and biases, and parameters that are left as they are, have none.
    """
    edges_of = network.roles.edges_of
    of_use = _Uses(network, factors)
    found: dict[str, tuple[Factor, ...]] = {}
    for parameter in network.live.parameters:
        if parameter.role not in ("weight", "bias"):
            continue
        edge_indices = edges_of.get(parameter.name, ())
        if len(edge_indices) == 1:
            answer = of_use(parameter, edge_indices[0])
        else:
            answer = min((of_use(parameter, edge_index) for edge_index in edge_indices), key=product, default=())
        if answer:
            found[parameter.name] = answer
    return found


class _Uses:
    """Answer with the factors of a parameter on one of its edges; layers of one kind are described once."""

    def __init__(self, network: Network, factors: LayerFactors) -> None:
        self.edges, self.positions = network.live.edges, network.roles.positions
        self.factors = factors
        self.layers: dict[tuple[int, LayerPosition], Layer] = {}

    def __call__(self, parameter: Parameter, edge_index: int) -> tuple[Factor, ...]:
        weight = self.edges[edge_index].weight
        if weight is None:
            return ()
        position = self.positions[edge_index]
        if isinstance(weight, Recurrent):  # its matrices differ in what they read
            return self.factors(_layer(position, weight, parameter), edge_index)
        key = (id(weight), position)
        layer = self.layers.get(key)
        if layer is None:
            layer = self.layers[key] = _layer(position, weight)
        return self.factors(layer, edge_index)


def layers_of(network: Network, position: LayerPosition) -> list[Layer]:
    """Return the layers of all weights that stand at a position and nowhere else, one for each weight."""
    graph, use = network.live, network.roles
    found = []
    for parameter in graph.parameters:
        edge_indices = use.edges_of.get(parameter.name, ())
        if parameter.role != "weight" or not edge_indices or use.position_of(parameter.name) != position:
            continue
        weight = graph.edges[edge_indices[0]].weight or Weight()  # none where it is added or multiplied before
        found.append(_layer(position, weight, parameter))
    return found


def _layer(position: LayerPosition, weight: Weight, parameter: Parameter | None = None) -> Layer:
    """Return one use of a weight; fans are the parameter's own where it is given, else those of the use."""
    if parameter is not None:
        weight = replace(weight, fan_in=parameter.fan_in, fan_out=parameter.fan_out)
    # What a layer at the input reads of patches is the task's size, all of it.
    reads = weight.fan_in if weight.patches and position == "input" else weight.units_in
    return Layer(position, float(reads), float(weight.units_out), weight.groups)


def position_in(network: Network, parameter: Parameter) -> LayerPosition:
    """Return where a weight stands; of a recurrent block at the input only what reads the input stands there."""
    position = network.roles.position_of(parameter.name)
    blocks = [network.live.edges[edge_index].weight for edge_index in network.roles.edges_of[parameter.name]]
    inside = any(isinstance(weight, Recurrent) and parameter.fan_in != weight.fan_in for weight in blocks)
    return "hidden" if inside else position


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))
