"""How far a change inside the network moves the head, in one pass back from the head.

The sensitivity to field f is the factor by which the variance of a small, independent change of f is multiplied on its
way to the head. Copies of a change add in amplitude, as fields do; changes that pass an operator that makes a new field
add in variance:

    S(f) = A_head[f]^2 + sum over edges e that make a field, from u to t, of A_u[f]^2 slope(e) S(t)

where A_u[f] is the amplitude of field f at vertex u. A step that adds var(dW) = e / fan_in to a weight's entries then
moves the head by e times the second moment of the weight's input times the sensitivity to its output.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from evenstep.graph import Edge
from evenstep.graph.operators import Contraction, Moments, Recurrent, slope_of
from evenstep.init import Network
from evenstep.signal.forward import Signal, block_share

Array = npt.NDArray[np.float64]


def sensitivities(signal: Signal, head: str) -> Mapping[str, float]:
    """Return for each vertex the head's sensitivity to the field made there; 0 if the field does not reach the head."""
    graph = signal.graph
    squares = np.zeros(len(graph.vertices))
    last = signal.numbers[head]
    arriving = signal.amplitudes[last]
    squares[arriving.fields] = arriving.amplitudes**2
    for number in range(last, -1, -1):
        if not squares[number]:
            continue
        edge_indices, sources = (
            signal.contributions[number].edge_indices.tolist(),
            signal.contributions[number].sources.tolist(),
        )
        for edge_index, source in zip(edge_indices, sources, strict=True):
            slope = _slope(signal, edge_index)
            if slope:
                fields, amplitudes, _ = signal.amplitudes[source]
                squares[fields] += amplitudes**2 * slope * squares[number]
    return {vertex.name: float(squares[number]) for number, vertex in enumerate(graph.vertices)}


def effects(network: Network) -> Mapping[int, float]:
    """Return for each weight edge how far a step on it moves the network's heads, by edge index.

    The step adds var(dW) = 1 / fan_in to every entry; its effect is in units of a head's second moment, averaged over
    heads. Weights that no head depends on, such as readouts, are left out.
    """
    signal, heads = network.signal, tuple(dict.fromkeys(head.vertex for head in network.roles.heads))
    moved: dict[int, float] = {}
    for head in heads:
        size = signal.vertices[head].second_moment
        if size <= 0:
            continue
        sensitivity = sensitivities(signal, head)
        for edge_index, read in signal.reads.items():
            edge = signal.graph.edges[edge_index]
            if sensitivity[edge.target]:
                effect = (
                    read * _slope_after(edge, signal.weight_sizes[edge_index] * read) * sensitivity[edge.target] / size
                )
                moved[edge_index] = moved.get(edge_index, 0.0) + effect / len(heads)
    return moved


def _slope(signal: Signal, edge_index: int) -> float:
    """Return an edge's slope from a change at its source to the new field that it makes, without the coherent copy."""
    edge = signal.graph.edges[edge_index]
    given = signal.vertices[edge.source].moments
    if edge.weight is not None:
        if isinstance(edge.weight, Recurrent):  # opaque, so a change is taken to pass as the signal does
            return edge.weight.output_moments(1.0).variance / given.second_moment if given.second_moment > 0 else 0.0
        size = signal.weight_sizes[edge_index]
        before = slope_of(edge.before, given)
        return before * size * edge.weight.gain * _slope_after(edge, size * signal.reads[edge_index])
    merge = signal.graph.merge[edge.target]
    if merge == "product":
        return _slope_in_product(signal, edge)
    slope = slope_of(edge.operators, given)
    if merge == "concat":  # copies pass in amplitude; a new field counts by its share of the width
        return block_share(edge) * slope if edge.copy_amplitude() == 0.0 else 0.0
    return max(slope - edge.copy_amplitude() ** 2, 0.0)


def _slope_after(edge: Edge, variance: float) -> float:
    """Return the slope from a weight's matrix product of the given variance to the edge's target."""
    return slope_of(edge.after, Moments(0.0, variance))


def _slope_in_product(signal: Signal, edge: Edge) -> float:
    """Return the slope of a product with respect to one factor: the other factors' size, summed over terms."""
    if edge.steers:
        return 0.0
    factors = [factor for factor in signal.graph.incoming[edge.target] if not factor.steers]
    terms = max([1, *(o.terms for factor in factors for o in factor.operators if isinstance(o, Contraction))])
    slope = slope_of(edge.operators, signal.vertices[edge.source].moments)
    if len(factors) == 2 and factors[0].source == factors[1].source:  # a square: each half of (2 z)^2
        slope *= 2.0
    factors.remove(edge)  # once: the two factors of a square may be equal
    for other in factors:
        slope *= other.moments(signal.vertices[other.source].moments).second_moment
    return terms * slope
