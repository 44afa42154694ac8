"""Written-out norms: a signal divided by its own root mean square is a norm, however it is computed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from evenstep.graph.expression_names import expression_of, is_plain, parse
from evenstep.graph.expressions import values
from evenstep.graph.model import Edge, Graph
from evenstep.graph.operators import Activation, Average, Operator, RMSNorm, Scale, Steer, scaled

# Functions that compute a signal's root mean square, or one over it.
_ROOT_MEAN_SQUARE = (
    ["square", Average.op, "rsqrt"],
    ["square", Average.op, "sqrt", "reciprocal"],
    ["square", Average.op, "sqrt", Steer.op],
)
_ROOT = re.compile(r"(r?sqrt)\(([\d.e+-]+) \+ x\)")  # of a number and the mean square
_LARGEST_EPSILON = 1e-2  # the largest number under a root that does not change a norm


def with_norms(graph: Graph) -> Graph:
    """Return the graph with every signal that is divided by its own root mean square replaced by a norm."""
    norms = {vertex.name: edge for vertex in graph.vertices if (edge := _norm(graph, vertex.name))}
    if not norms:
        return graph
    vertices = [replace(vertex, merge="sum") if vertex.name in norms else vertex for vertex in graph.vertices]
    edges = [norms.get(edge.target, edge) for edge in graph.edges]
    return Graph.build(
        vertices, dict.fromkeys(edges), inputs=graph.inputs, outputs=graph.outputs, parameters=graph.parameters
    ).live()


def _norm(graph: Graph, vertex: str) -> Edge | None:
    """Return the norm that two edges into a vertex amount to, as an edge; None if they do not."""
    incoming = graph.incoming[vertex]
    if len(incoming) != 2:
        return None
    for signal, other in (incoming, incoming[::-1]):
        if signal.parameters or not all(isinstance(operator, Scale) for operator in signal.operators):
            continue
        for start in (signal.source, *_centred(graph, signal.source)):
            since = _operators_since(graph, start, other)
            if _names(since) in _ROOT_MEAN_SQUARE:
                factor = _of_one(since) * signal.copy_amplitude()
                is_one = math.isclose(factor, 1.0, rel_tol=_LARGEST_EPSILON)
                return Edge(signal.source, vertex, (RMSNorm(), *scaled(1.0 if is_one else factor)))
    return None


def _centred(graph: Graph, vertex: str) -> Iterator[str]:
    """Yield the vertex whose mean a vertex has subtracted, if it is such a difference."""
    incoming = graph.incoming[vertex]
    if len(incoming) == 2 and graph.merge[vertex] == "sum":
        for signal, mean in (incoming, incoming[::-1]):
            if not signal.operators and _names(_operators_since(graph, signal.source, mean)) == [Average.op]:
                yield signal.source


def _operators_since(graph: Graph, vertex: str, edge: Edge) -> list[Operator]:
    """Return the operators on the only path from a vertex to an edge's end; none if there is no such path."""
    operators = list(edge.operators)
    while edge.source != vertex:
        before = graph.incoming[edge.source]
        if len(before) != 1 or edge.parameters:
            return []
        (edge,) = before
        operators = [*edge.operators, *operators]
    return [] if edge.parameters else operators


def _names(operators: list[Operator]) -> list[str]:
    """Name operators, leaving out scales and numbers under a root, which do not change a norm."""
    names = []
    for operator in operators:
        if isinstance(operator, Activation):
            root = _ROOT.fullmatch(operator.name)
            if root and float(root[2]) <= _LARGEST_EPSILON:
                names.append(root[1])
            else:
                names.append("square" if _squares(operator.name) else operator.name)
            names += [Average.op] if operator.window > 1 else []
        elif not isinstance(operator, Scale):
            names.append(operator.op)
    return names


def _of_one(operators: list[Operator]) -> float:
    """Return the norm's factor: what operators make of a signal whose entries are all one."""
    value = 1.0
    for operator in operators:
        if isinstance(operator, Scale):
            value *= operator.factor
        elif isinstance(operator, Steer):
            value = 1.0 / value
        elif isinstance(operator, Activation):
            value = float(values(expression_of(operator.name), np.array([value]))[0])
    return value


def _squares(name: str) -> bool:
    """Return whether an activation squares its input, possibly times a number, which does not change a norm either."""
    if is_plain(name):
        return name == "square"
    inputs = np.array([-2.0, -0.5, 1.0, 3.0])
    ratios = values(parse(name), inputs) / inputs**2
    return bool(ratios[0] > 0 and np.allclose(ratios, ratios[0]))
