"""Compact codes of two spaces: the paper's DAGs (`2_12_112`) and NAS-Bench-201 cells (`|nor_conv_3x3~0|+|...|`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evenstep.arguments import shown
from evenstep.errors import GraphError

DAG_OPS = ("none", "skip", "weight")
NASBENCH201_OPS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")


@dataclass(frozen=True, slots=True)
class WiringEdge:
    """Join two numbered vertices, `source` < `target`, by a named operator."""

    source: int
    target: int
    op: str


@dataclass(frozen=True, slots=True)
class Wiring:
    """Hold what a code describes: vertices 0 (input) to `vertex_count - 1` (output), and their edges."""

    vertex_count: int
    edges: tuple[WiringEdge, ...]

    def live(self) -> Wiring:
        """Return the wiring without the edges that lie on no path from the first vertex to the last."""
        forward = {0}
        for edge in sorted(self.edges, key=lambda e: e.target):
            if edge.source in forward:
                forward.add(edge.target)
        backward = {self.vertex_count - 1}
        for edge in sorted(self.edges, key=lambda e: -e.source):
            if edge.target in backward:
                backward.add(edge.source)
        alive = forward & backward
        edges = tuple(e for e in self.edges if e.source in alive and e.target in alive)
        if not edges:
            raise GraphError(
                f"no live path leads from vertex 0 to vertex {self.vertex_count - 1}; "
                "give the last vertex a chain of edges that starts at vertex 0"
            )
        return Wiring(self.vertex_count, edges)


def parse_dag_code(code: str) -> Wiring:
    """Read a code of the paper's space: row t lists the edge from each earlier vertex (0 none, 1 skip, 2 weight).

    >>> parse_dag_code("2_12").edges[-1]
    WiringEdge(source=1, target=2, op='weight')
    """
    return _from_rows(_digit_rows(code, "0-2", len(DAG_OPS)), DAG_OPS)


def parse_nasbench201_code(code: str) -> Wiring:
    """Read a NAS-Bench-201 cell: its string, or its digits with or without separators (`3_24_440`, `324440`).

    Digits: 0 none, 1 skip_connect, 2 nor_conv_1x1, 3 nor_conv_3x3, 4 avg_pool_3x3.

    >>> parse_nasbench201_code("3_24_440") == parse_nasbench201_code("324440")
    True
    """
    _require_text(code)
    if "|" in code:
        return _from_rows(_string_rows(code), NASBENCH201_OPS)
    if re.fullmatch(r"\d{6}", code):
        code = f"{code[0]}_{code[1:3]}_{code[3:]}"
    return _from_rows(_digit_rows(code, "0-4", len(NASBENCH201_OPS)), NASBENCH201_OPS)


def dag_code(wiring: Wiring) -> str:
    """Write a wiring of the paper's space back as its code."""
    return _write_rows(wiring, DAG_OPS)


def nasbench201_digits(wiring: Wiring) -> str:
    """Write a NAS-Bench-201 wiring as its digit code."""
    return _write_rows(wiring, NASBENCH201_OPS)


def nasbench201_string(wiring: Wiring) -> str:
    """Write a NAS-Bench-201 wiring in the benchmark's own notation."""
    rows = _op_rows(wiring, "none")
    return "+".join("|" + "".join(f"{op}~{source}|" for source, op in enumerate(row)) for row in rows)


def _require_text(code: object) -> None:
    if not isinstance(code, str):
        raise GraphError(f"the code is {shown(code)}; give a text, such as '2_12'")


def _shown(code: str) -> str:
    """Return a code as errors quote it: only both ends if it is too long for a line."""
    return code if len(code) <= 80 else f"{code[:50]}...{code[-20:]}"


def _digit_rows(code: str, allowed: str, count: int) -> list[list[int]]:
    _require_text(code)
    if not code.strip():
        raise GraphError("the code is empty, a graph of one vertex; give at least one row, such as '2'")
    rows = []
    for number, row in enumerate(code.strip().split("_"), start=1):
        if not row.isascii() or not row.isdigit():
            raise GraphError(
                f"row {number} of code '{_shown(code)}' is '{_shown(row)}'; rows hold digits {allowed}, joined by '_'"
            )
        if len(row) != number:
            raise GraphError(
                f"row {number} of code '{_shown(code)}' has {len(row)} digits ('{_shown(row)}'); it needs {number}, "
                "one for each earlier vertex"
            )
        digits = [int(digit) for digit in row]
        for digit in digits:
            if digit >= count:
                raise GraphError(f"row {number} of code '{_shown(code)}' holds the digit {digit}; digits are {allowed}")
        rows.append(digits)
    return rows


def _string_rows(code: str) -> list[list[int]]:
    rows = []
    for number, row in enumerate(code.strip().split("+"), start=1):
        cells = row.strip().strip("|").split("|")
        if len(cells) != number:
            raise GraphError(f"row {number} of cell '{_shown(code)}' has {len(cells)} operators; it needs {number}")
        digits = []
        for source, cell in enumerate(cells):
            op, _, given = cell.partition("~")
            if op not in NASBENCH201_OPS:
                raise GraphError(
                    f"row {number} of cell '{_shown(code)}' holds '{_shown(cell)}'; "
                    f"operators are {', '.join(NASBENCH201_OPS)}"
                )
            if given != str(source):
                raise GraphError(
                    f"row {number} of cell '{_shown(code)}' holds '{_shown(cell)}' "
                    f"but the source there is {source}; write '{op}~{source}'"
                )
            digits.append(NASBENCH201_OPS.index(op))
        rows.append(digits)
    return rows


def _from_rows(rows: Sequence[Sequence[int]], ops: Sequence[str]) -> Wiring:
    return Wiring(
        len(rows) + 1,
        tuple(
            WiringEdge(source, target, ops[digit])
            for target, row in enumerate(rows, start=1)
            for source, digit in enumerate(row)
            if digit
        ),
    )


def _op_rows(wiring: Wiring, missing: str) -> Iterable[list[str]]:
    if not isinstance(wiring, Wiring):
        raise GraphError(f"the wiring is {shown(wiring)}; give what parse_dag_code or parse_nasbench201_code returns")
    ops_of = {(edge.source, edge.target): edge.op for edge in wiring.edges}
    for target in range(1, wiring.vertex_count):
        yield [ops_of.get((source, target), missing) for source in range(target)]


def _write_rows(wiring: Wiring, ops: Sequence[str]) -> str:
    return "_".join("".join(str(ops.index(op)) for op in row) for row in _op_rows(wiring, "none"))
