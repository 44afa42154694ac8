"""Even steps: every parameter moves by the same fraction of its own size.

Adam's step is its rate, so a weight's rate is proportional to its standard deviation. SGD's step is the rate times the
gradient, whose root mean square is about (fan_in var(W) n_out)^(-1/2) if the signal keeps its size, so the rate is
proportional to fan_in var(W) sqrt(n_out / n_in), without kernel taps. Both are relative to a hidden weight with
fan_in var(W) = 1 that writes as many units as it reads (under Adam: that has the network's mean width). Such a weight
trains at the network's rate, and so do the gains of norms. The rate of a term added to a signal, such as a bias or a
table of positions, is proportional to the signal's size, under SGD to its square; a table added to a signal trains by
its own size if that is larger.

Lion's step is the sign of its momentum: every entry moves by the rate, as under Adam, so its factors are Adam's. Muon's
step on a matrix of r rows and c columns is orthogonal: it has min(r, c) singular values of one, so its squares add up
to min(r, c) and its root mean square is sqrt(min(r, c) / (r c)) = 1 / sqrt(max(r, c)). Times 0.2 sqrt(max(r, c)), as in
Moonlight (Liu et al. 2025), this is 0.2 of the rate, the measured size of Adam's step. So a matrix's rate is
proportional to its standard deviation as well, whatever its shape, and one base rate serves both.

A weight that starts near zero will grow. So readouts count as large as `conserve` draws them, however they start, and
weights that are kept count at least as large as torch draws linear layers.

Between networks of different width a layer is compared with *the same layer* of the base, as in muP: under Adam rates
fall with width, and layers at the input and readouts keep the ratio to hidden layers that they have at the base's
width. The power of width is one, although standard deviations fall with its root: Adam's step is aligned with the
weight's input and adds up over all its entries. Muon's step is not. All its singular values are 0.2 sqrt(max(r, c))
times the rate, so the change of the output grows with the root of width, and the rates of its matrices fall with the
root, which is the even step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from evenstep.graph import Parameter
from evenstep.graph.matrices import hidden_matrices
from evenstep.graph.model import COMPUTED_FROM, EMBEDDING
from evenstep.graph.operators import Gate, Offset, Recurrent, moments_of
from evenstep.graph.roles import LayerPosition
from evenstep.init import Conserve, Network
from evenstep.rules.layers import geometric_mean, position_in
from evenstep.rules.rule import Factor, Optimizer, product, steps_by_rate
from evenstep.rules.width import POSITIONS, hidden_width


class Use(NamedTuple):
    """Hold the sizes of one use of a weight: entries that a unit reads, with taps, and units read and written."""

    fan_in: float
    units_in: float
    units_out: float

    def unit_step(self, optimizer: Optimizer) -> float:
        """Return the rate of a weight with fan_in var(W) = 1."""
        return self.fan_in**-0.5 if steps_by_rate(optimizer) else math.sqrt(self.units_out / self.units_in)

    def step(self, std: float, optimizer: Optimizer) -> float:
        """Return the rate at which a weight of this standard deviation takes even steps."""
        return std if steps_by_rate(optimizer) else self.fan_in * std**2 * self.unit_step(optimizer)


def even_steps(network: Network, base: Network, optimizer: Optimizer) -> Mapping[str, tuple[Factor, ...]]:
    """Return each parameter's factors: of a weight by size and width, of a bias by the signal it joins."""
    reference = network.init if isinstance(network.init, Conserve) else Conserve().relative_to(base.readout_fan_in)
    std, usual, gates = _sizes(network, reference), _usual(network, optimizer), _names_of_gates(network)
    wider = hidden_width(network) / hidden_width(base)
    matrices = hidden_matrices(network.live, network.roles) if optimizer == "muon" else {}
    factors: dict[str, tuple[Factor, ...]] = {}
    pending: list[Parameter] = []
    for parameter in network.live.parameters:
        name = parameter.name
        if name in std:
            step = min(use.step(std[name], optimizer) for use in _uses(network, parameter))
            if step > 0:
                factors[name] = (
                    _size_factor(step, usual),
                    *_width_factors(wider, position_in(network, parameter), optimizer, orthogonal=name in matrices),
                )
        elif parameter.note == COMPUTED_FROM:
            pending.append(parameter)
        elif parameter.role == "gain" and (gain := network.branch_scales.get(name, 1.0)) != 1.0:
            value = gain if steps_by_rate(optimizer) else gain**2
            factors[name] = (Factor("size", value, f"a gain that starts at {gain:.3g}"),)
        elif parameter.role in ("bias", "unscaled") and name not in gates:
            sizes = list(_added_to(network, parameter, reference.readout_second_moment))
            own = network.tables.get(name, parameter.measured or 0.0)
            if sizes and (factor := _added_factor(parameter, own, min(sizes), usual, optimizer)).value != 1.0:
                factors[name] = (factor,)
    for parameter in pending:  # parameters that a weight is computed from train at the weight's rate
        edges = (network.live.edges[edge_index] for edge_index in network.roles.edges_of.get(parameter.name, ()))
        weights = [name for edge in edges for name in edge.parameters if name in std and name in factors]
        if weights:
            factors[parameter.name] = min((factors[name] for name in weights), key=product)
    return factors


