"""How a network relates to its base: how much wider and deeper it is, and what every parameter is in it.

muP and what builds on it say of every parameter how large Adam's step is and how large its gradients are, over those of
the base, as powers of two ratios: of width, m_N, and of depth, m_L. The rest follows. SGD's step grows with the
gradient, so its rate is Adam's over the gradient's size; Adam's epsilon goes with the gradient's size; decay acts with
the rate, so it goes with one over the rate where its pace is to stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from evenstep.errors import InputError
from evenstep.graph import Parameter
from evenstep.graph.model import EMBEDDING, vertices_whose_paths_meet
from evenstep.graph.residual import Residuals, hidden_depth, residuals
from evenstep.graph.roles import LayerPosition
from evenstep.init import Network
from evenstep.rules.layers import position_in
from evenstep.rules.rule import Factor, Optimizer, RateFactors, steps_by_rate
from evenstep.rules.width import hidden_width

Kind = Literal["matrix", "vector", "scalar"]


class Part(NamedTuple):
    """Say what a parameter is: a matrix between units, a vector that grows with width, or a number that does not.

    `position` is that of the layer; `inside` says that it lies in a residual branch, or in a network without any that
    it is hidden; `ends` that a factor of its branch is put into it; `table` that data look its rows up.
    """

    kind: Kind
    position: LayerPosition
    inside: bool
    ends: bool
    table: bool


class Size(NamedTuple):
    """Hold what of a factor comes from width, and what from depth."""

    width: float = 1.0
    depth: float = 1.0


class Relation(NamedTuple):
    """Say how a parameter relates to the base's: Adam's rate, and the size of its gradients.

    Both are those of the parameter before its multipliers, the factors of what it gives: `counted` are those that the
    initialisation draws weights by already.
    """

    rate: Size = Size()
    gradient: Size = Size()
    multipliers: tuple[Factor, ...] = ()
    counted: tuple[Factor, ...] = ()


@dataclass(frozen=True)
class Ratios:
    """Hold m_N as `width`, that of what readouts read as `readout`, m_L as `depth`, and the network's branches."""

    width: float
    readout: float
    depth: float
    found: Residuals

    @classmethod
    def of(cls, network: Network, base: Network) -> Ratios:
        """Compare a network with its base."""
        found = residuals(network.live)
        reads, base_reads = network.readout_fan_in, base.readout_fan_in
        readout = reads / base_reads if reads and base_reads else 1.0
        depth = _depth(network, found) / _depth(base, residuals(base.live))
        return cls(hidden_width(network) / hidden_width(base), readout, depth, found)

    def branch(self, power: float, *, rule: str) -> float:
        """Return what `rule` multiplies residual branches by, m_L^-power: one where there are none."""
        factor = math.pow(self.depth, -power) if self.found.sums else 1.0
        for vertex, stop in self.found.blocked.items() if factor != 1.0 else ():
            raise InputError(
                f"rule '{rule}' multiplies residual branches, and that added at '{vertex}' ends in {stop}, which takes "
                "no factor; end it in a trained linear layer or a norm with gains, or choose rule 'weighted'"
            )
        return factor

    def branch_factors(self, part: Part, branch: float) -> tuple[Factor, ...]:
        """Return the multiplier of a parameter that a branch ends in."""
        words = f"{len(self.found.sums)} residual branches, {self.depth:.3g} times the base's"
        return (Factor("branch", branch, words),) if part.ends and branch != 1.0 else ()

    def readout_factors(self) -> tuple[Factor, ...]:
        """Return the multiplier of readouts, by which every initialisation draws those of wide networks already."""
        words = f"reads {self.readout:.3g} times the base's units"
        return () if self.readout == 1.0 else (Factor("readout", 1 / self.readout, words),)


def _depth(network: Network, found: Residuals) -> int:
    """Return the number of residual additions, or of hidden layers on one path where there are none, one at least."""
    return max(len(found.sums) or hidden_depth(network.live, network.roles.positions), 1)


def parts(network: Network, found: Residuals) -> Iterator[tuple[Parameter, Part]]:
    """Yield every trained parameter that stands on a path, and what it is."""
    graph, use = network.live, network.roles
    hidden = [graph.edges[edge_index] for edge_index, position in use.positions.items() if position == "hidden"]
    numbers = {id(edge) for edge in hidden}
    to_come = vertices_whose_paths_meet(graph, lambda edge: id(edge) in numbers, forward=True, every=False)
    behind = vertices_whose_paths_meet(graph, lambda edge: edge.weight is not None, forward=False, every=False)

    def is_inside(edge_index: int) -> bool:
        edge = graph.edges[edge_index]
        if found.sums:
            return edge_index in found.inside
        return id(edge) in numbers or (edge.weight is None and edge.source in behind and edge.target in to_come)

    for parameter in graph.parameters:
        uses = use.edges_of.get(parameter.name, ())
        if not parameter.trainable or not uses:
            continue
        layers = [edge_index for edge_index in uses if graph.edges[edge_index].weight is not None]
        position = position_in(network, parameter) if layers else "hidden"
        kind: Kind = "vector" if any(size > 1 for size in parameter.shape) else "scalar"
        if parameter.role == "weight" and layers:
            kind = "matrix"
        elif position == "readout" and parameter.role == "bias":
            kind = "scalar"  # as many numbers as there are outputs, at any width
        ends = parameter.role in ("weight", "bias", "gain") and any(edge_index in found.ends for edge_index in uses)
        inside = position == "hidden" and all(map(is_inside, uses))
        yield parameter, Part(kind, position, inside, ends, parameter.note == EMBEDDING)


def related(
    network: Network,
    optimizer: Optimizer,
    found: Residuals,
    relation_of: Callable[[Part], Relation],
    *,
    scales_eps: bool,
    even_pace: bool,
) -> RateFactors:
    """Return a rule's factors from how it relates every parameter to the base's.

    With `scales_eps` Adam's epsilon goes with the gradient. Decay keeps its pace over width, and with `even_pace` over
    depth too.
    """
    factors = RateFactors((Factor("topology", 1.0, "blind to topology"),), {}, {}, {}, {}, {}, {})
    for parameter, part in parts(network, found):
        name, relation = parameter.name, relation_of(part)
        rate, gradient = relation.rate, relation.gradient
        if not steps_by_rate(optimizer):
            rate = Size(rate.width / gradient.width, rate.depth / gradient.depth)
        pace = rate.width * (rate.depth if even_pace else 1.0)
        eps = gradient.width * gradient.depth if scales_eps and optimizer in ("adam", "muon") else 1.0
        where = f"{part.position} {part.kind}"
        for kept, listed in (
            (factors.own, (*_listed("width", rate.width, where), *_listed("depth", rate.depth, where))),
            (factors.multipliers, relation.multipliers),
            (factors.counted, relation.counted),
            (factors.eps, _listed("gradient", eps, where)),
            (factors.decay, _listed("pace", 1 / pace, "over the rate")),
        ):
            if listed:
                kept[name] = listed  # type: ignore[index]
    return factors


def _listed(name: str, value: float, why: str) -> tuple[Factor, ...]:
    return () if math.isclose(value, 1.0) else (Factor(name, value, why),)
