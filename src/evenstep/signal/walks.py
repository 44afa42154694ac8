"""Random walks back from a vertex to the input, which pick each summand by its share: how long, and what two share.

A walk's length is the sum of its edges' lengths (`Edge.length`): the activations, and a kernel of side k as k weights.
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
    """Hold E[L], E[L^2], E[L^3] of a walk's length L, and the length that two independent walks share on average."""

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
    """Return the statistics of walks from each of the `ends` back to the input, for each way to count kernels.

    A kernel's side beyond one counts `kernel_length` a unit; `batch_norm_decay` is what is left of a path's length
    after a batch norm.
    """
    lengths, decays = _edge_lengths(signal.graph, kernel_lengths), _decays(signal.graph, batch_norm_decay)
    moments = _length_moments(signal, lengths, decays)
    found: list[list[WalkStatistics]] = [[] for _ in kernel_lengths]
    for end in ends:
        shared = _passed_by_both(signal, end, decays) @ lengths
        for way, of_end in enumerate(found):
            m1, m2, m3 = moments[signal.numbers[end], :, way].tolist()
            of_end.append(WalkStatistics(m1, m2, m3, float(shared[way])))
    return found


def _edge_lengths(graph: Graph, kernel_lengths: Sequence[float]) -> Array:
    """Return every edge's length (rows), counted in each way (columns)."""
    known: dict[int, list[float]] = {}  # by the identity of operators, which many edges share
    found = []
    for edge in graph.edges:
        length = known.get(id(edge.operators))
        if length is None:
            length = known[id(edge.operators)] = [edge.length(kernel_length) for kernel_length in kernel_lengths]
        found.append(length)
    return np.array(found)


def _decays(graph: Graph, batch_norm_decay: float) -> dict[int, float]:
    """Return what is left of a path's length before a norm, by the index of the edge that normalises."""
    decays = {}
    for edge_index, edge in enumerate(graph.edges):
        if edge.weight is None and edge.normalises:
            decays[edge_index] = batch_norm_decay if edge.normalises_over_batch else 1.0
    return decays


def _length_moments(signal: Signal, lengths: Array, decays: dict[int, float]) -> Array:
    """Return E[L], E[L^2], E[L^3] of the walks from every vertex, forward from the input, for each way to count.

    Along an edge of length d the moments are those of L + d; at a vertex they are averaged by share. A field's moments
    are averaged over what edges add to it, its mean's and its variance's apart.
    """
    count, ways = len(signal.graph.vertices), lengths.shape[1]
    left = np.ones(len(lengths))
    left[list(decays)] = list(decays.values())
    # What an edge does to the moments (1, m1, m2, m3) of its source: (L + d)^k, and then what is left of it.
    d, f = lengths, left[:, None]
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
        at = signal.vertices[vertex.name]
        if at.second_moment > 0:
            fields, amplitudes, _ = signal.amplitudes[number]
            by_mean, by_variance = amplitudes @ of_fields[fields, 0], amplitudes**2 @ of_fields[fields, 1]
            moments[number, 1:] = ((by_variance + at.mean * by_mean) / at.second_moment).reshape(3, ways)
    return moments[:, 1:]


def _passed_by_both(signal: Signal, end: str, decays: dict[int, float]) -> Array:
    """Return, for every edge, what of it two independent walks from a vertex back to the input pass both.

    Both pass an edge with the square of the probability that one does; before a norm, where steps do not average out,
    whatever one walk passes counts as shared.
    """
    count = len(signal.graph.vertices)
    # The probability that a walk comes by: with no norm passed yet, and past a norm, times what has decayed.
    comes_by = np.zeros((2, count))
    made = np.zeros((2, count))  # that it goes on through the field made there
    both = np.zeros(len(signal.graph.edges))
    last = signal.numbers[end]
    comes_by[0, last] = 1.0
    for number in range(last, -1, -1):
        second = signal.vertices[signal.graph.vertices[number].name].second_moment
        if second > 0 and comes_by[:, number].any():
            made[:, signal.amplitudes[number].fields] += np.outer(comes_by[:, number], signal.shares(number) / second)
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
        for towards, amounts_passing in zip(comes_by, passing, strict=True):
            np.add.at(towards, sources, amounts_passing)
    return both
