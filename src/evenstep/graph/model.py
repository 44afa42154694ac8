"""The network as a value: vertices that join signals, edges that carry them, and the parameters that edges use.

A path through the graph is a path of the paper: it runs from an input to an output, and its depth is the sum of its
edges' depths (the activations on it). An edge applies its operators in order: an activation and then a weight (order
`pre`), a weight and then an activation (order `post`), or nothing at all (a skip).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal, get_args

from evenstep.arguments import shown
from evenstep.errors import GraphError
from evenstep.graph.fields import non_default_fields, validated
from evenstep.graph.operators import (
    OPERATORS,
    Activation,
    Moments,
    Norm,
    Operator,
    Scale,
    Steer,
    Weight,
    moments_of,
    operator_of,
)

Merge = Literal["sum", "concat", "product"]
# Notes that rules read: of a table whose rows data look up, and of a parameter that a weight is computed from.
EMBEDDING, COMPUTED_FROM = "embedding", "a weight is computed from it"
Role = Literal["weight", "bias", "gain", "unscaled"]
MERGES = frozenset({"sum", "concat", "product"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """Describe a parameter: its role, and the sizes that rules need.

    Its role is `weight`, `bias`, `gain` (of a norm), or `unscaled` if it is kept as it is. `fan_in` and `fan_out` are
    those of its first use; `measured` is the root mean square of its values when the network was traced. `parts` are
    the sizes of the projections that a fused weight holds, along its output axis.
    """

    name: str
    role: Role
    shape: tuple[int, ...] = ()
    fan_in: int = 1
    fan_out: int = 1
    trainable: bool = True
    measured: float | None = None
    note: str = ""
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Vertex:
    """Name a signal and say how its incoming edges join: by `sum`, `concat` or `product`."""

    name: str
    merge: Merge = "sum"


@dataclass(frozen=True, slots=True)
class Edge:
    """Carry a signal from `source` to `target` through operators that use `parameters`; a skip has no operators.

    `weight` is the operator with drawn weights, of which an edge has at most one, and `depth` the number of activations
    on the edge: both follow from the operators.
    """

    source: str
    target: str
    operators: tuple[Operator, ...] = ()
    parameters: tuple[str, ...] = ()
    weight: Weight | None = field(init=False, repr=False, compare=False, default=None)
    depth: int = field(init=False, repr=False, compare=False, default=0)
    _reading: int = field(init=False, repr=False, compare=False, default=0)  # the number of operators before the weight

    def __post_init__(self) -> None:
        depth, weight, reading = 0, None, len(self.operators)
        for place, operator in enumerate(self.operators):
            depth += operator.depth
            if isinstance(operator, Weight):
                if weight is not None:
                    raise GraphError(
                        f"edge {self.source}->{self.target} has two weights; put a vertex between them, because the "
                        "output of a weight is a new field"
                    )
                weight, reading = operator, place
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "_reading", reading)

    @property
    def before(self) -> tuple[Operator, ...]:
        """The operators before the weight; all operators if there is no weight."""
        return self.operators[: self._reading]

    @property
    def after(self) -> tuple[Operator, ...]:
        """The operators after the weight; none if there is no weight."""
        return self.operators[self._reading + 1 :]

    @property
    def normalises(self) -> bool:
        """Whether the edge resets the second moment of its signal."""
        return any(isinstance(operator, Norm) for operator in self.operators)

    @property
    def normalises_over_batch(self) -> bool:
        """Whether the edge resets the second moment using the batch's statistics."""
        return any(isinstance(operator, Norm) and operator.over_batch for operator in self.operators)

    @property
    def steers(self) -> bool:
        """Whether the edge only decides where its target's signal goes."""
        return any(isinstance(operator, Steer) for operator in self.operators)

    @property
    def activation(self) -> str | None:
        """The name of the edge's first activation."""
        return next((operator.name for operator in self.operators if isinstance(operator, Activation)), None)

    @property
    def activates_last(self) -> bool:
        """Whether an activation follows the edge's weight."""
        return any(isinstance(operator, Activation) for operator in self.after)

    def length(self, kernel_length: float) -> float:
        """Return what the edge adds to the length of a path."""
        return sum(operator.length(kernel_length) for operator in self.operators)

    def copy_amplitude(self) -> float:
        """Return the amplitude with which copies of a field pass; 0 if the output is a new field."""
        amplitude = 1.0
        for operator in self.operators:
            amplitude *= operator.copy_amplitude()
        return amplitude

    def moments(self, given: Moments) -> Moments:
        """Return the moments at the end of an edge without a weight, given those of its source."""
        return moments_of(self.operators, given)

    def second_moment_read(self, given: Moments) -> float:
        """Return the second moment that the edge's weight reads, given its source's moments, without padding."""
        return moments_of(self.before, given).second_moment

    def moments_delivered(self, variance: float) -> Moments:
        """Return the moments at the end of the edge if the weight's matrix product has this variance."""
        return moments_of(
            self.after, Moments(0.0, variance) if self.weight is None else self.weight.output_moments(variance)
        )

    def words(self) -> str:
        """Say what the edge does."""
        return ", then ".join(operator.words() for operator in self.operators) or "identity"


