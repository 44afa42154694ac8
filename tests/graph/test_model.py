"""Check the graph itself: validation, pruning, relabelling, plain values."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import GraphError
from evenstep.graph import Edge, Graph, Parameter, Vertex, dag_cnn_graph, dag_mlp_graph, nasbench201_graph, path_moments
from evenstep.graph.operators import (
    OPERATORS,
    Activation,
    Average,
    ConcatBlock,
    Contraction,
    Dropout,
    Gate,
    LogSoftmax,
    Maximum,
    Measured,
    Norm,
    Offset,
    Padding,
    Recurrent,
    RMSNorm,
    RunningSum,
    Scale,
    Slice,
    Steer,
    Unknown,
    Weight,
)
from tests import reference
from tests.strategies import PlainEdge, dag_codes, edge_lists, graphs, relabellings

EXAMPLES = [
    dag_mlp_graph("2_12_112", width=8, inputs=4),
    dag_cnn_graph("2_12", width=4, norm="batch"),
    nasbench201_graph("3_24_140", channels=4),
]


# Building


@given(edge_lists())
def test_vertices_come_in_topological_order_whatever_the_order_of_the_edges(edges: list[PlainEdge]) -> None:
    graph = Graph.from_edges(edges)
    place = {vertex.name: i for i, vertex in enumerate(graph.vertices)}
    assert all(place[edge.source] < place[edge.target] for edge in graph.edges)
    assert set(place) == {name for edge in edges for name in edge[:2]}
    assert set(graph.inputs) == set(place) - {target for _, target, _, _ in edges}
    assert set(graph.outputs) == set(place) - {source for source, _, _, _ in edges}


def test_plain_edges_have_the_paper_s_depths_unless_given() -> None:
    graph = Graph.from_edges([("x", "y", "weight"), ("x", "y", "skip"), ("y", "z", "weight", 0), ("y", "z", "skip", 3)])
    assert [edge.depth for edge in graph.edges] == [1, 0, 0, 3]
    assert [edge.weight is not None for edge in graph.edges] == [True, False, True, False]
    assert [edge.activation for edge in graph.edges] == ["relu", None, None, None]


def test_vertices_of_plain_edges_may_be_numbers() -> None:
    assert Graph.from_edges([(0, 1, "weight"), (1, 2, "skip")]).inputs == ("0",)


@given(edge_lists())
def test_in_degree_counts_parallel_edges(edges: list[PlainEdge]) -> None:
    graph = Graph.from_edges(edges)
    for vertex in graph.vertices:
        assert graph.in_degree(vertex.name) == sum(target == vertex.name for _, target, _, _ in edges)
        assert len(graph.outgoing[vertex.name]) == sum(source == vertex.name for source, _, _, _ in edges)


@pytest.mark.parametrize(("merge", "expected"), [("sum", 2), ("concat", 1), ("product", 1)])
def test_only_sums_have_several_summands(merge: Any, expected: int) -> None:
    graph = Graph.build(
        [Vertex("a"), Vertex("b", merge)],
        [Edge("a", "b"), Edge("a", "b")],
        inputs=["a"],
        outputs=["b"],
    )
    assert graph.in_degree("b") == expected
    assert graph.in_degree("a") == 0


# Bad input


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ([("x", "a", "weight"), ("a", "b", "weight"), ("b", "a", "skip"), ("b", "y", "weight")], {"a", "b"}),
        ([("x", "a", "weight"), ("a", "a", "skip"), ("a", "y", "weight")], {"a"}),
        ([("a", "b", "weight"), ("b", "c", "weight"), ("c", "a", "weight")], {"a", "b", "c"}),
        ([("a", "b", "weight"), ("b", "a", "weight"), ("b", "y", "weight")], {"a", "b"}),
        ([("x", "a", "weight"), ("a", "b", "weight"), ("b", "a", "weight")], {"a", "b"}),
    ],
)
def test_a_cycle_is_named_vertex_by_vertex(edges: list[tuple[str, str, str]], cycle: set[str]) -> None:
    with pytest.raises(GraphError, match="cycle: ") as caught:
        Graph.from_edges(edges)
    walk = str(caught.value).split("cycle: ")[1].split(";")[0].split(" -> ")
    assert set(walk) == cycle
    assert walk[0] == walk[-1]
    # Every step is an edge of the graph.
    assert set(pairwise(walk)) <= {edge[:2] for edge in edges}


@given(edge_lists(max_vertices=6), st.data())
def test_any_edge_that_closes_a_cycle_is_refused(edges: list[PlainEdge], data: st.DataObject) -> None:
    source, target, _, _ = data.draw(st.sampled_from(edges))
    with pytest.raises(GraphError, match="cycle: "):
        Graph.from_edges([*edges, (target, source, "skip", 0)])


def _build(vertices: list[Vertex], edges: list[Edge], **changes: Any) -> Graph:
    return Graph.build(vertices, edges, **{"inputs": ("a",), "outputs": ("b",), **changes})


A, B = Vertex("a"), Vertex("b")
AB = Edge("a", "b")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Graph.from_edges([]), ("at least two vertices", "0 vertices")),
        (lambda: Graph.from_edges([("a", "b", "convolve")]), ("a->b", "'convolve'", "'weight'")),
        (lambda: Graph.from_edges([("a", "b")]), ("('a', 'b')", "2 entries", "(source, target, op)")),
        (lambda: Graph.from_edges([("a", "b", "skip", -1)]), ("('a', 'b', 'skip', -1)", "depth -1")),
        (lambda: Graph.from_edges([("a", "b", "skip", 0.5)]), ("depth 0.5", "whole number")),
        (lambda: Graph.from_edges([("a", "b", "skip", "1")]), ("depth '1'",)),
        (lambda: _build([A], []), ("at least two vertices", "1 vertices")),
        (lambda: _build([A, A, B], [AB]), ("'a'", "two vertices are named")),
        (lambda: _build([A, Vertex("b", "max")], [AB]), ("'b'", "'max'", "'concat'")),  # type: ignore[arg-type]
        (lambda: _build([A, B], [AB, Edge("a", "c")]), ("a->c", "'c'", "does not exist")),
        (lambda: _build([A, B], [AB, Edge("z", "b")]), ("z->b", "'z'", "does not exist")),
        (lambda: _build([A, B], [AB], inputs=()), ("no input",)),
        (lambda: _build([A, B], [AB], outputs=()), ("no output",)),
        (lambda: _build([A, B], [AB], inputs=("q",)), ("input 'q'", "not a vertex")),
        (lambda: _build([A, B], [AB], outputs=("q",)), ("output 'q'", "not a vertex")),
        (
            lambda: _build([A, B], [AB], parameters=[Parameter("w", "weight"), Parameter("w", "bias")]),
            ("'w'", "declared twice"),
        ),
        (
            lambda: _build([A, B], [Edge("a", "b", (Weight(),), ("w",))]),
            ("a->b", "'w'", "declare"),
        ),
    ],
)
def test_bad_graphs_are_named_with_the_value(make: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_no_live_path_names_inputs_and_outputs() -> None:
    graph = _build([A, B, Vertex("c")], [Edge("a", "c", (Weight(),))])
    with pytest.raises(GraphError, match="no live path leads from the inputs 'a' to the outputs 'b'"):
        graph.live()


# Pruning


@given(graphs())
def test_pruning_keeps_what_lies_on_a_listed_path(graph: Graph) -> None:
    leaving = graph.outgoing
    on_path: set[int] = set()
    vertices: set[str] = set()
    found = False

    def walk(vertex: str, trail: tuple[int, ...], passed: tuple[str, ...]) -> None:
        nonlocal found
        passed = (*passed, vertex)
        if vertex in graph.outputs:
            found = True
            on_path.update(trail)
            vertices.update(passed)
        for edge in leaving[vertex]:
            walk(edge.target, (*trail, id(edge)), passed)

    for start in graph.inputs:
        walk(start, (), ())
    if not found:
        with pytest.raises(GraphError, match="no live path"):
            graph.live()
        return
    live = graph.live()
    assert [id(edge) for edge in live.edges] == [id(edge) for edge in graph.edges if id(edge) in on_path]
    assert {vertex.name for vertex in live.vertices} == vertices
    assert live.live() == live


def test_pruning_keeps_the_parameters_of_dead_edges() -> None:
    parameters = [Parameter("w", "weight"), Parameter("dead", "weight")]
    graph = _build(
        [A, B, Vertex("c")],
        [Edge("a", "b", (Weight(),), ("w",)), Edge("a", "c", (Weight(),), ("dead",))],
        parameters=parameters,
    )
    live = graph.live()
    assert [edge.target for edge in live.edges] == ["b"]
    assert live.parameters == tuple(parameters)


@given(dag_codes())
def test_dead_parts_of_a_code_change_nothing(code: str) -> None:
    live = {(source, target) for source, target, _ in reference.live_edges(code)}
    pruned = "_".join(
        "".join(digit if (source, target) in live else "0" for source, digit in enumerate(row))
        for target, row in enumerate(code.split("_"), start=1)
    )
    assert dag_mlp_graph(pruned) == dag_mlp_graph(code)


# Relabelling


@given(graphs(), st.data())
def test_relabelling_changes_no_path(graph: Graph, data: st.DataObject) -> None:
    names = data.draw(relabellings(graph))
    other = graph.relabelled(names)
    assert {vertex.name for vertex in other.vertices} == set(names.values())
    assert sorted(reference.graph_depths(other)) == sorted(reference.graph_depths(graph))
    if reference.graph_depths(graph):
        assert path_moments(other) == path_moments(graph)
        assert other.relabelled({new: old for old, new in names.items()}).live().edges == graph.live().edges


def test_two_vertices_may_swap_their_names() -> None:
    graph = Graph.from_edges([("x", "a", "weight"), ("a", "b", "skip"), ("b", "y", "weight")])
    swapped = graph.relabelled({"a": "b", "b": "a"})
    assert [(edge.source, edge.target) for edge in swapped.edges] == [("x", "b"), ("b", "a"), ("a", "y")]


def test_relabelling_two_vertices_alike_is_refused() -> None:
    with pytest.raises(GraphError, match="two vertices are named 'y'"):
        EXAMPLES[0].relabelled({"1": "y", "2": "y"})


# Plain values


@pytest.mark.parametrize("graph", EXAMPLES)
def test_a_graph_survives_json(graph: Graph) -> None:
    assert Graph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph


@given(graphs())
def test_any_graph_survives_json(graph: Graph) -> None:
    assert Graph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph


def test_every_field_survives_json() -> None:
    parameter = Parameter(
        "w",
        "weight",
        (2, 3, 5),
        fan_in=15,
        fan_out=10,
        trainable=False,
        measured=0.5,
        note="n",
    )
    operators = (
        *(Gate(-0.5, inverse=True), Scale(2.0), Activation("gelu", 4, depth=2), Norm(over_batch=True), RMSNorm()),
        *(
            Average(9, correlated=True),
            Slice(),
            Maximum(3),
            Unknown("lib.op"),
            ConcatBlock(0.25),
            Contraction(7),
            Steer(depth=1),
        ),
        *(Measured(0.5), RunningSum(4), LogSoftmax(10), Dropout(0.25), Padding(0.5), Offset(1.0, 2.0)),
        Recurrent(15, 10, 5.0, 2, 3, 0.75, patches=True, kind="gru"),
    )
    assert {type(operator) for operator in operators} == {*OPERATORS.values()} - {Weight}
    edge = Edge("a", "b", operators, ("w",))
    graph = _build([A, Vertex("b", "concat")], [edge], parameters=[parameter])
    assert Graph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph
