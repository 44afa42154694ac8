"""Check the space of NAS-Bench-201 as a whole: its notations, its classes, its dead cells, and its parameter counts."""

import random
from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import GraphError
from evenstep.graph import WiringEdge, parse_nasbench201_code
from evenstep_research.spaces import NasBench201
from evenstep_research.spaces.cells import (
    CELL_COUNT,
    CELL_EDGES,
    CLASS_COUNT,
    all_cells,
    canonical_cell,
    cell_digits,
    cell_edges,
    cell_of_edges,
    cell_string,
    is_live,
    neighbours,
    parameter_count,
    random_cell,
)
from tests import reference

CELLS = st.text(alphabet="01234", min_size=6, max_size=6)


def test_every_cell_once_and_in_every_notation() -> None:
    cells = list(all_cells())
    assert len(cells) == len(set(cells)) == CELL_COUNT == 15_625
    assert cells == sorted(cells)
    strings = {cell_string(cell) for cell in cells}
    assert strings == {reference.cell_string_of(reference.cell_code_of(number)) for number in range(15_625)}


@given(CELLS)
def test_a_cell_survives_the_round_trips(cell: str) -> None:
    assert cell_digits(cell) == cell
    assert cell_digits(f"{cell[0]}_{cell[1:3]}_{cell[3:]}") == cell
    assert cell_digits(cell_string(cell)) == cell
    assert cell_of_edges(cell_edges(cell)) == cell
    assert len(cell_edges(cell)) == 6 - cell.count("0")


def test_a_digit_stands_for_the_edge_at_its_place() -> None:
    for place, (source, target) in enumerate(CELL_EDGES):
        cell = "0" * place + "2" + "0" * (5 - place)
        assert cell_edges(cell) == (WiringEdge(source, target, "nor_conv_1x1"),)


@pytest.mark.parametrize("code", ["3_24", "3", "3_24_440_1111", "|nor_conv_3x3~0|+|none~0|none~1|"])
def test_a_cell_of_another_size_is_refused(code: str) -> None:
    with pytest.raises(GraphError, match=r"has [235] vertices; cells of NAS-Bench-201 have 4, such as '3_24_440'"):
        cell_digits(code)


@pytest.mark.parametrize("code", ["", "333335", "33333", "３33333", "|conv~0|"])
def test_a_malformed_cell_is_refused(code: str) -> None:
    for function in (cell_digits, cell_string, is_live, canonical_cell, neighbours, parameter_count):
        with pytest.raises(GraphError):
            function(code)


def test_live_cells_are_those_with_live_edges() -> None:
    dead = set()
    for cell in all_cells():
        try:
            parse_nasbench201_code(cell).live()
        except GraphError:
            dead.add(cell)
    assert {cell for cell in all_cells() if not is_live(cell)} == dead
    assert len(dead) == 341


def test_the_classes_are_as_many_as_published() -> None:
    assert len({canonical_cell(cell) for cell in all_cells()}) == CLASS_COUNT == 6_466


@pytest.mark.parametrize(
    ("cell", "expression"),
    [
        ("000000", "#+#+#"),
        ("333000", "#+#+#"),  # dead, whatever its convolutions
        ("100030", "#+#+(0)@nor_conv_3x3"),  # a skip is its source
        ("002010", "#+#+#"),  # nothing reaches vertex 1, and what it sends is zero
        ("020003", "#+#+(#+(0)@nor_conv_1x1)@nor_conv_3x3"),  # a zero in a sum stays
        (
            "421211",
            "(0)@avg_pool_3x3+(0)@avg_pool_3x3+(0)@nor_conv_1x1+(0)@nor_conv_1x1",
        ),
        ("334131", "((0)@nor_conv_3x3)@avg_pool_3x3+(0)@nor_conv_3x3+((0)@nor_conv_3x3)@nor_conv_3x3+0"),
    ],
)
def test_expressions_known_by_hand(cell: str, expression: str) -> None:
    assert canonical_cell(cell) == expression
    assert canonical_cell(cell_string(cell)) == expression


def merged(cell: str) -> object:
    """Return the output as a nested sum in which zeros are dropped and sums of sums are one."""
    digits = iter(cell)
    vertices: list[tuple[object, ...]] = [("in",)]
    for target in range(1, 4):
        terms: list[object] = []
        for source in range(target):
            digit = next(digits)
            if digit == "1":
                terms.extend(vertices[source])
            elif digit != "0" and vertices[source]:
                terms.append((digit, vertices[source]))
        vertices.append(tuple(sorted(terms, key=repr)))
    return vertices[-1]


def test_the_classes_are_coarse_in_the_ways_their_docstring_says() -> None:
    assert len({merged(cell) for cell in all_cells()}) == 4_930
    counts = defaultdict(set)
    for cell in filter(is_live, all_cells()):
        live = cell_of_edges(parse_nasbench201_code(cell).live().edges)
        counts[canonical_cell(cell)].add(parameter_count(live))
    assert sum(len(some) > 1 for some in counts.values()) == 430
    assert canonical_cell("020201") == canonical_cell("201011")
    assert parameter_count("020201") > parameter_count("201011")


@given(CELLS)
def test_neighbours_differ_by_one_operator(cell: str) -> None:
    found = neighbours(cell)
    assert len(found) == len(set(found)) == 24
    for other in found:
        assert sum(a != b for a, b in zip(cell, other, strict=True)) == 1
        assert cell in neighbours(other)


def test_random_cells_follow_their_seed_and_use_every_operator_everywhere() -> None:
    first, again = ([random_cell(random.Random(3)) for _ in range(2)] for _ in range(2))
    assert first == again
    draw = random.Random(0)
    drawn = [random_cell(draw) for _ in range(2_000)]
    for place in range(6):
        counts = Counter(cell[place] for cell in drawn)
        assert set(counts) == set("01234")
        assert all(320 < count < 480 for count in counts.values())  # 400, give or take 4.5 deviations


@given(CELLS.filter(is_live), st.sampled_from([{}, {"classes": 120}, {"channels": 6, "cells": 2, "stages": 2}]))
def test_parameters_are_those_of_the_network_with_its_dead_edges(cell: str, options: dict[str, int]) -> None:
    with torch.device("meta"):
        model = NasBench201(cell, keep_dead=True, **options)
    assert parameter_count(cell, **options) == sum(parameter.numel() for parameter in model.parameters())


def test_published_parameter_counts() -> None:
    # As published: the benchmark's architectures 0 and 1, the largest count and the smallest.
    assert parameter_count("421211") == 129_306
    assert parameter_count("334131") == 802_426
    assert parameter_count("333333") == 1_531_546
    assert parameter_count("111111") == parameter_count("000000") == 73_306
