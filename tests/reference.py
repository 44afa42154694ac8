"""Slow, literal versions of the formulas, to check the fast ones against.

Nothing here calls the algorithms of `evenstep`: codes are read by splitting their text, paths are listed one
by one. `Graph` serves as a record of vertices and edges only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from evenstep.graph import Graph

Path = tuple[tuple[int, int, str], ...]  # the edges (source, target, operator) of one path, in order

DAG_NAMES = {"0": "none", "1": "skip", "2": "weight"}
CELL_NAMES = {"0": "none", "1": "skip_connect", "2": "nor_conv_1x1", "3": "nor_conv_3x3", "4": "avg_pool_3x3"}


# Paths, one by one


def graph_depths(graph: Graph) -> list[int]:
    """List the depth of every path from an input to an output of a graph."""
    leaving: dict[str, list[tuple[str, int]]] = {}
    for edge in graph.edges:
        leaving.setdefault(edge.source, []).append((edge.target, edge.depth))

    def walk(vertex: str, depth: int) -> Iterator[int]:
        if vertex in graph.outputs:
            yield depth
        for target, more in leaving.get(vertex, []):
            yield from walk(target, depth + more)

    return [depth for start in graph.inputs for depth in walk(start, 0)]


def dag_rows(code: str) -> list[list[str]]:
    """Split a code of the paper's space into rows of operator names."""
    return [[DAG_NAMES[digit] for digit in row] for row in code.split("_")]


def cell_rows(code: str) -> list[list[str]]:
    """Split a NAS-Bench-201 string, or its digit code, into rows of operator names."""
    if "|" in code:
        return [[part.split("~")[0] for part in row[1:-1].split("|")] for row in code.split("+")]
    digits = code.replace("_", "")
    return [[CELL_NAMES[digit] for digit in row] for row in (digits[0], digits[1:3], digits[3:6])]


def row_paths(rows: Sequence[Sequence[str]]) -> list[Path]:
    """List every path from vertex 0 to the last vertex."""

    def back(vertex: int) -> Iterator[Path]:
        if vertex == 0:
            yield ()
            return
        for source, op in enumerate(rows[vertex - 1]):
            if op != "none":
                for path in back(source):
                    yield (*path, (source, vertex, op))

    return list(back(len(rows)))


def dag_depths(code: str) -> list[int]:
    """List L_p of every path of a code of the paper's space: weights on the path, plus one."""
    return [1 + sum(op == "weight" for _, _, op in path) for path in row_paths(dag_rows(code))]


def cell_depths(code: str) -> list[int]:
    """List L_p of every path of a NAS-Bench-201 cell: convolutions on the path, plus one."""
    return [1 + sum(op.startswith("nor_conv") for _, _, op in path) for path in row_paths(cell_rows(code))]


