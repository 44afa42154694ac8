"""What a rule looks at: a live graph with its roles and its initialisation, and the factors it answers with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol, get_args

from evenstep.graph import Graph
from evenstep.rules.initialisation import Init, Initialisation, initialise
from evenstep.rules.moments import PathMoments, path_moments
from evenstep.rules.roles import Roles, roles
from evenstep.rules.signal import UNIT

Optimizer = Literal["sgd", "momentum", "adam"]
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)
# What an average over all positions leaves of a field's variance between examples, at least. Positions of one image are
# alike: of feature maps of photographs about this much is left, however many positions they have (`results/averages`).
LEFT_BY_AVERAGE = 0.1
# A readout of averages goes no faster, over the network's rate, for their sake: narrow ones are at their limit there.
FASTEST_READOUT = 2.0


@dataclass(frozen=True, slots=True)
class Factor:
    """Multiply a learning rate by `value`, for the reason `why`."""

    name: str
    value: float
    why: str


@dataclass(frozen=True)
class Network:
    """Hold a graph of which only live parts count, the way it is initialised, and what follows from both."""

    graph: Graph
    init: Init = "conserve"

    @cached_property
    def live(self) -> Graph:
        """The graph without dead parts."""
        return self.graph.live()

    @cached_property
    def roles(self) -> Roles:
        """The place of every weight."""
        return roles(self.live)

    @cached_property
    def initialisation(self) -> Initialisation:
        """The weights' sizes and the signal they give."""
        return initialise(self.live, self.init, use=self.roles)

    @cached_property
    def moments(self) -> PathMoments:
        """Exact path moments."""
        return path_moments(self.live)

    @cached_property
    def overreach(self) -> Mapping[int, float]:
        """How many times too far a step moves what a weight makes, by the position of its edge; once is left out.

        A norm further on holds a step against the field it reads. A weight's step goes with the second moment that the
        weight reads, over that of the vertex where it lands. Where skips let a field grow, `conserve` draws the weights
        that read it the smaller, and their rates have to be smaller too. Only weights with a norm on every way to the
        output are meant: without one the rules themselves count with fields that grow.
        """
        graph, signals = self.live, self.initialisation.signal.vertices
        normed: dict[str, bool] = {}
        for vertex in reversed(graph.vertices):
            readers = graph.outgoing[vertex.name]
            normed[vertex.name] = vertex.name not in graph.outputs and all(
                edge.normalises or normed[edge.target] for edge in readers
            )
        found = {}
        for position in self.roles.places:
            edge = graph.edges[position]
            usual = UNIT.read_by(edge) * signals[edge.target].second_moment
            if edge.op == "weight" and normed[edge.target] and usual > 0:
                grown = edge.gain * signals[edge.source].read_by(edge) / usual
                if grown > 1 + 1e-9:
                    found[position] = grown
        return found

    @cached_property
    def dimmed(self) -> Mapping[int, float]:
        """What part of a normalised field's variance is left where a readout reads its average, by the edge's position.

        What examples have in common says nothing: a readout tells them apart by what varies, and its step goes with
        that. Only readouts with a norm on every way from the input are meant.
        """
        graph = self.live
        normed: dict[str, bool] = {}
        for vertex in graph.vertices:
            edges = graph.incoming[vertex.name]
            normed[vertex.name] = bool(edges) and all(edge.normalises or normed[edge.source] for edge in edges)
        found = {}
        for head in self.roles.heads:
            if head.edge is None or not normed[head.vertex]:
                continue
            left, at = 1.0, graph.edges[head.edge].source
            while at != head.vertex:
                (edge,) = graph.incoming[at]
                left *= edge.gain if edge.op == "average" else 1.0
                at = edge.source
            if left < 1:
                found[head.edge] = max(left, LEFT_BY_AVERAGE)
        return found

    @cached_property
    def as_matrices(self) -> Network:
        """The same network with every kernel counted as one of side 1: itself, where it has no convolutions."""
        if not self.live.convolutions:
            return self
        edges = tuple(replace(edge, kernel_size=1.0) for edge in self.live.edges)
        return Network(replace(self.live, edges=edges), self.init)

    @cached_property
    def kernel_size(self) -> float:
        """The geometric mean of the convolutions' kernel sizes, 1 without convolutions."""
        sizes = [p.kernel_size for p in self.live.convolutions for _ in self.roles.edges_of.get(p.name, ())]
        return math.exp(sum(map(math.log, sizes)) / len(sizes)) if sizes else 1.0


class Rule(Protocol):
    """Answer how a network's learning rate relates to its base's."""

    @property
    def name(self) -> str:
        """The name the rule is chosen by."""

    @property
    def layerwise(self) -> bool:
        """Whether each layer also gets its own width factor."""

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> tuple[Factor, ...]:
        """Return the factors that hold for the whole network, relative to the base."""


def kernel_factors(network: Network, base: Network) -> tuple[Factor, ...]:
    """Return q_base / q, the rate falls with the kernel size (`eq:lr_cnn`); nothing without convolutions."""
    if not network.live.convolutions:
        return ()
    size, base_size = network.kernel_size, base.kernel_size
    return (Factor("kernel", base_size / size, f"base kernel {base_size:.4g} / kernel {size:.4g}"),)
