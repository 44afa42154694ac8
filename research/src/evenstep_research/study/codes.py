"""Compact codes of named topologies, and random ones."""

from __future__ import annotations

import random
from collections.abc import Mapping

from evenstep.errors import GraphError
from evenstep.graph.codes import parse_dag_code


def code_of(edges: Mapping[tuple[int, int], int]) -> str:
    """Return the code with the given digit for each edge (source, target), 0 elsewhere.

    >>> code_of({(0, 1): 2, (0, 2): 1, (1, 2): 2})
    '2_12'
    """
    last = max(target for _, target in edges)
    return "_".join("".join(str(edges.get((s, t), 0)) for s in range(t)) for t in range(1, last + 1))


def chain_code(depth: int) -> str:
    """Return the code of a chain of weights.

    >>> chain_code(3)
    '2_02_002'
    """
    return code_of({(t - 1, t): 2 for t in range(1, depth + 1)})


def residual_code(depth: int) -> str:
    """Return the code of weights from each vertex to the next, with skips over every second one.

    >>> residual_code(3)
    '2_12_012'
    """
    edges = {(t - 1, t): 2 for t in range(1, depth + 1)}
    return code_of(edges | {(t - 2, t): 1 for t in range(2, depth + 1)})


def dense_code(depth: int) -> str:
    """Return the code in which every vertex reads all earlier ones.

    >>> dense_code(3)
    '2_22_222'
    """
    return code_of({(s, t): 2 for t in range(1, depth + 1) for s in range(t)})


def skip_all_code(depth: int) -> str:
    """Return the code of a chain whose vertices also get a skip from every vertex before the last one.

    >>> skip_all_code(3)
    '2_12_112'
    """
    edges = {(s, t): 1 for t in range(2, depth + 1) for s in range(t - 1)}
    return code_of(edges | {(t - 1, t): 2 for t in range(1, depth + 1)})


def branches_code(count: int, depth: int) -> str:
    """Return the code of chains side by side, from the first vertex to the last.

    >>> branches_code(2, 2)
    '2_20_022'
    """
    last = count * (depth - 1) + 1
    edges: dict[tuple[int, int], int] = {}
    for branch in range(count):
        inner = [1 + branch * (depth - 1) + i for i in range(depth - 1)]
        for source, target in zip([0, *inner], [*inner, last], strict=True):
            edges[source, target] = 2
    return code_of(edges)


def random_code(draw: random.Random, vertices: int) -> str:
    """Return a code of so many vertices, each edge none, skip or weight with equal chance, with a live path.

    >>> len(random_code(random.Random(0), 5).split("_"))
    4
    """
    while True:
        code = "_".join("".join(draw.choice("012") for _ in range(t)) for t in range(1, vertices))
        try:
            parse_dag_code(code).live()
        except GraphError:
            continue
        return code
