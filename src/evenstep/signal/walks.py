"""Random walks back from a vertex to the input, which pick each summand by its share: how long, and what two share.

A walk's length is the sum of its edges' lengths (`Edge.length`): the activations, and a kernel of side k as k weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.graph import Graph
from evenstep.signal.forward import Signal

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Say how long edges count: `kernel_length` for every unit of a kernel's side beyond one.

    `batch_norm_decay` is what is left of a path's length after a batch norm.
    """

    kernel_length: float
    batch_norm_decay: float


@dataclass(frozen=True, slots=True)
class Walks:
    """Hold E[L], E[L^2], E[L^3] of a walk's length L, and the length that two independent walks share on average."""

    m1: float
    m2: float
    m3: float
    shared: float

    def squared(self, offset: float) -> float:
        """Return E[(L + offset)^2]."""
        return self.m2 + 2 * offset * self.m1 + offset**2

    def cubed(self, offset: float) -> float:
        """Return E[(L + offset)^3]."""
        return self.m3 + 3 * offset * self.m2 + 3 * offset**2 * self.m1 + offset**3


def walks(signal: Signal, ends: tuple[str, ...], lengths: Lengths) -> tuple[Walks, ...]:
    """Return the statistics of walks from each of the `ends` back to the input."""
    of_edges, decays = _edge_lengths(signal.graph, lengths), _decays(signal.graph, lengths)
    moments = _length_moments(signal, of_edges, decays)
    found = []
    for end in ends:
        m1, m2, m3 = map(float, moments[signal.numbers[end]])
        found.append(Walks(m1, m2, m3, _shared(signal, end, of_edges, decays)))
    return tuple(found)


def _edge_lengths(graph: Graph, lengths: Lengths) -> Array:
    known: dict[int, float] = {}  # by the identity of operators, which many edges share
    found = []
    for edge in graph.edges:
        length = known.get(id(edge.operators))
        if length is None:
            length = known[id(edge.operators)] = edge.length(lengths.kernel_length)
        found.append(length)
    return np.array(found)


def _decays(graph: Graph, lengths: Lengths) -> dict[int, float]:
    """Return what is left of a path's length before a norm, by the place of the edge that normalises."""
    decays = {}
    for place, edge in enumerate(graph.edges):
        if edge.weight is None and edge.normalises:
            decays[place] = lengths.batch_norm_decay if edge.normalises_over_batch else 1.0
    return decays


def _length_moments(signal: Signal, of_edges: Array, decays: dict[int, float]) -> Array:
    """Return E[L], E[L^2], E[L^3] of the walks from every vertex, forward from the input.

    Along an edge of length d the moments are those of L + d; at a vertex they are averaged by share. A field's depths
    are averaged over what edges add to it, its mean's and its variance's apart.
    """
    count = len(signal.graph.vertices)
    left = np.ones(len(of_edges))
    left[list(decays)] = list(decays.values())
    moments = np.zeros((count, 3))
    of_mean, of_variance = np.zeros((count, 3)), np.zeros((count, 3))
    signals = [signal.vertices[vertex.name] for vertex in signal.graph.vertices]
    for number in range(count):
        places, sources, means, variances, _ = signal.contributions[number]
        if len(places):
            d, f = of_edges[places], left[places]
            m1, m2, m3 = moments[sources].T
            longer = np.stack(
                (f * (m1 + d), f**2 * (m2 + 2 * d * m1 + d**2), f**3 * (m3 + 3 * d * m2 + 3 * d**2 * m1 + d**3)), axis=1
            )
            of_mean[number], of_variance[number] = means @ longer, variances @ longer
        at = signals[number]
        if at.second_moment > 0:
            fields, amplitudes, _ = signal.amplitudes[number]
            by_variance, by_mean = amplitudes**2 @ of_variance[fields], amplitudes @ of_mean[fields]
            moments[number] = (by_variance + at.mean * by_mean) / at.second_moment
    return moments


def _shared(signal: Signal, end: str, of_edges: Array, decays: dict[int, float]) -> float:
    """Return the length of what two independent walks from a vertex back to the input pass both, on average.

    Both pass an edge with the square of the probability that one does; before a norm, where steps do not average out,
    whatever one walk passes counts as shared.
    """
    count = len(signal.graph.vertices)
    # The probability that a walk comes by: with no norm passed yet, and past a norm, times what has decayed.
    free, bound = np.zeros(count), np.zeros(count)
    made = np.zeros((2, count))  # that it goes on through the field made there
    last = signal.numbers[end]
    free[last], both = 1.0, 0.0
    for number in range(last, -1, -1):
        second = signal.vertices[signal.graph.vertices[number].name].second_moment
        if (free[number] or bound[number]) and second > 0:
            fields = signal.amplitudes[number].fields
            made[:, fields] += np.outer((free[number], bound[number]), signal.shares(number) / second)
        places, sources, _, _, amounts = signal.contributions[number]
        total = amounts.sum()
        if total <= 0 or not made[:, number].any():
            continue
        alone, past = np.outer(made[:, number], amounts / total)
        both += float(of_edges[places] @ (alone**2 + past))
        norms = [i for i, place in enumerate(places.tolist()) if place in decays] if decays else []
        for i in norms:
            past[i] = (alone[i] + past[i]) * decays[int(places[i])]
            alone[i] = 0.0
        np.add.at(free, sources, alone)
        np.add.at(bound, sources, past)
    return both
