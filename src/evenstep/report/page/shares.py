"""Compute how much of the network's paths each edge carries, which the drawing shows as thickness."""

from __future__ import annotations

from collections.abc import Callable

from evenstep.graph import Edge, Graph
from evenstep.graph.fields import name_of
from evenstep.graph.simplify import gates_replaced
from evenstep.planning import Plan
from evenstep.signal import IncomingWeights, propagate


def path_weights(plan: Plan) -> tuple[float, ...]:
    """Return the weight of every edge of a plan's graph: the probability that a walk back from the output passes it.

    At a vertex the walk takes each edge by its share of what meets there: of the paths for the rule `paths`, whose
    paths all count alike, and of the second moment for all others. The weights of the edges into a vertex add up to the
    weight of the vertex, and an edge on no path has weight 0.
    """
    graph = gates_replaced(plan.graph, lambda gate: gate.started)
    live = graph.live()
    share = _path_counts(live) if name_of(plan.rule) == "paths" else _second_moments(plan, live)
    reached = dict.fromkeys((vertex.name for vertex in live.vertices), 0.0)
    for name in live.outputs:
        reached[name] += 1 / len(live.outputs)
    found: dict[int, float] = {}
    for vertex in reversed(live.vertices):
        edges = live.incoming[vertex.name]
        brought = [share(edge) for edge in edges]
        total = sum(brought)
        for edge, part in zip(edges, brought, strict=True):
            weight = reached[vertex.name] * (part / total if total else 1 / len(edges))
            found[id(edge)] = weight
            reached[edge.source] += weight
    return tuple(found.get(id(edge), 0.0) for edge in graph.edges)


def _path_counts(live: Graph) -> Callable[[Edge], float]:
    """Return how many paths lead to an edge, as whole numbers of any length."""
    counts: dict[str, int] = {}
    for vertex in live.vertices:
        own = int(vertex.name in live.inputs)
        counts[vertex.name] = own + sum(counts[edge.source] for edge in live.incoming[vertex.name])
    return lambda edge: counts[edge.source]


def _second_moments(plan: Plan, live: Graph) -> Callable[[Edge], float]:
    """Return the second moment that an edge brings to its target, with weights drawn as planned."""
    std = {parameter.name: parameter.measured or 0.0 for parameter in plan.graph.parameters}
    std |= {planned.name: planned.std for planned in plan.parameters}
    weights = {parameter.name for parameter in plan.graph.parameters if parameter.role == "weight"}

    def sizes(incoming: IncomingWeights) -> list[float]:
        return [_size(edge, read) for edge, read in zip(incoming.edges, incoming.reads, strict=True)]

    def _size(edge: Edge, read: float) -> float:
        names = [name for name in edge.parameters if name in weights]
        if edge.weight is None or not names:  # a generic weight, which conserves what it reads
            return 1.0 / read if read > 0 else 1.0
        return edge.weight.fan_in * std[names[0]] ** 2

    signal = propagate(live, sizes)
    index_of = {id(edge): edge_index for edge_index, edge in enumerate(live.edges)}
    return lambda edge: signal.second_moment_brought(index_of[id(edge)])
