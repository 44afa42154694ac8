"""How large the weights start: `conserve`, `degree` (the paper's `eq:dag_init`), `he`, `keep`.

Each is a way of sizing the weights of a junction by fan_in * var(W). Readouts are mean-field in all but `keep`:
standard deviation 1/fan_in, so that the output starts near zero at any width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from evenstep.errors import InputError
from evenstep.graph import Edge, Graph
from evenstep.rules import activations
from evenstep.rules.roles import Head, Roles, roles
from evenstep.rules.signal import Junction, Signal, behind_weight, propagate

Init = Literal["conserve", "degree", "he", "keep"]
INITS: tuple[str, ...] = get_args(Init)
# What an activation behind a weight may read. ReLU needs 2, SiLU 2.4; at the upper end bounded ones are saturated.
_VARIANCES = (1e-12, 8.0)
# For each weight edge of a junction: fan_in * var(W), and why.
Sized = tuple[list[float], list[str]]


@dataclass(frozen=True)
class Initialisation:
    """Hold the standard deviation of every weight, why, and the signal that follows from them."""

    std: Mapping[str, float]
    why: Mapping[str, str]
    signal: Signal


def initialise(graph: Graph, init: Init, *, use: Roles | None = None) -> Initialisation:
    """Return the weights' standard deviations and the resulting signal of a live graph.

    A weight used on several edges gets the smallest deviation any of its uses asks for, and the signal is then
    propagated once more with what it got. Frozen weights keep the size they were traced with.
    """
    if init not in INITS:
        raise InputError(f"init is '{init}'; choose one of {', '.join(INITS)}")
    use = use or roles(graph)
    sizing = _Sizing(graph, use, init)
    ends = [head.vertex for head in use.heads]
    signal = propagate(graph, sizing, ends)
    std: dict[str, float] = {}
    why: dict[str, str] = {}
    torn = False
    gains, edges = signal.weight_gains, graph.edges
    for parameter in graph.parameters:
        if parameter.role != "weight":
            continue
        name = parameter.name
        # A weight may also be added or multiplied somewhere: no matter for its size.
        positions = [position for position in use.edges_of.get(name, ()) if position in gains]
        for position in positions:
            edge = edges[position]
            wanted = math.sqrt(gains[position] / (parameter.fan_in if edge.op == "recurrent" else edge.fan_in))
            if wanted < std.get(name, math.inf):
                torn = torn or not math.isclose(wanted, std.get(name, wanted))
                std[name], why[name] = wanted, sizing.why[position]
            else:
                torn = torn or not math.isclose(wanted, std[name])
        if len(positions) > 1:
            why[name] += f" (tied: the smallest of {len(positions)} uses)"
    if torn:
        signal = propagate(graph, lambda junction: [_given(edge, std, use) for edge in junction.weights], ends)
    return Initialisation(std, why, signal)


def _given(edge: Edge, std: Mapping[str, float], use: Roles) -> float:
    """Return fan_in * var(W) of an edge from the deviations already settled."""
    name = next(name for name in edge.parameters if use.parameters[name].role == "weight")
    return edge.fan_in * std[name] ** 2


class _Sizing:
    """Size junctions by one of the initialisations, noting for every edge (by position) why."""

    def __init__(self, graph: Graph, use: Roles, init: Init) -> None:
        self.graph, self.use = graph, use
        self.hidden: Callable[[Junction], Sized] = {
            "conserve": _conserve,
            "degree": self._degree,
            "he": lambda junction: _alike(junction, 2.0, "2/fan_in (he)"),
            "keep": lambda junction: _alike(junction, 1.0, ""),  # every one is replaced by its measured size
        }[init]
        self.init = init
        self.heads = {head.edge: head for head in use.heads if head.edge is not None}
        self.kept = {
            name: parameter
            for name, parameter in use.parameters.items()
            if parameter.role == "weight" and (init == "keep" or not parameter.trainable)
        }
        self.why: dict[int, str] = {}

    def __call__(self, junction: Junction) -> list[float]:
        gains, why = self.hidden(junction)
        if self.kept or not self.heads.keys().isdisjoint(junction.positions):
            for i, (edge, position) in enumerate(zip(junction.weights, junction.positions, strict=True)):
                if self.init != "keep" and position in self.heads:
                    gains[i], why[i] = self._readout(self.heads[position], edge, junction.reads[i])
                if self.kept and (kept := [name for name in edge.parameters if name in self.kept]):
                    gains[i], why[i] = self._measured(edge, kept[0])
        self.why.update(zip(junction.positions, why, strict=True))
        return gains

    def _degree(self, junction: Junction) -> Sized:
        """Divide by the in-degree of the vertex where the sum happens: the target's, or in order post the source's.

        The paper's 2 undoes the ReLU's halving; other activations bring their own gain.
        """
        gains, why = [], []
        for edge in junction.weights:
            source = edge.activates_last or (edge.activation is None and self._sums_activations(edge.source))
            degree = max(self.graph.in_degree(edge.source), 1) if source else 1
            if not edge.activates_last:
                degree *= junction.in_degree
            factor = 1.0 / activations.gain(edge.activation) if edge.op == "weight" and edge.activation else 1.0
            gains.append(factor / degree)
            why.append(f"{factor:.4g}/(d_in fan_in), {'source' if source else 'target'}'s in-degree {degree}")
        return gains, why

    def _sums_activations(self, vertex: str) -> bool:
        """Say whether a sum is one of activations and skips: no weight that lands there has been sized for it."""
        incoming = self.graph.incoming[vertex]
        bare = any(edge.has_weight and not edge.activates_last for edge in incoming)
        return self.graph.merge[vertex] == "sum" and len(incoming) > 1 and not bare

    def _measured(self, edge: Edge, name: str) -> tuple[float, str]:
        measured = self.kept[name].measured
        if measured is None:
            raise InputError(
                f"init is 'keep' but the size of '{name}' is not known; "
                "'keep' reads a module's weights: plan a module, or choose another init"
            )
        if not math.isfinite(measured):
            raise InputError(
                f"'{name}' is kept as it is but holds values that are not finite; load good ones, or draw it"
            )
        return edge.fan_in * measured**2, "kept as it is"

    def _readout(self, head: Head, edge: Edge, read: float) -> tuple[float, str]:
        if self.init == "degree" and head.depth == 0:
            degree = max(self.graph.in_degree(_last_vertex(self.graph, edge)), 1)
            return 1.0 / (edge.fan_in * degree), f"mean-field readout, 1/fan_in over the root of in-degree {degree}"
        if self.init == "conserve":
            # The readout sees what a conserving network would show it: 1/fan_in where the last vertex carries one.
            unit = _unit_read(self.graph, head, edge)
            if read > 0:
                return unit / read / edge.fan_in, "mean-field readout, 1/fan_in over the last vertex's size"
        return 1.0 / edge.fan_in, "mean-field readout, 1/fan_in"


def _last_vertex(graph: Graph, edge: Edge) -> str:
    """Return the vertex a readout reads, seen through pools and activations, but not through a skip."""
    at = edge.source
    while len(graph.incoming[at]) == 1 and graph.incoming[at][0].op in ("activation", "average", "maximum"):
        at = graph.incoming[at][0].source
    return at


def _unit_read(graph: Graph, head: Head, edge: Edge) -> float:
    """Return the second moment a readout would read if its head vertex carried a unit Gaussian."""
    chain: list[Edge] = []
    at = edge.source
    while at != head.vertex:
        chain.append(graph.incoming[at][0])
        at = chain[-1].source
    mean, second = 0.0, 1.0
    for step in reversed(chain):
        variance = max(second - mean**2, 0.0)
        if step.op == "activation" and step.activation:
            mean, second = activations.moments(step.activation, mean, variance)
        elif step.op == "average":
            second = mean**2 + step.gain * variance
        elif step.op == "maximum":
            unit_mean, unit_second = activations.maximum_moments(step.window)
            spread = math.sqrt(variance)
            mean, second = (
                mean + spread * unit_mean,
                mean**2 + 2 * mean * spread * unit_mean + variance * unit_second,
            )
        else:
            mean, second = step.amplitude * mean, step.amplitude**2 * second
    if edge.activates_first and edge.activation:
        second = activations.moments(edge.activation, mean, max(second - mean**2, 0.0))[1]
    return edge.gain * second


def _alike(junction: Junction, gain: float, why: str) -> Sized:
    return [gain] * len(junction.weights), [why] * len(junction.weights)


def _conserve(junction: Junction) -> Sized:
    """Give every weight the same output variance, so that the vertex carries second moment one.

    What skips bring counts first. Where they leave less than the weights' part by number, the weights get that part
    and the vertex grows: no size of theirs could shrink a skip.
    """
    count = len(junction.weights)
    carried = junction.variance + junction.mean**2
    goal = max(1.0, carried + count / junction.in_degree)
    variance: float | None = 1.0
    if any(edge.op == "recurrent" for edge in junction.weights):
        pass
    elif not any(edge.activates_last for edge in junction.weights):
        variance = (goal - carried) / count
    else:
        variance = _solve(junction, goal)
    gains = [(variance or 1.0) / read if read > 0 else 1.0 for read in junction.reads]
    if variance is None:
        what = "a unit Gaussian into an activation that cannot conserve the second moment"
    elif count == 1 and junction.in_degree == 1:
        what = "conserves the second moment"
    elif goal == 1.0:
        what = f"conserves the second moment over {junction.in_degree} summands"
    else:
        what = f"1/{junction.in_degree} of the second moment beside what skips bring"
    return gains, [what if read > 0 else "reads nothing: 1/fan_in" for read in junction.reads]


def _solve(junction: Junction, goal: float) -> float | None:
    """Find by bisection the common variance of matrix products that gives a sum of activations its second moment.

    None where no variance in reach does: bounded activations (tanh, sigmoid) stay below the goal however large their
    weights, and those that do not vanish at zero (sigmoid, softplus) may exceed it however small.
    """
    kinds: dict[tuple[str | None, bool], int] = {}
    edge_of = {}
    for edge in junction.weights:
        key = (edge.activation, edge.activates_last)
        kinds[key] = kinds.get(key, 0) + 1
        edge_of[key] = edge

    def second_moment(variance: float) -> float:
        mean, spread = junction.mean, junction.variance
        for key, count in kinds.items():
            one_mean, one_second = behind_weight(edge_of[key], variance)
            mean += count * one_mean
            spread += count * (one_second - one_mean**2)
        return spread + mean**2

    low, high = _VARIANCES
    if not second_moment(low) < goal <= second_moment(high):
        return None
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if second_moment(middle) < goal else (low, middle)
        if high / low < 1 + 1e-12:
            break
    return math.sqrt(low * high)
