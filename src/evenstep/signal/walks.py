"""Random walks back from a vertex to the input that pick each summand by its share: their length and their overlap.

A walk's length is the sum of its edges' lengths (`Edge.length`): its activations, and k - 1 for a kernel of side k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.graph import Graph
from evenstep.signal.forward import Signal

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WalkStatistics:
    """Hold E[L], E[L^2], E[L^3] of a walk's length L, and the mean length that two independent walks share."""

    m1: float
    m2: float
    m3: float
    shared: float

    def second_moment(self, offset: float) -> float:
        """Return E[(L + offset)^2]."""
        return self.m2 + 2 * offset * self.m1 + offset**2

    def third_moment(self, offset: float) -> float:
        """Return E[(L + offset)^3]."""
        return self.m3 + 3 * offset * self.m2 + 3 * offset**2 * self.m1 + offset**3


def walk_statistics(
    signal: Signal, ends: Sequence[str], *, kernel_lengths: Sequence[float], batch_norm_decay: float
) -> list[list[WalkStatistics]]:
    """Return the statistics of walks from each of the `ends` back to the input, for each of the `kernel_lengths`.

    A kernel of side k adds `kernel_length` (k - 1) to a path; before a batch norm lengths count `batch_norm_decay`
    times.
    """
    lengths, decays = _edge_lengths(signal.graph, kernel_lengths), _decays(signal.graph, batch_norm_decay)
    moments = _length_moments(signal, lengths, decays)
    statistics: list[list[WalkStatistics]] = [[] for _ in kernel_lengths]
    for end in ends:
        shared = _passed_by_both(signal, end, decays) @ lengths
        for way, of_way in enumerate(statistics):
            m1, m2, m3 = moments[signal.numbers[end], :, way].tolist()
            of_way.append(WalkStatistics(m1, m2, m3, float(shared[way])))
    return statistics


def _edge_lengths(graph: Graph, kernel_lengths: Sequence[float]) -> Array:
    """Return every edge's length (rows) for each kernel length (columns)."""
    known: dict[int, list[float]] = {}  # by the identity of operators, which many edges share
    rows = []
    for edge in graph.edges:
        length = known.get(id(edge.operators))
        if length is None:
            length = known[id(edge.operators)] = [edge.length(kernel_length) for kernel_length in kernel_lengths]
        rows.append(length)
    return np.array(rows)


def _decays(graph: Graph, batch_norm_decay: float) -> dict[int, float]:
    """Return the factor of path lengths before a norm, by the index of the edge that normalises."""
    decays = {}
    for edge_index, edge in enumerate(graph.edges):
        if edge.weight is None and edge.normalises:
            decays[edge_index] = batch_norm_decay if edge.normalises_over_batch else 1.0
    return decays


def _length_moments(signal: Signal, lengths: Array, decays: dict[int, float]) -> Array:
    """Return E[L], E[L^2], E[L^3] of the walks from every vertex, forward from the input, for each kernel length.

    After an edge of length d the moments are those of L + d; at a vertex they are averaged by share. A field's moments
    are averaged over the edges that make it, separately for its mean and its variance.
    """
    count, ways = len(signal.graph.vertices), lengths.shape[1]
    factors = np.ones(len(lengths))
    factors[list(decays)] = list(decays.values())
    # An edge turns the moments (1, m1, m2, m3) of its source into those of f (L + d).
    d, f = lengths, factors[:, None]
    steps = np.zeros((len(lengths), 3, 4, ways))
    steps[:, 0, 0], steps[:, 0, 1] = f * d, f
    steps[:, 1, 0], steps[:, 1, 1], steps[:, 1, 2] = f**2 * d**2, f**2 * 2 * d, f**2
    steps[:, 2, 0], steps[:, 2, 1], steps[:, 2, 2], steps[:, 2, 3] = f**3 * d**3, f**3 * 3 * d**2, f**3 * 3 * d, f**3
    moments = np.zeros((count, 4, ways))
    moments[:, 0] = 1.0
    of_fields = np.zeros((count, 2, 3 * ways))  # weighted by means, and by variances
    for number, vertex in enumerate(signal.graph.vertices):
        edge_indices, sources, parts, _ = signal.contributions[number]
        if len(edge_indices):
            after = (steps[edge_indices] * moments[sources, None]).sum(axis=2)
            of_fields[number] = parts @ after.reshape(len(edge_indices), -1)
        given = signal.vertices[vertex.name]
        if given.second_moment > 0:
            fields, amplitudes, _ = signal.amplitudes[number]
            by_mean, by_variance = amplitudes @ of_fields[fields, 0], amplitudes**2 @ of_fields[fields, 1]
            moments[number, 1:] = ((by_variance + given.mean * by_mean) / given.second_moment).reshape(3, ways)
    return moments[:, 1:]


def _passed_by_both(signal: Signal, end: str, decays: dict[int, float]) -> Array:
    """Return, for every edge, the probability that two independent walks from a vertex to the input both pass it.

    That is the square of the probability that one walk passes it. Before a norm, where steps do not average out,
    everything that one walk passes counts as shared.
    """
    count = len(signal.graph.vertices)
    # The probability that a walk reaches a vertex: without passing a norm, and past a norm, times the norms' decay.
    reached = np.zeros((2, count))
    made = np.zeros((2, count))  # the probability that a walk passes the field made at a vertex
    both = np.zeros(len(signal.graph.edges))
    last = signal.numbers[end]
    reached[0, last] = 1.0
    for number in range(last, -1, -1):
        second = signal.vertices[signal.graph.vertices[number].name].second_moment
        if second > 0 and reached[:, number].any():
            made[:, signal.amplitudes[number].fields] += np.outer(reached[:, number], signal.shares(number) / second)
        edge_indices, sources, _, walk_weights = signal.contributions[number]
        if not len(edge_indices) or not made[:, number].any():
            continue
        total = walk_weights.sum()
        if total <= 0:
            continue
        passing = np.outer(made[:, number], walk_weights / total)
        both[edge_indices] += passing[0] ** 2 + passing[1]
        for i, edge_index in enumerate(edge_indices.tolist()) if decays else ():
            if edge_index in decays:
                passing[:, i] = 0.0, passing[:, i].sum() * decays[edge_index]
        for probabilities, added in zip(reached, passing, strict=True):
            np.add.at(probabilities, sources, added)
    return both
