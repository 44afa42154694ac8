"""Hypothesis strategies: random codes, edge lists and relabellings."""

from __future__ import annotations

from hypothesis import strategies as st

from evenstep.graph import Edge, Graph, Vertex
from evenstep.graph.networks import Order
from evenstep.graph.operators import Operator, Scale, Weight
from tests.reference import dag_rows, row_paths

PlainEdge = tuple[str, str, str, int]

ORDERS: tuple[Order, ...] = ("pre", "post")
INITS: tuple[str, ...] = ("conserve", "degree", "he")

names = st.text(min_size=1, max_size=5)
orders = st.sampled_from(ORDERS)
inits = st.sampled_from(INITS)


@st.composite
def dag_codes(draw: st.DrawFn, *, max_vertices: int = 7, digits: str = "012") -> str:
    """Draw a code of the paper's space with 2 to `max_vertices` vertices and at least one live path."""
    rows = draw(st.integers(1, max_vertices - 1))
    row_texts = [draw(st.text(alphabet=digits, min_size=length, max_size=length)) for length in range(1, rows + 1)]
    code = "_".join(row_texts)
    if not row_paths(dag_rows(code)):  # give the last vertex an edge from the first: then there is a path
        code = "_".join([*row_texts[:-1], draw(st.sampled_from("12")) + row_texts[-1][1:]])
    return code


@st.composite
def isomorphic_code(draw: st.DrawFn, code: str) -> tuple[str, dict[int, int]]:
    """Draw another code of the same DAG, its inner vertices numbered in another topological order.

    Returns the code and the new number of every old vertex.
    """
    rows = code.split("_")
    last = len(rows)
    waiting = set(range(1, last))
    order = [0]
    while waiting:
        ready = sorted(v for v in waiting if all(digit == "0" or s in order for s, digit in enumerate(rows[v - 1])))
        order.append(draw(st.sampled_from(ready)))
        waiting.remove(order[-1])
    order.append(last)
    new = {old: number for number, old in enumerate(order)}
    texts = []
    for target in order[1:]:
        texts.append("".join(rows[target - 1][s] if s < target else "0" for s in order[: new[target]]))
    return "_".join(texts), new


@st.composite
def edge_lists(draw: st.DrawFn, *, max_vertices: int = 8) -> list[PlainEdge]:
    """Draw the edges of a DAG in any order: arbitrary names, depths 0 to 3, several edges between a pair."""
    count = draw(st.integers(2, max_vertices))
    labels = draw(st.lists(names, min_size=count, max_size=count, unique=True))
    pairs = st.integers(0, count - 2).flatmap(lambda s: st.tuples(st.just(s), st.integers(s + 1, count - 1)))
    drawn = draw(
        st.lists(st.tuples(pairs, st.sampled_from(("weight", "skip")), st.integers(0, 3)), min_size=1, max_size=14)
    )
    return [(labels[source], labels[target], op, depth) for (source, target), op, depth in drawn]


def plain_operators(op: str, depth: int) -> tuple[Operator, ...]:
    """Return a skip or a weight that counts as so many activations."""
    return (Scale(depth=depth),) if op == "skip" else (Weight(depth=depth),)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph with any inputs and outputs; parts of it, or all, may be dead."""
    edges = draw(edge_lists())
    labels = list(dict.fromkeys(name for edge in edges for name in edge[:2]))
    ends = st.lists(st.sampled_from(labels), min_size=1, max_size=3, unique=True)
    return Graph.build(
        [Vertex(name) for name in draw(st.permutations(labels))],
        [Edge(s, t, plain_operators(op, depth)) for s, t, op, depth in edges],
        inputs=draw(ends),
        outputs=draw(ends),
    )


@st.composite
def relabellings(draw: st.DrawFn, graph: Graph) -> dict[str, str]:
    """Draw new names for all vertices of a graph, old names among them."""
    old = [vertex.name for vertex in graph.vertices]
    pool = st.one_of(st.sampled_from(old), names)
    fresh = draw(st.lists(pool, min_size=len(old), max_size=len(old), unique=True))
    return dict(zip(old, fresh, strict=True))
