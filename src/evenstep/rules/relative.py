"""How a network relates to its base: how much wider and deeper it is, and which kind of part each parameter is.

For each parameter muP and the rules that build on it give the size of Adam's step and of the gradient, relative to the
base's, as powers of two ratios: of width, m_N, and of depth, m_L. The rest follows. SGD's step grows with the gradient,
so its rate is Adam's divided by the gradient's size; Adam's epsilon is proportional to the gradient's size; optimisers
multiply decay by the rate, so to keep its pace it is divided by the rate's factor.
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
from evenstep.rules.layers import geometric_mean, position_in
from evenstep.rules.rule import Factor, Optimizer, RateFactors, steps_by_rate
from evenstep.rules.width import hidden_width

Kind = Literal["matrix", "vector", "scalar"]


class Part(NamedTuple):
    """Say what a parameter is: a matrix between units, a vector that grows with width, or numbers that do not grow.

    `position` is that of the layer. `inside` says whether it lies on a residual branch or, in a network without any,
    whether it is hidden; `ends` whether it takes its branch's multiplier; `table` whether data look up its rows.
    `drawn` says whether the initialisation draws it smaller, the more branches there are.
    """

    kind: Kind
    position: LayerPosition
    inside: bool
    ends: bool
    table: bool
    drawn: bool


class Size(NamedTuple):
    """Hold a factor's part due to width and its part due to depth."""

    width: float = 1.0
    depth: float = 1.0


class Relation(NamedTuple):
    """Say how a parameter relates to the base's: Adam's rate, and the size of its gradients.

    Both are those before the multipliers of the parameter's output are folded in. `counted` are multipliers that the
    initialisation already draws weights by, but for those of branches.
    """

    rate: Size = Size()
    gradient: Size = Size()
    counted: tuple[Factor, ...] = ()


@dataclass(frozen=True)
class Ratios:
    """Hold m_N as `width`, m_N of the readouts as `readout`, m_L as `depth`, and its `branches`.

    `drawn` is the factor by which the initialisation draws the ends of branches, relative to the base's.
    """

    width: float
    readout: float
    depth: float
    branches: Residuals
    drawn: float

    @classmethod
    def of(cls, network: Network, base: Network) -> Ratios:
        """Compare a network with its base."""
        branches = residuals(network.live)
        reads, base_reads = network.readout_fan_in, base.readout_fan_in
        readout = reads / base_reads if reads and base_reads else 1.0
        depth = _depth(network, branches) / _depth(base, residuals(base.live))
        drawn = _drawn(network) / _drawn(base)
        return cls(hidden_width(network) / hidden_width(base), readout, depth, branches, drawn)

    def branch(self, power: float, *, rule: str) -> float:
        """Return the multiplier of residual branches under `rule`, m_L^-power; one if there are none."""
        factor = math.pow(self.depth, -power) if self.branches.sums else 1.0
        for vertex, stop in self.branches.blocked.items() if factor != 1.0 else ():
            raise InputError(
                f"rule '{rule}' multiplies residual branches, but the one added at '{vertex}' ends in {stop}, which "
                "cannot take a factor; end it in a trained linear layer or a norm with gains, or choose rule 'weighted'"
            )
        return factor

    def branch_factors(self, part: Part, branch: float) -> tuple[tuple[Factor, ...], tuple[Factor, ...]]:
        """Return the multiplier of a parameter that ends a branch: what the rule adds, and what is drawn already.

        Their product is `branch`, relative to the base.
        """
        if not part.ends:
            return (), ()
        drawn = self.drawn_already(part)
        words = f"{len(self.branches.sums)} residual branches, in a network {self.depth:.3g} times as deep as the base"
        return _listed("branch", branch / drawn, words), _listed("branch", drawn, words)

    def drawn_already(self, part: Part) -> float:
        """Return the factor of a branch's end that the initialisation has drawn already, relative to the base."""
        return self.drawn if part.drawn else 1.0

    def readout_factors(self) -> tuple[Factor, ...]:
        """Return the multiplier of readouts, by which every initialisation already draws those of wide networks."""
        words = f"reads {self.readout:.3g} times as many units as the base's readout"
        return () if self.readout == 1.0 else (Factor("readout", 1 / self.readout, words),)


