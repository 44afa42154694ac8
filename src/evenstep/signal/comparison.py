"""Compare measured second moments with computed ones, vertex by vertex.

If a vertex measures ten times its computed second moment, the computation is wrong there, or already before it.
`deviations` leaves out the errors made before a vertex.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from evenstep.graph import Edge, Vertex
from evenstep.graph.operators import Moments
from evenstep.signal.forward import Signal, block_share


def deviations(signal: Signal, measured: Mapping[str, Moments]) -> dict[str, float]:
    """Return, for each measured vertex, its second moment over the one computed from its measured sources.

    A source that was not measured counts as computed, times the error of its own sources. The ratio is infinite if a
    signal is not finite, or if none was computed.
    """
    carried = {name: vertex.moments for name, vertex in signal.vertices.items()}
    ratios: dict[str, float] = {}
    inputs = set(signal.graph.inputs)
    incoming: dict[str, list[tuple[int, Edge]]] = {vertex.name: [] for vertex in signal.graph.vertices}
    for index, edge in enumerate(signal.graph.edges):
        if not edge.steers:
            incoming[edge.target].append((index, edge))
    computed = dict(carried)
    for vertex in signal.graph.vertices:
        name, change = vertex.name, 1.0
        if name not in inputs:
            now, before = (_arriving(signal, vertex, incoming[name], given) for given in (carried, computed))
            change = now / before if 0 < now / before < math.inf else 1.0
        expected = _times(computed[name], change)
        given = measured.get(name)
        if given is None:
            carried[name] = expected
            continue
        finite = math.isfinite(given.second_moment)
        carried[name] = given if finite else expected
        if expected.second_moment > 0:
            ratios[name] = given.second_moment / expected.second_moment if finite else math.inf
        elif not finite or given.second_moment > _SMALLEST_SEEN:
            ratios[name] = math.inf
    return ratios


def _arriving(
    signal: Signal, vertex: Vertex, incoming: list[tuple[int, Edge]], carried: Mapping[str, Moments]
) -> float:
    """Return the second moment that edges bring to a vertex, counted separately, if sources have `carried` moments."""
    brought = [_brought(signal, edge, index, carried[edge.source]) for index, edge in incoming]
    return max(math.prod(brought) if vertex.merge == "product" else sum(brought), _SMALLEST)


_SMALLEST_SEEN = 1e-12  # smaller second moments may be rounding errors
_SMALLEST = 1e-300  # smaller than any signal: keeps the ratio of zero to zero at one


def _brought(signal: Signal, edge: Edge, index: int, given: Moments) -> float:
    if edge.weight is None:
        return block_share(edge) * edge.moments(given).second_moment
    read = edge.weight.gain * edge.second_moment_read(given)
    return edge.moments_delivered(signal.weight_sizes[index] * read).second_moment


def _times(moments: Moments, factor: float) -> Moments:
    return Moments(moments.mean * math.sqrt(factor), moments.variance * factor)