def _sizes(network: Network, reference: Conserve) -> Mapping[str, float]:
    """Return the standard deviations that weights count with: those drawn, but for weights that are going to grow."""
    sizes = dict(network.weights.std)
    if network.init is reference:
        return sizes
    if network.init.keeps:
        for parameter in network.live.parameters:
            if parameter.name in sizes:
                least = math.sqrt(reference.readout_second_moment / parameter.fan_in)
                sizes[parameter.name] = max(sizes[parameter.name], least)
    for head in network.roles.heads:
        edge = None if head.edge_index is None else network.live.edges[head.edge_index]
        if edge is not None and edge.weight is not None:
            fan_in = edge.weight.fan_in
            std = math.sqrt(reference.readout_size(fan_in) / reference.variance_left(head) / fan_in)
            sizes |= {name: std for name in edge.parameters if name in sizes}
    return sizes


def _size_factor(step: float, usual: float) -> Factor:
    return Factor("size", step / usual, f"its size {step:.3g} / a typical hidden weight's {usual:.3g}")


def _width_factors(
    wider: float, position: LayerPosition, optimizer: Optimizer, *, orthogonal: bool
) -> tuple[Factor, ...]:
    """Return the factor of a network that is wider than its base; none at the base's width.

    The steps of an `orthogonal` matrix are equally large in all directions, so that they grow only with the root of
    width.
    """
    power = (-1.0 if steps_by_rate(optimizer) else 0.0) + (0.5 if orthogonal or position != "hidden" else 0.0)
    if math.isclose(wider, 1.0) or not power:
        return ()
    return (Factor("width", math.pow(wider, power), f"{wider:.3g} times as wide as the base"),)


def _added_factor(parameter: Parameter, std: float, second_moment: float, usual: float, optimizer: Optimizer) -> Factor:
    by_signal = math.sqrt(second_moment) if steps_by_rate(optimizer) else second_moment
    is_table = parameter.role == "unscaled" and sum(size > 1 for size in parameter.shape) > 1
    by_table = Use(1, 1, parameter.shape[-1] if is_table else 1).step(std, optimizer) / usual
    if is_table and by_table > by_signal:
        return Factor("size", by_table, f"a table of standard deviation {std:.3g}")
    return Factor("size", by_signal, f"added to a signal of second moment {second_moment:.3g}")


def _names_of_gates(network: Network) -> set[str]:
    """Return the parameters that multiply a signal."""
    gates = (edge for edge in network.graph.edges if any(isinstance(operator, Gate) for operator in edge.operators))
    return {name for edge in gates for name in edge.parameters}


def _usual(network: Network, optimizer: Optimizer) -> float:
    """Return the size that factors are relative to: that of a hidden weight with fan_in var(W) = 1.

    Under SGD it reads as many units as it writes; under Adam it is the geometric mean over hidden weights, or over
    readouts if there are none.
    """
    if not steps_by_rate(optimizer):
        return 1.0
    for position in POSITIONS:
        steps = [
            use.unit_step(optimizer)
            for parameter in network.live.parameters
            if parameter.name in network.weights.std and position_in(network, parameter) == position
            for use in _uses(network, parameter)
        ]
        if steps:
            return geometric_mean(steps)
    return 1.0


def _uses(network: Network, parameter: Parameter) -> Iterator[Use]:
    """Yield the uses of a parameter as a weight."""
    for edge_index in network.roles.edges_of[parameter.name]:
        weight = network.live.edges[edge_index].weight
        if weight is None:
            continue
        if isinstance(weight, Recurrent):  # its matrices read different numbers of units
            yield Use(parameter.fan_in, parameter.fan_in, parameter.fan_out)
            continue
        fan_in, units_in = float(weight.fan_in), weight.units_in
        if network.roles.positions[edge_index] == "input":  # the task sets how much it reads, taps included
            looked_up = fan_in == 1 and parameter.note == EMBEDDING
            fan_in = units_in = _rows_met(parameter, weight.fan_out) if looked_up else fan_in
        yield Use(fan_in, units_in, weight.units_out * weight.groups)


def _rows_met(parameter: Parameter, columns: int) -> float:
    """Return how many rows of a table share its uses, by Zipf's law: the r-th most frequent occurs 1/r as often."""
    frequencies = 1.0 / np.arange(1, math.prod(parameter.shape) // columns + 1)
    return float(frequencies.sum() ** 2 / (frequencies**2).sum())


def _added_to(network: Network, parameter: Parameter, output: float) -> Iterator[float]:
    """Yield the second moment of the signal that a parameter is added to, for each of its uses; `output` for outputs.

    Outputs are going to grow: the wider the network, the smaller they start. So are signals after a closed gate, which
    counts as open, and the signals of a network that is kept as it is, which count as one.
    """
    opened = network.opened
    signal = opened.signal
    for edge_index in opened.roles.edges_of.get(parameter.name, ()):
        edge = opened.live.edges[edge_index]
        if opened.roles.positions.get(edge_index) == "readout":
            size = output
        elif opened.init.keeps:
            size = 1.0
        elif edge.weight is not None:
            size = signal.weight_sizes[edge_index] * signal.reads[edge_index]
        else:
            others = [operator for operator in edge.operators if not isinstance(operator, Offset)]
            size = moments_of(others, signal.vertices[edge.source].moments).second_moment
        if size > 0:
            yield size