@dataclass(frozen=True)
class Graph:
    """Hold vertices in topological order, edges, and the parameters that the edges (or no edge) use.

    Two edges may join the same pair of vertices. Build a graph with `Graph.build`, which validates and sorts, or with
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

        `op` is `weight` (an activation and a weight, depth 1 unless given), `skip` (depth 0) or the name of any other
        operator. Vertices without incoming edges are the inputs, those without outgoing edges the outputs.
        """
        made = []
        names: dict[str, None] = {}
        if isinstance(edges, str) or not isinstance(edges, Iterable) or getattr(edges, "ndim", None) == 0:
            raise GraphError(f"edges is {shown(edges)}; give a list of (source, target, op)")
        for item in edges:
            if not isinstance(item, tuple | list):
                raise GraphError(
                    f"edge {shown(item)} is not a tuple; give (source, target, op) or (source, target, op, depth)"
                )
            if len(item) not in (3, 4):
                raise GraphError(
                    f"edge {item!r} has {len(item)} entries; give (source, target, op) or (source, target, op, depth)"
                )
            source, target, op = str(item[0]), str(item[1]), str(item[2])
            depth = item[3] if len(item) == 4 else int(op == "weight")
            if not isinstance(depth, int) or depth < 0:
                raise GraphError(f"edge {item!r} has depth {depth!r}; a depth is a whole number from 0 up")
            names.setdefault(source)
            names.setdefault(target)
            made.append(Edge(source, target, _plain_operators(op, depth, f"{source}->{target}")))
        targets, sources = {edge.target for edge in made}, {edge.source for edge in made}
        return cls.build(
            (Vertex(name) for name in names),
            made,
            inputs=(name for name in names if name not in targets),
            outputs=(name for name in names if name not in sources),
        )

    @cached_property
    def incoming(self) -> Mapping[str, tuple[Edge, ...]]:
        """Map every vertex to its incoming edges."""
        edges_of: dict[str, list[Edge]] = {vertex.name: [] for vertex in self.vertices}
        for edge in self.edges:
            edges_of[edge.target].append(edge)
        return {name: tuple(edges) for name, edges in edges_of.items()}

    @cached_property
    def outgoing(self) -> Mapping[str, tuple[Edge, ...]]:
        """Map every vertex to its outgoing edges."""
        edges_of: dict[str, list[Edge]] = {vertex.name: [] for vertex in self.vertices}
        for edge in self.edges:
            edges_of[edge.source].append(edge)
        return {name: tuple(edges) for name, edges in edges_of.items()}

    @cached_property
    def merge(self) -> Mapping[str, Merge]:
        """Map every vertex to the way its incoming edges join."""
        return {vertex.name: vertex.merge for vertex in self.vertices}

    def in_degree(self, vertex: str) -> int:
        """Count the summands that meet at a vertex, without edges that only steer; 1 for anything but a sum."""
        return self._in_degrees[vertex]

    @cached_property
    def _in_degrees(self) -> Mapping[str, int]:
        counts = {vertex.name: 0 for vertex in self.vertices}
        for edge in self.edges:
            if edge.weight is not None or not edge.steers:
                counts[edge.target] += 1
        return {name: count if self.merge[name] == "sum" else min(count, 1) for name, count in counts.items()}

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
        live.__dict__["_live"] = live  # already pruned
        return live

    @cached_property
    def convolutions(self) -> tuple[Edge, ...]:
        """The edges whose weights are kernels that slide along at least one axis."""
        return tuple(edge for edge in self.edges if edge.weight is not None and edge.weight.slides)

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
            "vertices": [non_default_fields(vertex) for vertex in self.vertices],
            "edges": [_edge_values(edge) for edge in self.edges],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "parameters": [non_default_fields(parameter) for parameter in self.parameters],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Graph:
        """Rebuild a graph from the output of `to_dict`; invalid values raise a `GraphError`."""
        try:
            return cls.build(
                (validated(Vertex(**v)) for v in values["vertices"]),
                (_edge_of(e) for e in values["edges"]),
                inputs=values["inputs"],
                outputs=values["outputs"],
                parameters=map(_parameter_of, values["parameters"]),
            )
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise GraphError(
                f"the graph is damaged ({type(error).__name__}: {error}); make it again with to_dict()"
            ) from None


