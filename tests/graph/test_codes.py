"""Check the compact codes: round trips, pruning against listed paths, and every malformed code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import GraphError
from evenstep.graph import (
    Wiring,
    WiringEdge,
    dag_code,
    nasbench201_digits,
    nasbench201_string,
    parse_dag_code,
    parse_nasbench201_code,
)
from tests import reference
from tests.strategies import dag_codes


@given(st.integers(2, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 3 ** (n * (n - 1) // 2) - 1))))
def test_a_code_survives_the_round_trip(case: tuple[int, int]) -> None:
    vertices, number = case
    code = reference.dag_code_of(number, vertices)
    wiring = parse_dag_code(code)
    assert wiring.vertex_count == vertices
    assert dag_code(wiring) == code


@given(st.integers(0, 5**6 - 1))
def test_a_cell_survives_the_round_trip_in_all_three_notations(number: int) -> None:
    digits = reference.cell_code_of(number)
    text = reference.cell_string_of(digits)
    wiring = parse_nasbench201_code(digits)
    assert parse_nasbench201_code(text) == wiring
    assert parse_nasbench201_code(digits.replace("_", "")) == wiring
    assert nasbench201_digits(wiring) == digits
    assert nasbench201_string(wiring) == text


def test_row_t_lists_the_edges_from_each_earlier_vertex() -> None:
    assert parse_dag_code("2_01_120") == Wiring(
        4,
        (
            WiringEdge(0, 1, "weight"),
            WiringEdge(1, 2, "skip"),
            WiringEdge(0, 3, "skip"),
            WiringEdge(1, 3, "weight"),
        ),
    )


def test_the_digits_of_nas_bench_201_mean_its_operators() -> None:
    assert nasbench201_string(parse_nasbench201_code("3_24_140")) == (
        "|nor_conv_3x3~0|+|nor_conv_1x1~0|avg_pool_3x3~1|+|skip_connect~0|avg_pool_3x3~1|none~2|"
    )


def test_blanks_around_a_code_are_no_part_of_it() -> None:
    assert parse_dag_code(" 2_12\n") == parse_dag_code("2_12")


@given(dag_codes())
def test_pruning_keeps_exactly_the_edges_on_some_path(code: str) -> None:
    live = parse_dag_code(code).live()
    on_paths = {edge for path in reference.row_paths(reference.dag_rows(code)) for edge in path}
    expected = sorted(on_paths, key=lambda edge: (edge[1], edge[0]))
    assert reference.live_edges(code) == expected  # the oracle of other tests
    assert sorted((e.target, e.source, e.op) for e in live.edges) == [(t, s, op) for s, t, op in expected]
    assert live.live() == live


# What is wrong, and the words that must name it.
BAD_DAG_CODES = [
    ("", ("empty", "one vertex", "'2'")),
    ("   ", ("empty", "one vertex")),
    ("3", ("row 1", "'3'", "digit 3", "0-2")),
    ("2_17", ("row 2", "'2_17'", "digit 7", "0-2")),
    ("2_1", ("row 2", "'2_1'", "1 digits", "needs 2")),
    ("2_120", ("row 2", "'2_120'", "3 digits", "needs 2")),
    ("22", ("row 1", "'22'", "2 digits", "needs 1")),
    ("a", ("row 1", "'a'", "0-2")),
    ("2__222", ("row 2", "'2__222'", "''")),
    ("2_-1", ("row 2", "'-1'")),
    ("2_1²", ("row 2", "'1²'")),
    ("2_12_", ("row 3", "''")),
]


@pytest.mark.parametrize(("code", "words"), BAD_DAG_CODES)
def test_a_bad_code_is_named_with_its_row_and_value(code: str, words: tuple[str, ...]) -> None:
    with pytest.raises(GraphError) as caught:
        parse_dag_code(code)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


BAD_CELLS = [
    ("", ("empty",)),
    ("5_11_111", ("row 1", "'5_11_111'", "digit 5", "0-4")),
    ("3_24_44", ("row 3", "2 digits", "needs 3")),
    ("32444", ("row 1", "5 digits", "needs 1")),
    ("|conv~0|", ("row 1", "'conv~0'", "nor_conv_3x3")),
    ("|nor_conv_3x3~0|+|none~0|", ("row 2", "1 operators", "needs 2")),
    ("|nor_conv_3x3~1|", ("row 1", "'nor_conv_3x3~1'", "source there is 0", "'nor_conv_3x3~0'")),
    ("|nor_conv_3x3|", ("row 1", "'nor_conv_3x3'")),
]


@pytest.mark.parametrize(("code", "words"), BAD_CELLS)
def test_a_bad_cell_is_named_with_its_row_and_value(code: str, words: tuple[str, ...]) -> None:
    with pytest.raises(GraphError) as caught:
        parse_nasbench201_code(code)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize("code", ["0", "2_00", "0_02", "2_20_000", "0_01_022"])
def test_no_live_path_is_said_with_both_ends(code: str) -> None:
    wiring = parse_dag_code(code)
    with pytest.raises(GraphError, match=rf"no live path .* vertex 0 to vertex {wiring.vertex_count - 1}"):
        wiring.live()


def test_a_cell_without_a_live_path_raises() -> None:
    with pytest.raises(GraphError, match="no live path"):
        parse_nasbench201_code("3_33_000").live()


@pytest.mark.parametrize(("code", "vertices"), [("3", 2), ("3_24", 3), ("3_24_440_1111", 5)])
def test_cells_may_have_any_number_of_vertices(code: str, vertices: int) -> None:
    wiring = parse_nasbench201_code(code)
    assert wiring.vertex_count == vertices
    assert nasbench201_digits(wiring) == code
    assert parse_nasbench201_code(nasbench201_string(wiring)) == wiring


def test_an_error_quotes_a_long_code_by_its_ends() -> None:
    code = "_".join("2" * row for row in range(1, 200)) + "3"
    with pytest.raises(GraphError) as caught:
        parse_dag_code(code)
    assert len(str(caught.value)) < 400
    assert "2_22_222" in str(caught.value)
