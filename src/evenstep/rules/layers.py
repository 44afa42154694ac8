"""Layers as rules see them: each use of a weight, and a parameter's factors from those of its uses."""

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
    """Describe one use of a weight: its position, and the numbers of units it reads and writes.

    Both numbers are for one group and leave out kernel taps.
    """

    position: LayerPosition
    units_in: float
    units_out: float
    groups: int


# Returns a layer's own factors of the rate; the number is the index of its edge.
LayerFactors = Callable[[Layer, int], tuple[Factor, ...]]


def for_every_layer(network: Network, factors: LayerFactors) -> Mapping[str, tuple[Factor, ...]]:
    """Return the factors of every weight and bias on a path, the smallest if it has several uses.

    Gains and biases of norms, and parameters that are kept as they are, have none.
    """
    edges_of = network.roles.edges_of
    of_use = _Uses(network, factors)
    factors_of: dict[str, tuple[Factor, ...]] = {}
    for parameter in network.live.parameters:
        if parameter.role not in ("weight", "bias"):
            continue
        edge_indices = edges_of.get(parameter.name, ())
        if len(edge_indices) == 1:
            answer = of_use(parameter, edge_indices[0])
        else:
            answer = min((of_use(parameter, edge_index) for edge_index in edge_indices), key=product, default=())
        if answer:
            factors_of[parameter.name] = answer
    return factors_of


class _Uses:
    """Return the factors of a parameter on one of its edges; layers of one kind are described once."""

    def __init__(self, network: Network, factors: LayerFactors) -> None:
        self.edges, self.positions = network.live.edges, network.roles.positions
        self.factors = factors
        self.layers: dict[tuple[int, LayerPosition], Layer] = {}

    def __call__(self, parameter: Parameter, edge_index: int) -> tuple[Factor, ...]:
        weight = self.edges[edge_index].weight
        if weight is None:
            return ()
        position = self.positions[edge_index]
        if isinstance(weight, Recurrent):  # its matrices read different numbers of units
            return self.factors(_layer(position, weight, parameter), edge_index)
        key = (id(weight), position)
        layer = self.layers.get(key)
        if layer is None:
            layer = self.layers[key] = _layer(position, weight)
        return self.factors(layer, edge_index)


def layers_of(network: Network, position: LayerPosition) -> list[Layer]:
    """Return one layer for each weight whose position is this one."""
    graph, use = network.live, network.roles
    layers = []
    for parameter in graph.parameters:
        edge_indices = use.edges_of.get(parameter.name, ())
        if parameter.role != "weight" or not edge_indices or use.position_of(parameter.name) != position:
            continue
        weight = graph.edges[edge_indices[0]].weight or Weight()  # none if the weight is added or multiplied
        layers.append(_layer(position, weight, parameter))
    return layers


def _layer(position: LayerPosition, weight: Weight, parameter: Parameter | None = None) -> Layer:
    """Return one use of a weight; the fans are the parameter's if it is given, else those of the use."""
    if parameter is not None:
        weight = replace(weight, fan_in=parameter.fan_in, fan_out=parameter.fan_out)
    # A layer of patches at the input reads all entries of a patch: the task sets their number.
    reads = weight.fan_in if weight.patches and position == "input" else weight.units_in
    return Layer(position, float(reads), float(weight.units_out), weight.groups)


def position_in(network: Network, parameter: Parameter) -> LayerPosition:
    """Return a weight's position; in a recurrent block at the input only the matrix that reads the input is there."""
    position = network.roles.position_of(parameter.name)
    blocks = [network.live.edges[edge_index].weight for edge_index in network.roles.edges_of[parameter.name]]
    inside = any(isinstance(weight, Recurrent) and parameter.fan_in != weight.fan_in for weight in blocks)
    return "hidden" if inside else position


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))
