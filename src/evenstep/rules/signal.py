"""Second moments and path depths of every vertex at initialisation, in one topological pass.

Every vertex is written as a sum of *fresh fields*: what weights, activations and products newly make there is one
field, independent of all others but for its mean; skips, scalings and averages carry fields on as coherent
copies, which add in amplitude. With A_v[f] the amplitude with which field f arrives at vertex v, and each field
split into its mean and its variance,

    mean(v)          = sum_f A_v[f] mean(f)
    second_moment(v) = sum_f A_v[f]^2 variance(f) + mean(v)^2.

Field f's share of v is E[A_v[f] f v] = A_v[f]^2 variance(f) + A_v[f] mean(f) mean(v), and the depth moments of v
are those of its fields averaged by share: a path counts by the second moment it carries (`docs/theory.md`). Beside its
amplitude every field carries the number of its copies that met on the way, 1 unless skips bring the same field twice.
A norm ends all that: what leaves it is one new field. The depth of a field is the length of its paths
(`evenstep.graph.Edge.length`), of which a batch norm lets a part fade.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evenstep.errors import GraphError
from evenstep.graph import Edge, Graph
from evenstep.rules import activations

# What is left of a path's length behind a batch norm: gradients grow through it, the weights before it grow with them,
# and steps that such weights take are the smaller.
FADING = 0.84

Depths = tuple[float, float, float]
# The fields that arrive at a vertex: their numbers, their amplitudes, and how many copies of each came together.
Row = tuple[npt.NDArray[np.intp], npt.NDArray[np.float64], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class VertexSignal:
    """Say what arrives at a vertex, relative to inputs of second moment one.

    `depths` are E[L], E[L^2], E[L^3] over a random walk back to the input that picks each summand by its share;
    `copies` is the mean square, by share, of the number of copies of a field that skips have brought together.
    """

    second_moment: float
    mean: float
    depths: Depths
    copies: float = 1.0

    def read_by(self, edge: Edge) -> float:
        """Return the second moment that a weight edge reads, padding aside."""
        if not (edge.activates_first and edge.activation):
            return self.second_moment
        return activations.moments(edge.activation, self.mean, max(self.second_moment - self.mean**2, 0.0))[1]

    def squared_depth(self, offset: float) -> float:
        """Return E[(L + offset)^2]."""
        m1, m2, _ = self.depths
        return m2 + 2 * offset * m1 + offset**2

    def cubed_depth(self, offset: float) -> float:
        """Return E[(L + offset)^3]."""
        m1, m2, m3 = self.depths
        return m3 + 3 * offset * m2 + 3 * offset**2 * m1 + offset**3


UNIT = VertexSignal(1.0, 0.0, (0.0, 0.0, 0.0))  # a unit Gaussian


@dataclass(frozen=True, slots=True)
class Junction:
    """Describe a vertex whose weights are about to be sized.

    `weights` are the weight edges that reach it (at `positions` in the graph's edges) and `reads` the second moment
    each of them reads (after its own activation if that comes first, padding counted); `mean` and `variance` are those
    of everything else there.
    """

    vertex: str
    in_degree: int
    weights: tuple[Edge, ...]
    positions: tuple[int, ...]
    reads: tuple[float, ...]
    mean: float
    variance: float


# Sizes the weights of a junction: for each weight edge the value of fan_in * var(W).
Sizing = Callable[[Junction], Sequence[float]]


@dataclass(frozen=True)
class Signal:
    """Hold the signal of every vertex and fan_in * var(W) of every weight edge, by the edge's place in the graph.

    `shared` is, for the vertices it was asked for, the length that two independent walks back from there have in
    common, on average.
    """

    vertices: dict[str, VertexSignal]
    weight_gains: dict[int, float]
    shared: dict[str, float]


@dataclass
class _Fresh:
    """Add up the fields that are newly made at one vertex."""

    mean: float = 0.0
    variance: float = 0.0
    mean_depths: Depths = (0.0, 0.0, 0.0)
    variance_depths: Depths = (0.0, 0.0, 0.0)

    def add(self, mean: float, variance: float, depths: Depths) -> float:
        """Add a part and return its second moment."""
        a, b, c = depths
        if mean:
            self.mean += mean
            x, y, z = self.mean_depths
            self.mean_depths = (x + mean * a, y + mean * b, z + mean * c)
        if variance:
            self.variance += variance
            x, y, z = self.variance_depths
            self.variance_depths = (x + variance * a, y + variance * b, z + variance * c)
        return variance + mean**2


def propagate(graph: Graph, size: Sizing, ends: Iterable[str] = ()) -> Signal:
    """Return the signal of every vertex of a live graph, asking `size` for the weights where they are needed.

    `ends` are the vertices from which walks back are compared.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is an error of its own, at the vertex
        return _Pass(graph).run(size, ends)


class _Pass:
    """One pass over a graph: tables of fields by vertex number, rows of amplitudes, finished signals."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        count = len(graph.vertices)
        self.number = {vertex.name: i for i, vertex in enumerate(graph.vertices)}
        self.place = {id(edge): i for i, edge in enumerate(graph.edges)}
        # Per field: (variance, variance-weighted depths), (mean, mean-weighted depths).
        self.field_variance = np.zeros((count, 4))
        self.field_mean = np.zeros((count, 4))
        self.rows: dict[str, Row] = {}
        self.signals: dict[str, VertexSignal] = {}
        self.gains: dict[int, float] = {}
        # What the edges that make a vertex's own field brought to it, in second moment.
        self.brought: dict[str, list[tuple[Edge, float]]] = {vertex.name: [] for vertex in graph.vertices}
        # What weight edges see of a vertex, by all that the sight depends on: edges of one kind share it.
        self._seen: dict[tuple[str, str | None, bool, float], tuple[float, float, float, float]] = {}

    def run(self, size: Sizing, ends: Iterable[str]) -> Signal:
        inputs = set(self.graph.inputs)
        for vertex in self.graph.vertices:
            fresh = _Fresh()
            row: Row = _NO_FIELDS
            if vertex.name in inputs:
                fresh.add(0.0, 1.0, (0.0, 0.0, 0.0))
            elif vertex.merge == "product":
                self._product(vertex.name, fresh)
            elif vertex.merge == "concat":
                row = self._concat(vertex.name, fresh)
            else:
                row = self._sum(vertex.name, fresh, size)
            self._finish(vertex.name, row, fresh)
        return Signal(self.signals, self.gains, {end: self.shared(end) for end in ends})

    def shared(self, end: str) -> float:
        """Return the length of what two independent walks from a vertex back to the input pass both, on average.

        A walk picks each summand by its share. Both pass an edge with the square of the probability that one does;
        behind a norm, where steps do not average out, whatever one walk passes counts as shared.
        """
        free = {vertex.name: 0.0 for vertex in self.graph.vertices}  # the probability that a walk comes by, no norm yet
        bound = dict(free)  # behind a norm, times what has faded
        free[end], both = 1.0, 0.0
        made = np.zeros((2, len(free)))  # that it goes on through the field made there
        for number, name in reversed(list(enumerate(free))):
            if free[name] or bound[name]:
                fields, amplitudes, _ = self.rows[name]
                second = self.signals[name].second_moment
                if second > 0:
                    shares = self._of_fields(fields, amplitudes) / second
                    made[:, fields] += np.outer((free[name], bound[name]), shares)
            if not made[:, number].any():
                continue
            total = sum(amount for _, amount in self.brought[name])
            for edge, amount in self.brought[name] if total > 0 else ():
                alone, after = (made[:, number] * amount / total).tolist()
                both += edge.length * (alone**2 + after)
                if edge.normalises:
                    bound[edge.source] += (alone + after) * (FADING if edge.over_batch else 1.0)
                else:
                    free[edge.source] += alone
                    bound[edge.source] += after
        return both

    # What an edge reads

    def read(self, source: str, activation: str | None) -> tuple[float, float]:
        """Return mean and second moment of a vertex, behind an activation if one is named."""
        at = self.signals[source]
        if not activation:
            return at.mean, at.second_moment
        return activations.moments(activation, at.mean, max(at.second_moment - at.mean**2, 0.0))

    def shifted(self, source: str, length: float) -> Depths:
        """Return the depth moments of a vertex seen from behind an edge of the given length."""
        at = self.signals[source]
        m1, m2, _ = at.depths
        return m1 + length, m2 + 2 * length * m1 + length**2, at.cubed_depth(length)

    def seen(self, edge: Edge) -> tuple[float, float, float, float]:
        """Return the second moment a weight edge reads, padding aside, and the depth moments it hands on."""
        return (self.signals[edge.source].read_by(edge), *self.shifted(edge.source, edge.length))

    def note(self, edge: Edge, amount: float) -> None:
        """Remember what an edge brought to the field made at its target."""
        self.brought[edge.target].append((edge, amount))

    # The three ways of joining

    def _sum(self, name: str, fresh: _Fresh, size: Sizing) -> Row:
        coherent: list[tuple[float, Row]] = []
        weights = []
        for edge in self.graph.incoming[name]:
            if edge.op == "weight" or edge.op == "recurrent":
                weights.append(edge)
            else:
                self._carry(edge, fresh, coherent)
        row = _combined(coherent)
        if weights:
            self._weigh(name, weights, row, fresh, size, self.graph.in_degree(name))
        return row

    def _carry(self, edge: Edge, fresh: _Fresh, coherent: list[tuple[float, Row]]) -> None:
        """Add what a weightless edge brings: a coherent part and whatever it makes anew."""
        at = self.signals[edge.source]
        variance = max(at.second_moment - at.mean**2, 0.0)
        depths = self.shifted(edge.source, edge.length)
        if edge.over_batch:
            depths = (FADING * depths[0], FADING**2 * depths[1], FADING**3 * depths[2])
        row = self.rows[edge.source]
        if edge.op in ("identity", "unknown"):
            coherent.append((edge.amplitude, row))
        elif edge.op == "modulate":
            pass  # steers, brings nothing of its own
        elif edge.op == "norm":
            self.note(edge, fresh.add(0.0, 1.0 if variance > 0 else 0.0, depths))
        elif edge.op == "rms_norm":
            scale = 1.0 / at.second_moment if at.second_moment > 0 else 0.0
            self.note(edge, fresh.add(math.sqrt(scale) * at.mean, scale * variance, depths))
        elif edge.op == "average":
            coherent.append((edge.amplitude, row))
            rest = max(edge.gain - edge.amplitude**2, 0.0) * variance
            self.note(edge, fresh.add((1 - edge.amplitude) * at.mean, rest, depths))
        elif edge.op == "maximum":
            unit_mean, unit_second = activations.maximum_moments(edge.window)
            spread = math.sqrt(variance)
            own = variance * (unit_second - unit_mean**2)
            self.note(edge, fresh.add(at.mean + spread * unit_mean, own, depths))
        elif edge.op == "activation":
            mean, second = self.read(edge.source, edge.activation)
            self.note(edge, fresh.add(mean, max(second - mean**2, 0.0) / edge.window, depths))
        else:
            raise GraphError(f"edge {edge.source}->{edge.target} has op '{edge.op}', which carries no signal")

    def _weigh(self, name: str, weights: list[Edge], row: Row, fresh: _Fresh, size: Sizing, in_degree: int) -> None:
        """Size the weights that meet at a vertex and add what they bring."""
        carried_mean, carried_variance = self._of_row(row)
        # These loops run once for every weight edge of the graph: one look-up each, sums in plain local floats.
        known, sights = self._seen, []
        for edge in weights:
            key = (edge.source, edge.activation, edge.activation_first, edge.length)
            sight = known.get(key)
            if sight is None:
                sight = known[key] = self.seen(edge)
            sights.append(sight)
        reads = tuple([edge.gain * sight[0] for edge, sight in zip(weights, sights, strict=True)])
        positions = tuple([self.place[id(edge)] for edge in weights])
        mean, variance = carried_mean + fresh.mean, carried_variance + fresh.variance
        gains = size(Junction(name, in_degree, tuple(weights), positions, reads, mean, variance))
        self.gains.update(zip(positions, gains, strict=True))
        v0 = v1 = v2 = v3 = 0.0
        brought = self.brought[name]
        for edge, read, gain, (_, d1, d2, d3) in zip(weights, reads, gains, sights, strict=True):
            variance = gain * read
            brought.append((edge, variance))
            if edge.op != "weight" or not edge.activation_first:
                mean, second = behind_weight(edge, variance)
                variance = second - mean**2
                fresh.add(mean, 0.0, (d1, d2, d3))
            v0 += variance
            v1 += variance * d1
            v2 += variance * d2
            v3 += variance * d3
        fresh.add(0.0, v0, (v1 / v0, v2 / v0, v3 / v0) if v0 else (0.0, 0.0, 0.0))

    def _concat(self, name: str, fresh: _Fresh) -> Row:
        """Join blocks side by side: second moments add by width share, and so do squared amplitudes."""
        edges = self.graph.incoming[name]
        row = _side_by_side([(edge.gain, self.rows[edge.source]) for edge in edges])
        mean = sum(edge.gain * self.signals[edge.source].mean for edge in edges)
        second = sum(edge.gain * self.signals[edge.source].second_moment for edge in edges)
        carried_mean, carried_variance = self._of_row(row)
        weights = [edge.gain * self.signals[edge.source].second_moment for edge in edges]
        depths = _mixed([self.shifted(edge.source, edge.length) for edge in edges], weights)
        self.brought[name] += zip(edges, weights, strict=True)
        fresh.add(mean - carried_mean, max(second - mean**2 - carried_variance, 0.0), depths)
        return row

    def _product(self, name: str, fresh: _Fresh) -> None:
        """Multiply factors, summing over `window` terms: every factor is half of the change of a product of two."""
        edges = self.graph.incoming[name]
        mean, second, terms = 1.0, 1.0, 1
        for edge in edges:
            if edge.op == "modulate":
                continue
            at = self.signals[edge.source]
            mean *= edge.amplitude * at.mean
            second *= edge.amplitude**2 * at.second_moment
            terms = max(terms, edge.window)
        factors = [edge.source for edge in edges if edge.op != "modulate"]
        if len(factors) == 2 and factors[0] == factors[1]:  # a square: the fourth moment of a Gaussian
            at = self.signals[factors[0]]
            variance = max(at.second_moment - at.mean**2, 0.0)
            mean = edges[0].amplitude * edges[1].amplitude * at.second_moment
            scale = (edges[0].amplitude * edges[1].amplitude) ** 2
            second = scale * (3 * variance**2 + 6 * variance * at.mean**2 + at.mean**4)
        variance = terms * max(second - mean**2, 0.0)
        depths = _mixed([self.shifted(edge.source, edge.length) for edge in edges], [1.0] * len(edges))
        self.brought[name] += [(edge, 1.0) for edge in edges]
        fresh.add(terms * mean, variance, depths)

    # Closing a vertex

    def _of_row(self, row: Row) -> tuple[float, float]:
        """Return mean and variance of the fields a row carries."""
        fields, amplitudes, _ = row
        mean = float(amplitudes @ self.field_mean[fields, 0])
        return mean, float(amplitudes**2 @ self.field_variance[fields, 0])

    def _of_fields(self, fields: npt.NDArray[np.intp], amplitudes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return what every field owns of a vertex's second moment."""
        mean = amplitudes @ self.field_mean[fields, 0]
        own: npt.NDArray[np.float64] = amplitudes**2 * self.field_variance[fields, 0]
        shared: npt.NDArray[np.float64] = amplitudes * self.field_mean[fields, 0] * mean
        return own + shared

    def _finish(self, name: str, row: Row, fresh: _Fresh) -> None:
        number = self.number[name]
        self.field_variance[number] = (fresh.variance, *fresh.variance_depths)
        self.field_mean[number] = (fresh.mean, *fresh.mean_depths)
        if fresh.variance or fresh.mean:
            row = (np.append(row[0], number), np.append(row[1], 1.0), np.append(row[2], 1.0))
        fields, amplitudes, copies = row
        means = amplitudes @ self.field_mean[fields]
        shares = amplitudes**2 @ self.field_variance[fields] + means[0] * means
        second = float(shares[0])
        if not math.isfinite(second):
            raise GraphError(
                f"the second moment at vertex '{name}' overflows; initialise with 'conserve', which keeps it at one"
            )
        m1, m2, m3 = (float(share) / second if second > 0 else 0.0 for share in shares[1:])
        of_fields = self._of_fields(fields, amplitudes)
        met = float(copies**2 @ of_fields) / second if second > 0 else 1.0
        self.rows[name] = row
        self.signals[name] = VertexSignal(second, float(means[0]), (m1, m2, m3), met)


def behind_weight(edge: Edge, variance: float) -> tuple[float, float]:
    """Return mean and second moment of what a weight edge delivers when its matrix product has this variance."""
    if edge.op == "recurrent":
        return 0.0, _recurrent_second_moment(edge.activation or "tanh")
    if edge.activates_last and edge.activation:
        return activations.moments(edge.activation, 0.0, variance)
    return 0.0, variance


_NO_FIELDS: Row = (np.empty(0, dtype=np.intp), np.empty(0), np.empty(0))


def _combined(parts: list[tuple[float, Row]]) -> Row:
    """Add rows, each times a factor: copies of one field add in amplitude."""
    if not parts:
        return _NO_FIELDS
    if len(parts) == 1:
        factor, (fields, amplitudes, copies) = parts[0]
        return (fields, amplitudes, copies) if factor == 1.0 else (fields, factor * amplitudes, factor * copies)
    fields = np.concatenate([row[0] for _, row in parts])
    amplitudes = np.concatenate([factor * row[1] for factor, row in parts])
    copies = np.concatenate([factor * row[2] for factor, row in parts])
    if not len(fields):
        return _NO_FIELDS
    total, met = (np.bincount(fields, weights=values).astype(np.float64) for values in (amplitudes, copies))
    kept = np.flatnonzero(total)
    return kept, total[kept], met[kept]


def _side_by_side(parts: list[tuple[float, Row]]) -> Row:
    """Join rows of blocks, each with its share of the width: squared amplitudes add; copies do not meet."""
    fields = np.concatenate([row[0] for _, row in parts])
    power = np.concatenate([share * row[1] ** 2 for share, row in parts])
    copies = np.concatenate([row[2] for _, row in parts])
    if not len(fields):
        return _NO_FIELDS
    total = np.bincount(fields, weights=power).astype(np.float64)
    met = np.bincount(fields, weights=power * copies**2)
    kept = np.flatnonzero(total)
    return kept, np.sqrt(total[kept]), np.sqrt(met[kept] / total[kept])


def _mixed(depths: list[Depths], weights: list[float]) -> Depths:
    """Return the average of depth moments by weight (plain if all weights vanish)."""
    total = sum(weights)
    if total <= 0:
        weights, total = [1.0] * len(depths), float(len(depths))
    a, b, c = (sum(w * d[k] for w, d in zip(weights, depths, strict=True)) / total for k in range(3))
    return a, b, c


@lru_cache(maxsize=8)
def _recurrent_second_moment(kind: str) -> float:
    """Return the stationary second moment of a recurrent cell's output, its gates fed unit Gaussians (simulated)."""
    random = np.random.default_rng(0)
    state = cell = np.zeros(16384)

    def sigmoid(z: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return 0.5 * (1 + np.tanh(0.5 * z))

    for _ in range(48):
        spread = math.sqrt(1.0 + float(np.mean(state**2)))
        a, b, c, d = (spread * random.standard_normal(16384) for _ in range(4))
        if kind == "lstm":
            cell = sigmoid(a) * cell + sigmoid(b) * np.tanh(c)
            state = sigmoid(d) * np.tanh(cell)
        elif kind == "gru":
            state = sigmoid(a) * state + (1 - sigmoid(a)) * np.tanh(b)
        else:
            state = np.maximum(a, 0.0) if kind == "relu" else np.tanh(a)
    return float(np.mean(state**2))
