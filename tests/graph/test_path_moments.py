"""Check path moments against lists of all paths."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import GraphError
from evenstep.graph import Graph, PathMoments, dag_cnn_graph, dag_mlp_graph, nasbench201_graph, path_moments
from evenstep.graph.networks import Order
from tests import reference
from tests.strategies import PlainEdge, dag_codes, edge_lists, graphs, orders

SAMPLE = 1500


def listed(depths: list[int]) -> PathMoments:
    return PathMoments(*reference.power_sums(depths))


# Random graphs


@given(edge_lists())
def test_moments_of_plain_edges_equal_the_listed_paths(edges: list[PlainEdge]) -> None:
    graph = Graph.from_edges(edges)
    assert path_moments(graph) == listed(reference.graph_depths(graph))


@given(graphs())
def test_moments_count_live_paths_only_and_refuse_a_graph_without(graph: Graph) -> None:
    depths = reference.graph_depths(graph)
    if depths:
        assert path_moments(graph) == listed(depths)
    else:
        with pytest.raises(GraphError, match="no live path"):
            path_moments(graph)


@given(dag_codes(), orders)
def test_moments_of_codes_count_weights_plus_one(code: str, order: Order) -> None:
    expected = listed(reference.dag_depths(code))
    assert path_moments(dag_mlp_graph(code, order=order)) == expected
    assert path_moments(dag_cnn_graph(code, order=order, image_size=4)) == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 5))
def test_a_shift_deepens_every_path(depths: list[int], more: int) -> None:
    assert listed(depths).shifted(more) == listed([depth + more for depth in depths])


# The two spaces


def check_dag(code: str) -> None:
    depths = reference.dag_depths(code)
    if not depths:
        with pytest.raises(GraphError):
            dag_mlp_graph(code)
        return
    assert path_moments(dag_mlp_graph(code)) == listed(depths), code


def check_cell(code: str) -> None:
    depths = reference.cell_depths(code)
    if not depths:
        with pytest.raises(GraphError):
            nasbench201_graph(code)
        return
    expected = listed(depths)
    assert path_moments(nasbench201_graph(code)) == expected, code
    text = reference.cell_string_of(code)
    assert listed(reference.cell_depths(text)) == expected, text


def test_a_sample_of_the_five_vertex_codes() -> None:
    for number in random.Random(1).sample(range(3**10), SAMPLE):
        check_dag(reference.dag_code_of(number, 5))


def test_a_sample_of_the_cells() -> None:
    for number in random.Random(2).sample(range(5**6), SAMPLE):
        check_cell(reference.cell_code_of(number))


@pytest.mark.exhaustive
def test_every_five_vertex_code() -> None:
    codes = list(reference.dag_codes(5))
    assert len(set(codes)) == 59_049
    for code in codes:
        check_dag(code)


@pytest.mark.exhaustive
def test_every_cell() -> None:
    codes = {reference.cell_code_of(number) for number in range(5**6)}
    assert len(codes) == 15_625
    for code in sorted(codes):
        check_cell(code)


# Known answers


@pytest.mark.parametrize("depth", [1, 2, 7, 64])
def test_a_chain_has_one_path(depth: int) -> None:
    moments = path_moments(dag_mlp_graph(reference.chain(depth)))
    assert moments == listed([depth + 1])


@pytest.mark.parametrize("vertices", [2, 3, 10, 200])
def test_dense_graphs_have_a_power_of_two_of_paths(vertices: int) -> None:
    """Each inner vertex is on a path or not: L is binomial over n - 2 inner vertices, plus one for each path.

    With m = n - 2 the sum of (k + c)^3 over all subsets of size k follows from the binomial's moments, exactly.
    """
    graph = Graph.from_edges([(s, t, "weight") for t in range(vertices) for s in range(t)])
    m, c = vertices - 2, 1
    count = 2**m
    # Sums of k, k^2, k^3 over subsets, times 8 to stay whole: m 2^(m-1), m(m+1) 2^(m-2), m^2(m+3) 2^(m-3).
    s1, s2, s3 = 4 * m * count, 2 * m * (m + 1) * count, m * m * (m + 3) * count
    moments = path_moments(graph)
    assert moments.count == count
    assert 8 * moments.m1 == s1 + 8 * c * count
    assert 8 * moments.m2 == s2 + 2 * c * s1 + 8 * c**2 * count
    assert 8 * moments.m3 == s3 + 3 * c * s2 + 3 * c**2 * s1 + 8 * c**3 * count
    assert all(isinstance(value, int) for value in (moments.count, moments.m1, moments.m2, moments.m3))


def test_parallel_edges_multiply() -> None:
    blocks = [(i, i + 1, op) for i in range(400) for op in ("weight", "skip")]
    moments = path_moments(Graph.from_edges(blocks))
    assert moments.count == 2**400
    assert moments.m1 == 400 * 2**399
