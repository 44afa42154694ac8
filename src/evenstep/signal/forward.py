"""Means and second moments of every vertex at initialisation, in one topological pass.

Every vertex is a sum of *fresh fields*: the outputs of weights, activations and products there form one new field,
which apart from its mean is independent of all others; skips, scalings and averages pass fields on as coherent copies,
which add in amplitude. With A_v[f] the amplitude of field f at vertex v, and each field split into its mean and its
variance,

    mean(v)          = sum_f A_v[f] mean(f)
    second_moment(v) = sum_f A_v[f]^2 variance(f) + mean(v)^2.

Field f's share of v is E[A_v[f] f v] = A_v[f]^2 variance(f) + A_v[f] mean(f) mean(v). Besides its amplitude every field
has a number of copies that have met on the way, 1 unless skips bring the same field twice. The output of a norm is one
new field. The pass also records what each edge adds to the field made at its target: walks back from the output
(`evenstep.signal.walks`) need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.errors import GraphError
from evenstep.graph import Edge, Graph
from evenstep.graph.operators import ConcatBlock, Contraction, Moments, Operator, Scale

Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.intp]


class FieldAmplitudes(NamedTuple):
    """Hold the fields at a vertex: their numbers, their amplitudes, and how many copies of each have met."""

    fields: Numbers
    amplitudes: Array
    copies: Array


@dataclass(frozen=True, slots=True)
class VertexSignal:
    """Describe the signal at a vertex, relative to inputs of second moment one.

    `copies` is the mean square, by share, of the number of copies of a field that skips bring together there.
    """

    second_moment: float
    mean: float
    copies: float = 1.0

    @property
    def moments(self) -> Moments:
        """The mean and the variance."""
        return Moments(self.mean, max(self.second_moment - self.mean**2, 0.0))


@dataclass(frozen=True, slots=True)
class IncomingWeights:
    """Describe the weights that meet at a vertex and are about to be sized.

    `edges` are the weight edges into it (at `edge_indices` in the graph's edges) and `reads` the second moment that
    each reads (after its activation if that comes first, including padding); `other_moments` are the moments of all
    other summands; `upstream` are the signals of the vertices before this one.
    """

    vertex: str
    in_degree: int
    edges: tuple[Edge, ...]
    edge_indices: tuple[int, ...]
    reads: tuple[float, ...]
    other_moments: Moments
    upstream: Mapping[str, VertexSignal]


# Sizes the weights that meet at a vertex: returns fan_in * var(W) for each weight edge.
Sizing = Callable[[IncomingWeights], Sequence[float]]


class Contributions(NamedTuple):
    """Hold what edges add to the field made at a vertex, and the weights by which walks pick them.

    One entry for each edge: its index in the graph's edges, the number of its source, its parts of the field's mean
    (first row) and variance (second row), and the second moment by which a walk back from the vertex picks it (for a
    weight: the variance of its matrix product).
    """

    edge_indices: Numbers
    sources: Numbers
    parts: Array
    walk_weights: Array


@dataclass(frozen=True)
class Signal:
    """Hold the signal at every vertex of a live graph, and fan_in * var(W) of every weight edge, by its index.

    `amplitudes` and `contributions` are indexed by the vertex's number; `field_means` and `field_variances` are those
    of the field made at each vertex.
    """

    graph: Graph
    vertices: Mapping[str, VertexSignal]
    weight_sizes: Mapping[int, float]
    reads: Mapping[int, float]
    amplitudes: tuple[FieldAmplitudes, ...]
    contributions: tuple[Contributions, ...]
    field_means: Array
    field_variances: Array

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The number of every vertex, in topological order."""
        return {vertex.name: number for number, vertex in enumerate(self.graph.vertices)}

    def shares(self, number: int) -> Array:
        """Return each field's share of a vertex's second moment."""
        fields, amplitudes, _ = self.amplitudes[number]
        means = amplitudes * self.field_means[fields]
        shares: Array = amplitudes**2 * self.field_variances[fields] + means * means.sum()
        return shares

    def second_moment_brought(self, edge_index: int) -> float:
        """Return the second moment that an edge alone brings to its target; 1 into a product."""
        edge = self.graph.edges[edge_index]
        merge = self.graph.merge[edge.target]
        if edge.steers or merge == "product":
            return 0.0 if edge.steers else 1.0
        if edge.weight is not None:
            return edge.moments_delivered(self.weight_sizes[edge_index] * self.reads[edge_index]).second_moment
        return block_share(edge) * edge.moments(self.vertices[edge.source].moments).second_moment


def propagate(graph: Graph, size: Sizing) -> Signal:
    """Return the signal at every vertex of a live graph; `size` sizes the weights that meet at a vertex."""
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow raises an error that names the vertex
        return _ForwardPass(graph).run(size)


class _NewField:
    """Add up the field that is made at one vertex, edge by edge."""

    __slots__ = ("edge_indices", "mean", "means", "sources", "variance", "variances", "walk_weights")

    def __init__(self) -> None:
        self.mean = self.variance = 0.0
        self.edge_indices: list[int] = []
        self.sources: list[int] = []
        self.means: list[float] = []
        self.variances: list[float] = []
        self.walk_weights: list[float] = []

    def add(self, edge_index: int, source: int, moments: Moments, amount: float) -> None:
        """Add the moments that one edge brings; `amount` is the weight by which walks pick it."""
        self.mean += moments.mean
        self.variance += moments.variance
        self.edge_indices.append(edge_index)
        self.sources.append(source)
        self.means.append(moments.mean)
        self.variances.append(moments.variance)
        self.walk_weights.append(amount)

    def contributions(self) -> Contributions:
        return Contributions(
            np.array(self.edge_indices, dtype=np.intp),
            np.array(self.sources, dtype=np.intp),
            np.array((self.means, self.variances)),
            np.array(self.walk_weights),
        )


class _ForwardPass:
    """Pass over a graph once: fields by vertex number, their amplitudes, and the vertices' signals."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        count = len(graph.vertices)
        self.number = {vertex.name: i for i, vertex in enumerate(graph.vertices)}
        self.incoming: list[list[tuple[int, Edge]]] = [[] for _ in range(count)]
        for edge_index, edge in enumerate(graph.edges):
            self.incoming[self.number[edge.target]].append((edge_index, edge))
        self.field_means, self.field_variances = np.zeros(count), np.zeros(count)
        self.amplitudes: list[FieldAmplitudes] = []
        self.moments: list[Moments] = []
        self.signals: dict[str, VertexSignal] = {}
        self.sizes: dict[int, float] = {}
        self.reads: dict[int, float] = {}
        self.contributions: list[Contributions] = []
        # What weights of one kind read from a vertex, by its number and the identity of their operators.
        self._read: dict[tuple[int, int], float] = {}

    def run(self, size: Sizing) -> Signal:
        inputs = set(self.graph.inputs)
        for number, vertex in enumerate(self.graph.vertices):
            fresh, arriving = _NewField(), _NO_FIELDS
            edges = self.incoming[number]
            if vertex.name in inputs:
                fresh.variance = 1.0
            elif vertex.merge == "product":
                self._product(edges, fresh)
            elif vertex.merge == "concat":
                arriving = self._concat(edges, fresh)
            else:
                arriving = self._sum(vertex.name, edges, fresh, size)
            self._finish(vertex.name, number, arriving, fresh)
        return Signal(
            self.graph,
            self.signals,
            self.sizes,
            self.reads,
            tuple(self.amplitudes),
            tuple(self.contributions),
            self.field_means,
            self.field_variances,
        )

    # Sum, concatenation, product

    def _sum(self, name: str, edges: list[tuple[int, Edge]], fresh: _NewField, size: Sizing) -> FieldAmplitudes:
        coherent: list[tuple[float, FieldAmplitudes]] = []
        weights = []
        for edge_index, edge in edges:
            if edge.weight is not None:
                weights.append((edge_index, edge))
            elif not edge.steers:
                self._add_unweighted(edge_index, edge, fresh, coherent)
        arriving = _combined(coherent)
        if weights:
            self._add_weighted(name, weights, arriving, fresh, size)
        return arriving

    def _add_unweighted(
        self, edge_index: int, edge: Edge, fresh: _NewField, coherent: list[tuple[float, FieldAmplitudes]]
    ) -> None:
        """Add what an edge without a weight brings: a coherent copy, and the rest of its moments as a new field."""
        source = self.number[edge.source]
        amplitude = edge.copy_amplitude()
        if amplitude:
            coherent.append((amplitude, self.amplitudes[source]))
        if _only_copies(edge.operators):
            return
        given = self.moments[source]
        arrives = edge.moments(given)
        made = Moments(
            arrives.mean - amplitude * given.mean, max(arrives.variance - amplitude**2 * given.variance, 0.0)
        )
        fresh.add(edge_index, source, made, made.second_moment)

    def _add_weighted(
        self, name: str, weights: list[tuple[int, Edge]], arriving: FieldAmplitudes, fresh: _NewField, size: Sizing
    ) -> None:
        """Size the weights that meet at a vertex and add what they bring."""
        carried = self._carried(arriving)
        # These loops run for every weight edge of the graph, so they look things up once and add local floats.
        number, known = self.number, self._read
        edges, edge_indices, sources, reads = [], [], [], []
        for edge_index, edge in weights:
            source = number[edge.source]
            key = (source, id(edge.operators))
            read = known.get(key)
            if read is None:
                assert edge.weight is not None
                read = known[key] = edge.weight.gain * edge.second_moment_read(self.moments[source])
            edges.append(edge)
            edge_indices.append(edge_index)
            sources.append(source)
            reads.append(read)
        rest = Moments(carried.mean + fresh.mean, carried.variance + fresh.variance)
        in_degree = self.graph.in_degree(name)
        sizes = size(
            IncomingWeights(name, in_degree, tuple(edges), tuple(edge_indices), tuple(reads), rest, self.signals)
        )
        self.sizes.update(zip(edge_indices, sizes, strict=True))
        self.reads.update(zip(edge_indices, reads, strict=True))
        delivered: dict[tuple[int, float], Moments] = {}
        for edge, edge_index, source, read, given in zip(edges, edge_indices, sources, reads, sizes, strict=True):
            variance = given * read
            kind = (id(edge.operators), variance)
            made = delivered.get(kind)
            if made is None:
                made = delivered[kind] = edge.moments_delivered(variance)
            fresh.add(edge_index, source, made, variance)

    def _concat(self, edges: list[tuple[int, Edge]], fresh: _NewField) -> FieldAmplitudes:
        """Join blocks side by side: second moments and squared amplitudes are averaged by width."""
        blocks = []
        for edge_index, edge in edges:
            source = self.number[edge.source]
            blocks.append(
                (edge_index, source, block_share(edge), edge.copy_amplitude(), edge.moments(self.moments[source]))
            )
        arriving = _side_by_side([(share * passes**2, self.amplitudes[s]) for _, s, share, passes, _ in blocks])
        mean = sum(share * moments.mean for _, _, share, _, moments in blocks)
        walk_weights = [share * moments.second_moment for _, _, share, _, moments in blocks]
        carried = self._carried(arriving)
        made = Moments(mean - carried.mean, max(sum(walk_weights) - mean**2 - carried.variance, 0.0))
        for (edge_index, source, *_), amount, part in zip(blocks, walk_weights, _parts(walk_weights), strict=True):
            fresh.add(edge_index, source, Moments(part * made.mean, part * made.variance), amount)
        return arriving

    def _product(self, edges: list[tuple[int, Edge]], fresh: _NewField) -> None:
        """Multiply factors, summing over a contraction's terms; every factor gets an equal part of the product."""
        sources = [self.number[edge.source] for _, edge in edges]
        factors = [(edge, source) for (_, edge), source in zip(edges, sources, strict=True) if not edge.steers]
        mean, second, terms = 1.0, 1.0, 1
        for edge, source in factors:
            moments = edge.moments(self.moments[source])
            mean *= moments.mean
            second *= moments.second_moment
            terms = max([terms, *(o.terms for o in edge.operators if isinstance(o, Contraction))])
        scale = math.prod(edge.copy_amplitude() for edge, _ in factors)
        if len(factors) == 2 and factors[0][1] == factors[1][1] and scale and terms == 1:
            # A square has the fourth moment of a Gaussian, unless entries have moved or it is a matrix product.
            given = self.moments[factors[0][1]]
            mean = scale * given.second_moment
            second = scale**2 * (3 * given.variance**2 + 6 * given.variance * given.mean**2 + given.mean**4)
        made = Moments(terms * mean / len(edges), terms * max(second - mean**2, 0.0) / len(edges))
        for (edge_index, _), source in zip(edges, sources, strict=True):
            fresh.add(edge_index, source, made, 1.0)

    # Finishing a vertex

    def _carried(self, arriving: FieldAmplitudes) -> Moments:
        """Return the moments of the fields that arrive as copies of earlier ones."""
        fields, amplitudes, _ = arriving
        mean = float(amplitudes @ self.field_means[fields])
        return Moments(mean, float(amplitudes**2 @ self.field_variances[fields]))

    def _finish(self, name: str, number: int, arriving: FieldAmplitudes, fresh: _NewField) -> None:
        self.field_means[number], self.field_variances[number] = fresh.mean, fresh.variance
        if fresh.variance or fresh.mean:
            arriving = _with_made(arriving, number)
        fields, amplitudes, copies = arriving
        means = amplitudes * self.field_means[fields]
        mean = float(means.sum())
        shares = amplitudes**2 * self.field_variances[fields] + means * mean
        second = float(shares.sum())
        if not math.isfinite(second):
            raise GraphError(
                f"the second moment at vertex '{name}' overflows; initialise with 'conserve', which keeps it near one"
            )
        met = float(copies**2 @ shares) / second if second > 0 else 1.0
        signal = VertexSignal(second, mean, met)
        self.amplitudes.append(arriving)
        self.contributions.append(fresh.contributions())
        self.signals[name] = signal
        self.moments.append(signal.moments)


def block_share(edge: Edge) -> float:
    """Return the share of a concatenation's entries that an edge brings; one if it joins no concatenation."""
    return math.prod(operator.fraction for operator in edge.operators if isinstance(operator, ConcatBlock))


def _only_copies(operators: Sequence[Operator]) -> bool:
    """Return whether all that an edge brings is a coherent copy of its source."""
    return all(
        isinstance(operator, Scale) or (operator.copy_amplitude() == 1.0 and not operator.adds_field)
        for operator in operators
    )


def _parts(walk_weights: list[float]) -> list[float]:
    """Return each amount's part of their sum; equal parts if all are zero."""
    total = sum(walk_weights)
    return [amount / total for amount in walk_weights] if total > 0 else [1.0 / len(walk_weights)] * len(walk_weights)


_ONE = np.ones(1)
_NO_FIELDS = FieldAmplitudes(np.empty(0, dtype=np.intp), np.empty(0), np.empty(0))


def _with_made(arriving: FieldAmplitudes, number: int) -> FieldAmplitudes:
    """Return the fields that arrive at a vertex together with the one made there."""
    if not len(arriving.fields):
        return FieldAmplitudes(np.array([number]), _ONE, _ONE)
    fields, amplitudes, copies = arriving
    return FieldAmplitudes(np.append(fields, number), np.append(amplitudes, 1.0), np.append(copies, 1.0))


def _combined(parts: list[tuple[float, FieldAmplitudes]]) -> FieldAmplitudes:
    """Add rows of amplitudes, each times a factor: copies of one field add in amplitude."""
    if not parts:
        return _NO_FIELDS
    if len(parts) == 1:
        factor, row = parts[0]
        return row if factor == 1.0 else FieldAmplitudes(row.fields, factor * row.amplitudes, factor * row.copies)
    fields = np.concatenate([row.fields for _, row in parts])
    if not len(fields):
        return _NO_FIELDS
    amplitudes = np.concatenate([factor * row.amplitudes for factor, row in parts])
    copies = np.concatenate([factor * row.copies for factor, row in parts])
    total, met = (np.bincount(fields, weights=values).astype(np.float64) for values in (amplitudes, copies))
    kept = np.flatnonzero(total)
    return FieldAmplitudes(kept, total[kept], met[kept])


def _side_by_side(parts: list[tuple[float, FieldAmplitudes]]) -> FieldAmplitudes:
    """Join rows of blocks, each with its share of the width: squared amplitudes add, and copies do not meet."""
    fields = np.concatenate([row.fields for _, row in parts])
    if not len(fields):
        return _NO_FIELDS
    power = np.concatenate([share * row.amplitudes**2 for share, row in parts])
    copies = np.concatenate([row.copies for _, row in parts])
    total = np.bincount(fields, weights=power).astype(np.float64)
    met = np.bincount(fields, weights=power * copies**2)
    kept = np.flatnonzero(total)
    return FieldAmplitudes(kept, np.sqrt(total[kept]), np.sqrt(met[kept] / total[kept]))
