"""The search space NAS-Bench-201: all cells by their digits, and which are live, equivalent or one change apart.

A cell is named by six digits, the operators of its edges 0-1, 0-2, 1-2, 0-3, 1-3 and 2-3: 0 none, 1 skip_connect,
2 nor_conv_1x1, 3 nor_conv_3x3, 4 avg_pool_3x3. Every function also takes the benchmark's string.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import product

from evenstep.errors import GraphError
from evenstep.graph.codes import (
    NASBENCH201_OPS,
    Wiring,
    WiringEdge,
    nasbench201_digits,
    nasbench201_string,
    parse_nasbench201_code,
)

CELL_EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
CELL_COUNT = len(NASBENCH201_OPS) ** len(CELL_EDGES)
CLASS_COUNT = 6466
_DIGITS = tuple(str(digit) for digit in range(len(NASBENCH201_OPS)))
_KERNEL_SIZES = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}


def all_cells() -> Iterator[str]:
    """Yield the digits of all 15,625 cells, from '000000' to '444444'."""
    return map("".join, product(_DIGITS, repeat=len(CELL_EDGES)))


def cell_digits(code: str) -> str:
    """Return the six digits of a cell given in any notation.

    >>> cell_digits("|nor_conv_3x3~0|+|nor_conv_1x1~0|avg_pool_3x3~1|+|avg_pool_3x3~0|avg_pool_3x3~1|none~2|")
    '324440'
    """
    if re.fullmatch(r"[0-4]{6}", code, flags=re.ASCII):
        return code
    wiring = parse_nasbench201_code(code)
    if wiring.vertex_count != 4:
        raise GraphError(
            f"the cell '{code}' has {wiring.vertex_count} vertices; cells of NAS-Bench-201 have 4, such as '3_24_440'"
        )
    return nasbench201_digits(wiring).replace("_", "")


def cell_string(code: str) -> str:
    """Return a cell in the benchmark's own notation.

    >>> cell_string("324440")
    '|nor_conv_3x3~0|+|nor_conv_1x1~0|avg_pool_3x3~1|+|avg_pool_3x3~0|avg_pool_3x3~1|none~2|'
    """
    return nasbench201_string(parse_nasbench201_code(cell_digits(code)))


def cell_edges(code: str) -> tuple[WiringEdge, ...]:
    """Return the edges of a cell that are not none."""
    return parse_nasbench201_code(cell_digits(code)).edges


def cell_of_edges(edges: tuple[WiringEdge, ...]) -> str:
    """Return the digits of the cell with the given edges, none elsewhere."""
    return cell_digits(nasbench201_digits(Wiring(4, edges)))


def is_live(code: str) -> bool:
    """Return whether a path leads from a cell's input to its output; 341 cells have none.

    >>> is_live("000100"), is_live("333000")
    (True, False)
    """
    reached = {0}
    for (source, target), digit in zip(CELL_EDGES, cell_digits(code), strict=True):
        if digit != "0" and source in reached:
            reached.add(target)
    return 3 in reached


def canonical_cell(code: str) -> str:
    """Return the expression of a cell's output by which the benchmark distinguishes cells; there are 6,466.

    The input is `0`, zero is `#`, an operator applied to x is `(x)@operator`, and a vertex is the sum of its inputs
    in order of their text. A skip is its source; none, and anything applied to `#`, is `#`. The convention is that of
    `to_unique_str(consider_zero=True)` in the package nats_bench, and it is not exact:

    - zeros stay as terms (`#+0` is not `0`) and a sum that a skip passes on is not merged into the next (with both
      simplified, 4,930 expressions remain), so cells with different expressions can be the same network;
    - a value used twice looks like two values computed in the same way, so cells with one expression can be different
      networks: '020201' adds two convolutions, '201011' adds one to itself. In 430 classes the number of live
      parameters differs.

    >>> canonical_cell("100300"), canonical_cell("000300")
    ('#+#+(0)@nor_conv_3x3', '#+#+(0)@nor_conv_3x3')
    """
    vertices = ["0"]
    digits = iter(cell_digits(code))
    for target in range(1, 4):
        terms = [_applied(NASBENCH201_OPS[int(next(digits))], vertices[source]) for source in range(target)]
        vertices.append("+".join(sorted(terms)))
    return vertices[-1]


def neighbours(code: str) -> tuple[str, ...]:
    """Return the 24 cells that differ from a cell in the operator of one edge."""
    digits = cell_digits(code)
    return tuple(
        digits[:place] + other + digits[place + 1 :]
        for place, digit in enumerate(digits)
        for other in _DIGITS
        if other != digit
    )


def random_cell(draw: random.Random) -> str:
    """Return a cell, all equally likely; it may be dead."""
    return "".join(draw.choice(_DIGITS) for _ in CELL_EDGES)


def parameter_count(code: str, *, channels: int = 16, cells: int = 5, stages: int = 3, classes: int = 10) -> int:
    """Return how many parameters the benchmark's network of a cell has, including those of dead edges.

    >>> parameter_count("333333"), parameter_count("000000")
    (1531546, 73306)
    """
    widths = [channels << stage for stage in range(stages)]
    ops = [NASBENCH201_OPS[int(digit)] for digit in cell_digits(code)]
    in_cells = sum(_conv_norm(w, w, _KERNEL_SIZES[op]) for w in widths for op in ops if op in _KERNEL_SIZES)
    reductions = sum(_conv_norm(w, 2 * w, 3) + _conv_norm(2 * w, 2 * w, 3) + 2 * w * w for w in widths[:-1])
    last = widths[-1]
    return _conv_norm(3, channels, 3) + cells * in_cells + reductions + 2 * last + (last + 1) * classes


def _applied(op: str, source: str) -> str:
    if op == "none" or source == "#":
        return "#"
    return source if op == "skip_connect" else f"({source})@{op}"


def _conv_norm(into: int, out: int, kernel_size: int) -> int:
    return into * out * kernel_size**2 + 2 * out
