"""Even steps: every parameter moves by the same part of its own size.

Adam's step is its rate, so a weight's rate goes with its standard deviation. SGD's step is the rate times the gradient,
whose root mean square is about (fan_in var(W) n_out)^(-1/2) where the signal keeps its size: the rate goes with
fan_in var(W) sqrt(n_out / n_in), kernel taps left out. Both are relative to a hidden weight of fan_in var(W) = 1, which
writes as many units as it reads, or under Adam has the network's mean width: it goes at the network's rate; so do the
gains of norms. What is added to a signal, a bias or a table of positions, goes with that signal's size, or under SGD
with its square; a table with its own where that is more.

Lion's step is the sign of its momentum: one rate per entry, as large as Adam's, so its rates go as Adam's. Muon's step
on a matrix of r rows and c columns is orthogonal: min(r, c) singular values of one, so its squares add up to min(r, c)
and its root mean square is sqrt(min(r, c) / (r c)) = 1 / sqrt(max(r, c)). We take it times 0.2 sqrt(max(r, c)), as
Moonlight does (Liu et al. 2025), and it is 0.2 of its rate, as Adam's is measured to be: a matrix then goes with its
standard deviation as well, whatever its shape, and one base rate serves both.

A weight that starts near zero has its size to come. So readouts count as large as `conserve` draws them, however they
start, and weights that are kept as they are count as large as torch draws linear layers at least.

Between networks of different width a layer is compared with *the same layer* of the base, as muP has it: under Adam
rates fall with width, and what stands at the input or is a readout keeps the ratio to hidden layers that it has at the
base's width. The power of width is one, though deviations fall with its root: Adam's step lies along what the weight
reads, and adds up over all its entries. Muon's does not. Its singular values all are 0.2 sqrt(max(r, c)) times the
rate, so what it makes of any input grows with the root of width: rates of its matrices fall with the root, which is the
even step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from evenstep.graph import Parameter
from evenstep.graph.matrices import hidden_matrices
from evenstep.graph.model import COMPUTED_FROM, EMBEDDING
from evenstep.graph.operators import Average, Gate, Offset, Recurrent, moments_of
from evenstep.graph.roles import LayerPosition
from evenstep.init import Conserve, Network
from evenstep.rules.layers import geometric_mean, position_in
from evenstep.rules.rule import Factor, Optimizer, product, steps_by_rate
from evenstep.rules.width import POSITIONS, hidden_width


class Use(NamedTuple):
    """Hold what counts of one use of a weight: what a unit reads, taps included, and units read and written."""

    fan_in: float
    units_in: float
    units_out: float

    def unit_step(self, optimizer: Optimizer) -> float:
        """Return the rate that a weight of fan_in var(W) = 1 would have."""
        return self.fan_in**-0.5 if steps_by_rate(optimizer) else math.sqrt(self.units_out / self.units_in)

    def step(self, std: float, optimizer: Optimizer) -> float:
        """Return the rate at which a weight of a standard deviation moves by an even part of it."""
        return std if steps_by_rate(optimizer) else self.fan_in * std**2 * self.unit_step(optimizer)


def even_steps(
    network: Network, base: Network, optimizer: Optimizer, *, pooled_variance_floor: float
) -> Mapping[str, tuple[Factor, ...]]:
    """Return the factors of rates: a weight's size, width and what averages leave it, or what a bias is added to."""
    reference = network.init if isinstance(network.init, Conserve) else Conserve().relative_to(base.readout_fan_in)
    std, usual, gates = _sizes(network, reference), _usual(network, optimizer), _names_of_gates(network)
    averages = _averages(network, optimizer, pooled_variance_floor)
    wider = hidden_width(network) / hidden_width(base)
    matrices = hidden_matrices(network.live, network.roles) if optimizer == "muon" else {}
    found: dict[str, tuple[Factor, ...]] = {}
    pending: list[Parameter] = []
    for parameter in network.live.parameters:
        name = parameter.name
        if name in std:
            step = min(use.step(std[name], optimizer) for use in _uses(network, parameter))
            if step > 0:
                found[name] = (
                    _size_factor(step, usual),
                    *_width_factors(wider, position_in(network, parameter), optimizer, orthogonal=name in matrices),
                    *averages.get(name, ()),
                )
        elif parameter.note == COMPUTED_FROM:
            pending.append(parameter)
        elif parameter.role in ("bias", "unscaled") and name not in gates:
            sizes = list(_added_to(network, parameter, reference.readout_second_moment))
            own = network.tables.get(name, parameter.measured or 0.0)
            if sizes and (factor := _added_factor(parameter, own, min(sizes), usual, optimizer)).value != 1.0:
                found[name] = (factor,)
    for parameter in pending:  # what a weight is computed from goes as the weight would
        edges = (network.live.edges[edge_index] for edge_index in network.roles.edges_of.get(parameter.name, ()))
        weights = [name for edge in edges for name in edge.parameters if name in std and name in found]
        if weights:
            found[parameter.name] = min((found[name] for name in weights), key=product)
    return found