def _depth(network: Network, branches: Residuals) -> int:
    """Return the number of residual additions or, if there are none, of hidden layers on one path; at least one."""
    return max(len(branches.sums) or hidden_depth(network.live, network.roles.positions), 1)


def _drawn(network: Network) -> float:
    """Return the mean factor by which the initialisation draws the ends of branches."""
    return geometric_mean(list(network.branch_scales.values())) if network.branch_scales else 1.0


def parts(network: Network, branches: Residuals) -> Iterator[tuple[Parameter, Part]]:
    """Yield every trained parameter that lies on a path, and which kind of part it is."""
    graph, use = network.live, network.roles
    hidden = [graph.edges[edge_index] for edge_index, position in use.positions.items() if position == "hidden"]
    numbers = {id(edge) for edge in hidden}
    before_hidden = vertices_whose_paths_meet(graph, lambda edge: id(edge) in numbers, forward=True, every=False)
    after_weight = vertices_whose_paths_meet(graph, lambda edge: edge.weight is not None, forward=False, every=False)

    def is_inside(edge_index: int) -> bool:
        edge = graph.edges[edge_index]
        if branches.sums:
            return edge_index in branches.inside
        between = edge.weight is None and edge.source in after_weight and edge.target in before_hidden
        return id(edge) in numbers or between

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
            kind = "scalar"  # one number for each output, at any width
        ends = parameter.role in ("weight", "bias", "gain") and any(edge_index in branches.ends for edge_index in uses)
        inside = position == "hidden" and all(map(is_inside, uses))
        drawn = parameter.name in network.branch_scales
        yield parameter, Part(kind, position, inside, ends, parameter.note == EMBEDDING, drawn)


def related(
    network: Network,
    optimizer: Optimizer,
    ratios: Ratios,
    relation_of: Callable[[Part], Relation],
    *,
    branch: float,
    scales_eps: bool,
    even_pace: bool,
) -> RateFactors:
    """Return a rule's factors, given how it relates each parameter to the base's.

    `branch` multiplies residual branches, relative to the base's, of which the initialisation may have drawn a part.
    With `scales_eps`, Adam's epsilon scales with the gradient. Decay keeps its pace over width and, with `even_pace`,
    also over depth.
    """
    factors = RateFactors((Factor("topology", 1.0, "this rule ignores topology"),), {}, {}, {}, {}, {}, {})
    for parameter, part in parts(network, ratios.branches):
        name, relation = parameter.name, relation_of(part)
        multipliers, drawn = ratios.branch_factors(part, branch)
        rate, gradient = relation.rate, relation.gradient
        if not steps_by_rate(optimizer):
            rate = Size(rate.width / gradient.width, rate.depth / gradient.depth)
        pace = rate.width * (rate.depth if even_pace else 1.0)
        eps = gradient.width * gradient.depth if scales_eps and optimizer in ("adam", "muon") else 1.0
        where = f"{part.position} {part.kind}"
        for kept, listed in (
            (factors.own, (*_listed("width", rate.width, where), *_listed("depth", rate.depth, where))),
            (factors.multipliers, multipliers),
            (factors.counted, (*relation.counted, *drawn)),
            (factors.eps, _listed("gradient", eps, where)),
            (factors.decay, _listed("pace", 1 / pace, "1 / the rate's factor")),
        ):
            if listed:
                kept[name] = listed  # type: ignore[index]
    return factors


def _listed(name: str, value: float, why: str) -> tuple[Factor, ...]:
    return () if math.isclose(value, 1.0) else (Factor(name, value, why),)