def vertices_whose_paths_meet(
    graph: Graph, condition: Callable[[Edge], bool], *, forward: bool, every: bool
) -> set[str]:
    """Return the vertices from which every path, or any path, has an edge that meets a condition.

    Paths lead forward to the outputs (`forward`), or back to the inputs.

    >>> graph = Graph.from_edges([("x", "h", "weight"), ("h", "y", "norm"), ("x", "y", "skip")])
    >>> vertices_whose_paths_meet(graph, lambda edge: edge.normalises, forward=True, every=True)
    {'h'}
    """
    edges, end = (graph.outgoing, attrgetter("target")) if forward else (graph.incoming, attrgetter("source"))
    ends = graph.outputs if forward else graph.inputs
    quantifier = all if every else any
    vertices: set[str] = set()
    for vertex in reversed(graph.vertices) if forward else graph.vertices:
        onward = edges[vertex.name]
        stops_here = every and vertex.name in ends
        if onward and not stops_here and quantifier(condition(edge) or end(edge) in vertices for edge in onward):
            vertices.add(vertex.name)
    return vertices


def _plain_operators(op: str, depth: int, edge: str) -> tuple[Operator, ...]:
    """Return the operators of an edge that is given by a name and a depth only."""
    if op == "weight":
        return (Activation("relu", depth=depth), Weight()) if depth else (Weight(),)
    if op in ("skip", "identity"):
        return (Scale(depth=depth),) if depth else ()
    if op not in OPERATORS:
        raise GraphError(f"edge {edge} has op '{op}'; choose 'skip' or one of {_names(OPERATORS)}")
    return (OPERATORS[op](depth=depth),)


def _edge_values(edge: Edge) -> dict[str, Any]:
    values = {"source": edge.source, "target": edge.target, "operators": [o.to_dict() for o in edge.operators]}
    return {**values, "parameters": list(edge.parameters)} if edge.parameters else values


def _parameter_of(values: Mapping[str, Any]) -> Parameter:
    """Rebuild a parameter from plain values, or raise if a field is invalid."""
    sizes = {name: tuple(values.get(name, ())) for name in ("shape", "parts")}
    parameter = validated(Parameter(**{**values, **sizes}))
    for name, given in sizes.items():
        if not all(type(size) is int and size >= 0 for size in given):
            raise GraphError(f"{name} of parameter '{parameter.name}' is {shown(given)}; give whole numbers")
    if parameter.parts and sum(parameter.parts) not in parameter.shape:
        raise GraphError(
            f"parts of parameter '{parameter.name}' are {shown(parameter.parts)}, but its shape is "
            f"{shown(parameter.shape)}; give parts that add up to one of its sizes"
        )
    if parameter.role not in get_args(Role):
        raise GraphError(
            f"role of parameter '{parameter.name}' is {parameter.role!r}; choose one of {_names(get_args(Role))}"
        )
    return parameter


def _edge_of(values: Mapping[str, Any]) -> Edge:
    """Rebuild an edge from plain values, or raise if a field is invalid."""
    if "operators" not in values:
        raise GraphError(
            f"edge {values.get('source')}->{values.get('target')} has no operators, so an older version wrote it; make "
            "the file again with this version"
        )
    if not isinstance(values["operators"], list | tuple):
        raise GraphError(f"operators of edge {values.get('source')}->{values.get('target')} are not a list; give one")
    fields = {**values, "operators": tuple(operator_of(operator) for operator in values["operators"])}
    return Edge(**{**fields, "parameters": tuple(values.get("parameters", ()))})


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
        raise GraphError(f"two vertices are named '{twice}'; give every vertex its own name")
    for vertex in vertices:
        if vertex.merge not in MERGES:
            raise GraphError(f"vertex '{vertex.name}' merges by '{vertex.merge}'; choose one of {_names(MERGES)}")
    for edge in edges:
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
    for name in order:  # grows during the loop: Kahn's algorithm with the list as its queue
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
    vertex = next(iter(before))
    while vertex not in seen:
        seen.append(vertex)
        vertex = before[vertex]
    return [vertex, *reversed(seen[seen.index(vertex) :])]


def _reachable(starts: Iterable[str], edges: Mapping[str, tuple[Edge, ...]], end: str) -> set[str]:
    """Return the vertices reached from `starts` by following edges to their `end`."""
    reached = set(starts)
    queue = list(reached)
    ahead = attrgetter(end)
    for name in queue:
        for head in map(ahead, edges[name]):
            if head not in reached:
                reached.add(head)
                queue.append(head)
    return reached


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