def _sizes(network: Network, reference: Conserve) -> Mapping[str, float]:
    """Return the standard deviations that weights count as having: `conserve`'s own, else with the sizes to come."""
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
            std = math.sqrt(reference.readout_size(fan_in) / fan_in)
            sizes |= {name: std for name in edge.parameters if name in sizes}
    return sizes


def _size_factor(step: float, usual: float) -> Factor:
    return Factor("size", step / usual, f"{step:.3g} / usual {usual:.3g}")


def _width_factors(
    wider: float, position: LayerPosition, optimizer: Optimizer, *, orthogonal: bool
) -> tuple[Factor, ...]:
    """Return the factor of a network that is wider than its base, none at the base's width.

    The steps of an `orthogonal` matrix go on in all directions alike: they grow with the root of width alone.
    """
    power = (-1.0 if steps_by_rate(optimizer) else 0.0) + (0.5 if orthogonal or position != "hidden" else 0.0)
    if math.isclose(wider, 1.0) or not power:
        return ()
    return (Factor("width", math.pow(wider, power), f"{wider:.3g} times the base's"),)


def _averages(network: Network, optimizer: Optimizer, floor: float) -> Mapping[str, tuple[Factor, ...]]:
    """Return the factors of readouts that read averages over positions, of which little varies.

    What examples have in common says nothing: a readout tells them apart by what varies.
    """
    found: dict[str, tuple[Factor, ...]] = {}
    for head in network.roles.heads:
        if head.edge_index is None:
            continue
        operators = (operator for edge in head.edges_to_readout for operator in edge.operators)
        left = math.prod(operator.variance_kept for operator in operators if isinstance(operator, Average))
        if left < 1:
            left = max(left, floor)
            factor = Factor("average", left ** (-0.5 if steps_by_rate(optimizer) else -1.0), f"leaves {left:.4g}")
            found |= dict.fromkeys(network.live.edges[head.edge_index].parameters, (factor,))
    return found


def _added_factor(parameter: Parameter, std: float, second_moment: float, usual: float, optimizer: Optimizer) -> Factor:
    by_signal = math.sqrt(second_moment) if steps_by_rate(optimizer) else second_moment
    is_table = parameter.role == "unscaled" and sum(size > 1 for size in parameter.shape) > 1
    own = Use(1, 1, parameter.shape[-1] if is_table else 1).step(std, optimizer) / usual
    if is_table and own > by_signal:
        return Factor("size", own, f"a table of std {std:.3g}")
    return Factor("size", by_signal, f"added to second moment {second_moment:.3g}")


def _names_of_gates(network: Network) -> set[str]:
    """Return the parameters that multiply a signal."""
    gates = (edge for edge in network.graph.edges if any(isinstance(operator, Gate) for operator in edge.operators))
    return {name for edge in gates for name in edge.parameters}


def _usual(network: Network, optimizer: Optimizer) -> float:
    """Return what a hidden weight of unit size would have: under SGD one that reads as many units as it writes.

    Under Adam the geometric mean of the hidden ones, or of readouts where there are none.
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
    """Yield the uses of a weight as one."""
    for edge_index in network.roles.edges_of[parameter.name]:
        weight = network.live.edges[edge_index].weight
        if weight is None:
            continue
        if isinstance(weight, Recurrent):  # its matrices differ in what they read
            yield Use(parameter.fan_in, parameter.fan_in, parameter.fan_out)
            continue
        fan_in, units_in = float(weight.fan_in), weight.units_in
        if network.roles.positions[edge_index] == "input":  # what it reads is the task's size, all of it
            looked_up = fan_in == 1 and parameter.note == EMBEDDING
            fan_in = units_in = _rows_met(parameter, weight.fan_out) if looked_up else fan_in
        yield Use(fan_in, units_in, weight.units_out * weight.groups)


def _rows_met(parameter: Parameter, columns: int) -> float:
    """Return how many rows of a table share its uses, by Zipf's law: the r-th most frequent is met 1/r as often."""
    often = 1.0 / np.arange(1, math.prod(parameter.shape) // columns + 1)
    return float(often.sum() ** 2 / (often**2).sum())


def _added_to(network: Network, parameter: Parameter, output: float) -> Iterator[float]:
    """Yield the second moment of what a parameter is added to, for each of its uses; `output` where that is an output.

    Outputs, too, have their size to come: at the start they are smaller the wider the network is. So have signals after
    a gate that is closed, and of a network that is kept as it is: these count as one.
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