def power_sums(depths: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the sums of L^0, L^1, L^2 and L^3."""
    return len(depths), sum(depths), sum(d**2 for d in depths), sum(d**3 for d in depths)


# Live parts


def live_edges(code: str) -> list[tuple[int, int, str]]:
    """List the edges of a code of the paper's space that lie on some path, by target and source.

    Grows the set of vertices that the first one reaches, and of those that reach the last, until nothing changes;
    listing the paths instead would take for ever on dense codes (a test does it on small ones).
    """
    edges = [
        (source, target, op)
        for target, row in enumerate(dag_rows(code), start=1)
        for source, op in enumerate(row)
        if op != "none"
    ]
    reached, reaching = {0}, {code.count("_") + 1}
    for _ in range(code.count("_") + 1):
        reached |= {target for source, target, _ in edges if source in reached}
        reaching |= {source for source, target, _ in edges if target in reaching}
    return [edge for edge in edges if edge[0] in reached and edge[1] in reaching]


def live_in_degrees(code: str) -> dict[int, int]:
    """Count the live edges into every live vertex; the first vertex has the stem's."""
    degrees = {0: 1}
    for _, target, _ in live_edges(code):
        degrees[target] = degrees.get(target, 0) + 1
    return degrees


# The paper's initialisation


def paper_std(code: str, *, order: str, width: int, inputs: int) -> dict[str, float]:
    """Return the standard deviation of every weight of a DAG-MLP by `eq:dag_init`.

    W ~ N(0, 2 / (d_in fan_in)), d_in that of the target where pre-activations are summed, of the source where
    activations are. The stem of order pre reads no ReLU, so its constant is 1. The readout is mean-field:
    1/n, over the root of the last in-degree where it reads an unscaled sum (order post).
    """
    degrees = live_in_degrees(code)
    last = code.count("_") + 1
    std = {"stem.weight": math.sqrt((1.0 if order == "pre" else 2.0) / inputs)}
    for source, target, op in live_edges(code):
        if op == "weight":
            degree = degrees[target] if order == "pre" else degrees[source]
            std[f"edges.{source}_{target}.weight"] = math.sqrt(2.0 / (degree * width))
    std["readout.weight"] = 1.0 / width if order == "pre" else 1.0 / (width * math.sqrt(degrees[last]))
    return std


# The weighted rule, order pre


def weighted_score(
    code: str,
    *,
    init: str,
    a: float = 2.0,
    weight: float = 0.35,
    usual: float = 1.0,
    size: bool = True,
    adam: bool = False,
) -> float:
    """Return D (copies + weight q_out / usual) / (1 + weight) of a DAG-MLP of order pre with init `degree` or `he`.

    D = E[(L + a)^2] (E[shared] + a) over paths and pairs of paths, each by its share; for Adam E[(L + a)^3]. Without
    `size` D alone.

    Every vertex is a table {fresh field: amplitude}: a weight's output is a field of its own, skips bring the
    fields of their source, and equal fields add in amplitude. Every field is the list of its paths (w_p,
    weights on p); a path into a vertex counts by the square of its field's amplitude there.
    """
    degrees = live_in_degrees(code)
    last = code.count("_") + 1
    field_paths: dict[str, list[tuple[float, frozenset[str]]]] = {"stem": [(2.0 if init == "he" else 1.0, frozenset())]}
    amplitudes: dict[int, dict[str, float]] = {0: {"stem": 1.0}}

    def paths_into(vertex: int) -> list[tuple[float, frozenset[str]]]:
        return [
            (amplitude**2 * carried, weights)
            for field, amplitude in amplitudes[vertex].items()
            for carried, weights in field_paths[field]
        ]

    for source, target, op in live_edges(code):
        here = amplitudes.setdefault(target, {})
        if op == "weight":
            # fan_in * var(W) * E[relu(z)^2] / E[z^2], with the last factor one half
            gain = (2.0 if init == "he" else 2.0 / degrees[target]) * 0.5
            name = f"{source}->{target}"
            field_paths[name] = [(gain * carried, weights | {name}) for carried, weights in paths_into(source)]
            here[name] = 1.0
        else:
            for field, amplitude in amplitudes[source].items():
                here[field] = here.get(field, 0.0) + amplitude
    paths = paths_into(last)
    second_moment: float = sum(carried for carried, _ in paths)

    def mean(power: int) -> float:
        # The ReLU in front of the readout makes the depth weights plus one.
        return sum(carried * (len(weights) + 1 + a) ** power for carried, weights in paths) / second_moment

    both = sum(one * other * len(mine & yours) for one, mine in paths for other, yours in paths) / second_moment**2
    depth = mean(3) if adam else mean(2) * (both + 1 + a)
    copies: float = 0.0
    for field, amplitude in amplitudes[last].items():
        copies += amplitude**4 * sum(carried for carried, _ in field_paths[field])
    grown = copies / second_moment + weight * second_moment / usual
    return depth * (grown / (1 + weight) if size else 1.0)


# Lists of codes


def dag_codes(vertices: int) -> Iterator[str]:
    """Yield every code of the paper's space with this many vertices, dead ones included."""
    count = vertices * (vertices - 1) // 2
    for number in range(3**count):
        yield dag_code_of(number, vertices)


def dag_code_of(number: int, vertices: int) -> str:
    """Return code number `number` of those with this many vertices."""
    digits = []
    for _ in range(vertices * (vertices - 1) // 2):
        number, digit = divmod(number, 3)
        digits.append(str(digit))
    text = iter("".join(digits))
    return "_".join("".join(next(text) for _ in range(row)) for row in range(1, vertices))


def cell_code_of(number: int) -> str:
    """Return the digit code of NAS-Bench-201 cell number `number`, of 5^6."""
    digits = []
    for _ in range(6):
        number, digit = divmod(number, 5)
        digits.append(str(digit))
    return f"{digits[0]}_{digits[1]}{digits[2]}_{digits[3]}{digits[4]}{digits[5]}"


def cell_string_of(code: str) -> str:
    """Write a digit code in the benchmark's own notation."""
    return "+".join("|" + "".join(f"{op}~{i}|" for i, op in enumerate(row)) for row in cell_rows(code))


def chain(depth: int) -> str:
    """Return the code of a chain of `depth` weights."""
    return "_".join("0" * row + "2" for row in range(depth))


def dense(depth: int) -> str:
    """Return the code of a dense DAG of weights whose longest path has `depth` of them."""
    return "_".join("2" * row for row in range(1, depth + 1))


# Graphs


def residual(blocks: int) -> Graph:
    """Return `blocks` residual blocks between a stem and a readout: 2^blocks paths."""
    edges: list[tuple[object, ...]] = [("x", 0, "weight", 0)]
    edges += [(i, i + 1, op, int(op == "weight")) for i in range(blocks) for op in ("weight", "skip")]
    return Graph.from_edges([*edges, (blocks, "y", "weight", 1)])
