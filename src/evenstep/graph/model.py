"""The network as a value: vertices that join signals, edges that carry them, parameters that sit on edges.

A path through the graph is a path of the paper: it runs from an input to an output, and its depth is the sum of
its edges' depths (the activations it passes). An edge may be composite, as in the paper's pictures: an activation
followed by a weight (`activation_first`, the order `pre`), or a weight followed by an activation (the order
`post`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal, TypeVar

from evenstep.errors import GraphError

Merge = Literal["sum", "concat", "product"]
Role = Literal["weight", "bias", "gain", "raw"]

OPS = frozenset(
    {
        "weight",  # a fresh, independent, zero-mean field: linear, convolution, embedding, bilinear
        "recurrent",  # one opaque weighted block: LSTM, GRU, RNN
        "identity",  # a coherent copy, times `amplitude`: skip, reshape, dropout, scalar multiple
        "activation",  # a nonlinearity standing alone, averaged over `window` positions (a variance: squares)
        "norm",  # takes the mean out and resets the second moment to one: batch, layer, group, instance
        "rms_norm",  # resets the second moment to one, keeps the mean
        "average",  # a mean over `window` positions: pooling, mean
        "maximum",  # a maximum over `window` positions
        "modulate",  # steers its target without setting its size: the queries and keys of attention
        "unknown",  # let through on request; outside the theory
    }
)
MERGES = frozenset({"sum", "concat", "product"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """Describe one parameter: what it is for and the sizes the rules need.

    `fan_in` and `fan_out` count what one output unit reads and one input unit feeds, kernel positions included;
    `kernel_axes` is the number of axes a convolution's kernel slides along (0 for everything else, whatever its
    shape) and `kernel_size` the geometric mean of its sides; `measured` is the root mean square of its values when
    the network was traced.
    """

    name: str
    role: Role
    shape: tuple[int, ...] = ()
    fan_in: int = 1
    fan_out: int = 1
    kernel_size: float = 1.0
    kernel_axes: int = 0
    trainable: bool = True
    measured: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Vertex:
    """Name a signal and say how the edges that reach it join: by `sum`, `concat` or `product`."""

    name: str
    merge: Merge = "sum"


@dataclass(frozen=True, slots=True)
class Edge:
    """Carry a signal from `source` to `target`.

    `depth` counts the activations on the edge; `gain` is the share of second moment it passes on beside its weight
    and activation (1/`window` for an average, the part of a kernel's taps that meets no padding for a convolution,
    the block's share of the width into a concat); `amplitude` multiplies a coherent copy; `over_batch` marks a norm
    whose statistics are the batch's.
    """

    source: str
    target: str
    op: str
    parameters: tuple[str, ...] = ()
    fan_in: int = 1
    fan_out: int = 1
    kernel_size: float = 1.0
    depth: int = 0
    gain: float = 1.0
    amplitude: float = 1.0
    activation: str | None = None
    activation_first: bool = True
    window: int = 1
    over_batch: bool = False

    @property
    def length(self) -> float:
        """What the edge adds to the length of a path: its activations, and a kernel of side k counts as k weights."""
        return self.depth + (self.kernel_size - 1.0 if self.op == "weight" else 0.0)

    @property
    def has_weight(self) -> bool:
        """Say whether the edge multiplies by trained weights."""
        return self.op in ("weight", "recurrent")

    @property
    def normalises(self) -> bool:
        """Say whether the edge resets the second moment of what it carries."""
        return self.op in ("norm", "rms_norm")

    @property
    def activates_first(self) -> bool:
        """Say whether the edge's weight reads its source through an activation (a recurrent block has its own)."""
        return self.op == "weight" and self.activation is not None and self.activation_first

    @property
    def activates_last(self) -> bool:
        """Say whether an activation follows the edge's weight."""
        return self.op == "weight" and self.activation is not None and not self.activation_first


@dataclass(frozen=True)
class Graph:
    """Hold vertices in topological order, edges, and the parameters that the edges (or no edge) use.

    Two edges may join the same pair of vertices. Build one with `Graph.build`, which validates and sorts, or with
    `Graph.from_edges` from plain tuples.

    >>> graph = Graph.from_edges([("x", "y", "weight"), ("x", "y", "skip")])
    >>> graph.in_degree("y")
    2
    """

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[Parameter, ...] = field(default=())

    @classmethod
    def build(
        cls,
        vertices: Iterable[Vertex],
        edges: Iterable[Edge],
        *,
        inputs: Iterable[str],
        outputs: Iterable[str],
        parameters: Iterable[Parameter] = (),
    ) -> Graph:
        """Return the validated graph with its vertices in topological order."""
        vertices, edges = tuple(vertices), tuple(edges)
        inputs, outputs, parameters = tuple(inputs), tuple(outputs), tuple(parameters)
        _validate(vertices, edges, parameters)
        by_name = {vertex.name: vertex for vertex in vertices}
        order = _topological_order(tuple(by_name), edges)
        _validate_ends(by_name, inputs, outputs)
        return cls(tuple(by_name[name] for name in order), edges, inputs, outputs, parameters)

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[Any, ...]]) -> Graph:
        """Build a graph from tuples `(source, target, op)` or `(source, target, op, depth)`.

        `op` is `weight` (a weight and an activation, depth 1 unless given), `skip` (depth 0) or any operator of
        an `Edge`. Vertices without incoming edges are the inputs, those without outgoing edges the outputs.
        """
        made = []
        names: dict[str, None] = {}
        for item in edges:
            if len(item) not in (3, 4):
                raise GraphError(
                    f"edge {item!r} has {len(item)} entries; give (source, target, op) or (source, target, op, depth)"
                )
            source, target, op = str(item[0]), str(item[1]), str(item[2])
            op = "identity" if op == "skip" else op
            depth = item[3] if len(item) == 4 else int(op == "weight")
            if not isinstance(depth, int) or depth < 0:
                raise GraphError(f"edge {item!r} has depth {depth!r}; a depth is a whole number from 0 up")
            names.setdefault(source)
            names.setdefault(target)
            activation = "relu" if op == "weight" and depth else None
            made.append(Edge(source, target, op, depth=depth, activation=activation))
        targets, sources = {edge.target for edge in made}, {edge.source for edge in made}
        return cls.build(
            (Vertex(name) for name in names),
            made,
            inputs=(name for name in names if name not in targets),
            outputs=(name for name in names if name not in sources),
        )

    @cached_property
    def incoming(self) -> Mapping[str, tuple[Edge, ...]]:
        """Map every vertex to the edges that reach it."""
        found: dict[str, list[Edge]] = {vertex.name: [] for vertex in self.vertices}
        for edge in self.edges:
            found[edge.target].append(edge)
        return {name: tuple(edges) for name, edges in found.items()}

    @cached_property
    def outgoing(self) -> Mapping[str, tuple[Edge, ...]]:
        """Map every vertex to the edges that leave it."""
        found: dict[str, list[Edge]] = {vertex.name: [] for vertex in self.vertices}
        for edge in self.edges:
            found[edge.source].append(edge)
        return {name: tuple(edges) for name, edges in found.items()}

    @cached_property
    def merge(self) -> Mapping[str, Merge]:
        """Map every vertex to the way its incoming edges join."""
        return {vertex.name: vertex.merge for vertex in self.vertices}

    def in_degree(self, vertex: str) -> int:
        """Count the summands that meet at a vertex: what only steers is none; one for anything but a sum."""
        count = sum(edge.op != "modulate" for edge in self.incoming[vertex])
        return count if self.merge[vertex] == "sum" else min(count, 1)

    def live(self) -> Graph:
        """Return the graph without the edges and vertices that lie on no path from an input to an output."""
        return self._live

    @cached_property
    def _live(self) -> Graph:
        forward = _reachable(self.inputs, self.outgoing, "target")
        alive = forward & _reachable(self.outputs, self.incoming, "source")
        if not alive:
            raise GraphError(
                f"no live path leads from the inputs {_names(self.inputs)} to the outputs {_names(self.outputs)}; "
                "connect them by at least one chain of edges"
            )
        if len(alive) == len(self.vertices):
            return self
        live = Graph(
            tuple(vertex for vertex in self.vertices if vertex.name in alive),
            tuple(edge for edge in self.edges if edge.source in alive and edge.target in alive),
            tuple(name for name in self.inputs if name in alive),
            tuple(name for name in self.outputs if name in alive),
            self.parameters,
        )
        live.__dict__["_live"] = live  # known already: nothing left to prune
        return live

    @cached_property
    def convolutions(self) -> tuple[Parameter, ...]:
        """The weights on edges of this graph that are kernels and slide along at least one axis."""
        used = {name for edge in self.edges if edge.has_weight for name in edge.parameters}
        return tuple(p for p in self.parameters if p.kernel_axes and p.role == "weight" and p.name in used)

    def relabelled(self, names: Mapping[str, str]) -> Graph:
        """Return the same graph with its vertices renamed (names left out stay)."""

        def new(name: str) -> str:
            return names.get(name, name)

        return Graph.build(
            (replace(vertex, name=new(vertex.name)) for vertex in self.vertices),
            (replace(edge, source=new(edge.source), target=new(edge.target)) for edge in self.edges),
            inputs=map(new, self.inputs),
            outputs=map(new, self.outputs),
            parameters=self.parameters,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as plain values for JSON; defaults are left out."""
        return {
            "vertices": [_sparse(vertex) for vertex in self.vertices],
            "edges": [_sparse(edge) for edge in self.edges],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "parameters": [_sparse(parameter) for parameter in self.parameters],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Graph:
        """Rebuild a graph from `to_dict`."""
        return cls.build(
            (_checked(Vertex(**v)) for v in values["vertices"]),
            (_checked(Edge(**{**e, "parameters": tuple(e.get("parameters", ()))})) for e in values["edges"]),
            inputs=values["inputs"],
            outputs=values["outputs"],
            parameters=(_checked(Parameter(**{**p, "shape": tuple(p.get("shape", ()))})) for p in values["parameters"]),
        )


Part = TypeVar("Part", Vertex, Edge, Parameter)


def _checked(value: Part) -> Part:
    """Return a part read from text, or raise if a number in it is none."""
    for f in fields(value):
        given = getattr(value, f.name)
        if type(f.default) is int and (type(given) is not int or given < 0):
            raise GraphError(f"{f.name} of {value} is {given!r}; give a whole number")
        if type(f.default) is float and not (type(given) in (int, float) and math.isfinite(given)):
            raise GraphError(f"{f.name} of {value} is {given!r}; give a number")
    return value


def _sparse(value: Vertex | Edge | Parameter) -> dict[str, Any]:
    """Return a dataclass as a dictionary without the fields that hold their default."""
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}


def _validate(
    vertices: tuple[Vertex, ...],
    edges: tuple[Edge, ...],
    parameters: tuple[Parameter, ...],
) -> None:
    names = {vertex.name for vertex in vertices}
    if len(vertices) < 2:
        raise GraphError(f"a graph needs at least two vertices and one edge; got {len(vertices)} vertices")
    if len(names) != len(vertices):
        twice = _first_twice([vertex.name for vertex in vertices])
        raise GraphError(f"'{twice}' names two vertices, which share a name; give every vertex its own")
    for vertex in vertices:
        if vertex.merge not in MERGES:
            raise GraphError(f"vertex '{vertex.name}' merges by '{vertex.merge}'; choose one of {_names(MERGES)}")
    for edge in edges:
        if edge.op not in OPS:
            raise GraphError(f"edge {edge.source}->{edge.target} has op '{edge.op}'; choose one of {_names(OPS)}")
        for end in (edge.source, edge.target):
            if end not in names:
                raise GraphError(f"edge {edge.source}->{edge.target} names vertex '{end}', which does not exist")
    declared = [parameter.name for parameter in parameters]
    known = set(declared)
    if len(known) != len(declared):
        raise GraphError(f"parameter '{_first_twice(declared)}' is declared twice; declare every parameter once")
    for edge in edges:
        for name in edge.parameters:
            if name not in known:
                raise GraphError(
                    f"edge {edge.source}->{edge.target} uses parameter '{name}', which the graph does not declare; "
                    "declare it in `parameters`"
                )


def _validate_ends(names: Mapping[str, Vertex], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    for label, ends in (("input", inputs), ("output", outputs)):
        if not ends:
            raise GraphError(f"the graph has no {label} vertex; name at least one")
        for end in ends:
            if end not in names:
                raise GraphError(f"{label} '{end}' is not a vertex of the graph")


def _first_twice(names: list[str]) -> str:
    """Return the first name that occurs a second time."""
    return next(name for i, name in enumerate(names) if name in names[:i])


def _topological_order(names: tuple[str, ...], edges: tuple[Edge, ...]) -> list[str]:
    """Return the vertices so that every edge points forward; raise with the cycle if there is one."""
    following: dict[str, list[str]] = {name: [] for name in names}
    waiting = dict.fromkeys(names, 0)
    for edge in edges:
        following[edge.source].append(edge.target)
        waiting[edge.target] += 1
    order = [name for name in names if not waiting[name]]
    for name in order:  # grows while it is read: Kahn's algorithm with the list as the queue
        for target in following[name]:
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    if len(order) < len(names):
        raise GraphError(f"the graph has a cycle: {' -> '.join(_cycle(waiting, edges))}; remove one of its edges")
    return order


def _cycle(waiting: Mapping[str, int], edges: tuple[Edge, ...]) -> list[str]:
    """Walk backwards among the vertices that never became ready until one repeats."""
    before = {edge.target: edge.source for edge in edges if waiting[edge.source] and waiting[edge.target]}
    seen: list[str] = []
    at = next(iter(before))
    while at not in seen:
        seen.append(at)
        at = before[at]
    return [at, *reversed(seen[seen.index(at) :])]


def _reachable(starts: Iterable[str], edges: Mapping[str, tuple[Edge, ...]], end: str) -> set[str]:
    """Return the vertices reached from `starts` by following edges to the named end."""
    found = set(starts)
    queue = list(found)
    ahead = attrgetter(end)
    for name in queue:
        for head in map(ahead, edges[name]):
            if head not in found:
                found.add(head)
                queue.append(head)
    return found


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
