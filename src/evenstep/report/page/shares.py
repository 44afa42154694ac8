"""How much of the network's paths each edge carries: what the drawing shows as thickness."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import cast

from evenstep.graph import Edge, Graph
from evenstep.rules import Plan, activations
from evenstep.rules.initialisation import Init
from evenstep.rules.network import Network
from evenstep.rules.signal import VertexSignal, behind_weight


def path_weights(plan: Plan) -> tuple[float, ...]:
    """Return the weight of every edge of a plan's graph, from 0 to 1: a walk back from the output passes it so often.

    At a vertex the walk takes each edge by its share of what meets there: of the paths for the rule `paths`, whose
    paths all count alike, and of the second moment for all others. Weights of the edges into a vertex add up to the
    vertex's own, and an edge on no path has weight 0.
    """
    live = plan.graph.live()
    share = _path_counts(live) if plan.rule == "paths" else _second_moments(plan, live)
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
    return tuple(found.get(id(edge), 0.0) for edge in plan.graph.edges)


def _path_counts(live: Graph) -> Callable[[Edge], float]:
    """Return how many paths lead to an edge: whole numbers of any length."""
    counts: dict[str, int] = {}
    for vertex in live.vertices:
        own = int(vertex.name in live.inputs)
        counts[vertex.name] = own + sum(counts[edge.source] for edge in live.incoming[vertex.name])
    return lambda edge: counts[edge.source]


def _second_moments(plan: Plan, live: Graph) -> Callable[[Edge], float]:
    """Return the second moment an edge brings to its target at initialisation, seen by itself."""
    signal = Network(plan.graph, cast(Init, plan.init)).initialisation.signal
    gain_of = {id(live.edges[place]): gain for place, gain in signal.weight_gains.items()}
    return lambda edge: _brought(edge, signal.vertices, gain_of.get(id(edge), 1.0), live.merge[edge.target])


def _brought(edge: Edge, signals: Mapping[str, VertexSignal], weight_gain: float, merge: str) -> float:
    at = signals[edge.source]
    variance = max(at.second_moment - at.mean**2, 0.0)
    if edge.op == "modulate":
        return 0.0
    if merge == "product":
        return 1.0
    if merge == "concat":
        return edge.gain * at.second_moment
    if edge.has_weight:
        first = edge.activation if edge.activates_first else None
        read = activations.moments(first, at.mean, variance)[1] if first else at.second_moment
        return behind_weight(edge, weight_gain * edge.gain * read)[1]
    if edge.normalises:
        return 1.0
    if edge.op == "activation" and edge.activation:
        mean, second = activations.moments(edge.activation, at.mean, variance)
        return mean**2 + max(second - mean**2, 0.0) / edge.window
    if edge.op == "average":
        return edge.gain * variance + at.mean**2
    if edge.op == "maximum":
        unit_mean, unit_second = activations.maximum_moments(edge.window)
        return (at.mean + math.sqrt(variance) * unit_mean) ** 2 + variance * (unit_second - unit_mean**2)
    return edge.amplitude**2 * at.second_moment
