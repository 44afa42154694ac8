"""Read the codes back and count, by walking all paths, what they are said to hold."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from evenstep.graph.codes import Wiring, parse_dag_code
from evenstep_research.study import codes


def paths(wiring: Wiring, at: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the operators along every path from a vertex to the last."""
    if at == wiring.vertex_count - 1:
        yield ()
    for edge in wiring.edges:
        if edge.source == at and edge.op != "none":
            for rest in paths(wiring, edge.target):
                yield (edge.op, *rest)


def shape(code: str) -> tuple[int, int, Counter[int]]:
    """Return the numbers of weights and of skips, and how many paths have how many weights."""
    wiring = parse_dag_code(code)
    kinds = Counter(edge.op for edge in wiring.edges)
    return kinds["weight"], kinds["skip"], Counter(path.count("weight") for path in paths(wiring))


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 9])
def test_named_topologies(depth: int) -> None:
    assert shape(codes.chain_code(depth)) == (depth, 0, Counter({depth: 1}))
    weights, skips, found = shape(codes.dense_code(depth))
    assert (weights, skips) == (depth * (depth + 1) // 2, 0)
    assert found.total() == 2 ** (depth - 1)
    weights, skips, found = shape(codes.residual_code(depth))
    assert (weights, skips) == (depth, depth - 1)
    assert found.total() == fibonacci(depth)
    weights, skips, found = shape(codes.skip_all_code(depth))
    assert (weights, skips) == (depth, depth * (depth - 1) // 2)
    assert found.total() == 2 ** (depth - 1)


def fibonacci(steps: int) -> int:
    """Count the ways up so many steps, one or two at a time."""
    return 1 if steps < 2 else fibonacci(steps - 1) + fibonacci(steps - 2)


@pytest.mark.parametrize(("count", "depth"), [(1, 3), (2, 2), (3, 6), (4, 2), (2, 1)])
def test_branches_run_side_by_side(count: int, depth: int) -> None:
    expected = count if depth > 1 else 1  # branches of one weight are the same edge
    assert shape(codes.branches_code(count, depth)) == (expected * depth, 0, Counter({depth: expected}))


@pytest.mark.parametrize("vertices", [2, 3, 5, 12])
def test_random_codes_have_a_live_path_and_repeat_with_their_seed(vertices: int) -> None:
    first, again = random.Random(4), random.Random(4)
    drawn = [codes.random_code(first, vertices) for _ in range(30)]
    assert drawn == [codes.random_code(again, vertices) for _ in range(30)]
    assert len(set(drawn)) > 1
    for code in drawn:
        wiring = parse_dag_code(code)
        assert wiring.vertex_count == vertices
        assert next(paths(wiring), None) is not None
