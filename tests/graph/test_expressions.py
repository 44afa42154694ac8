"""Check functions written as expressions: their text, their parser, and moments against scipy and torch."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from torch import Tensor

from evenstep.errors import InputError
from evenstep.graph import Edge, Graph, Vertex
from evenstep.graph.activations import moments, slope
from evenstep.graph.expression_names import expression_of, name_of, parse, shortened
from evenstep.graph.expressions import (
    Expression,
    X,
    affine,
    applied,
    chosen,
    compared,
    core,
    larger,
    number,
    product,
    quotient,
    scaled_by,
    shifted,
    slopes,
    smaller,
    substituted,
    total,
    values,
)
from evenstep.graph.operators import Activation, Weight, operator_of

# Expression -> (torch's function, where it has kinks or jumps).
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, ...]]] = {
    "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * pow(x, 3))))": (
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        (),
    ),
    "x * sigmoid(1.702 * x)": (lambda x: x * torch.sigmoid(1.702 * x), ()),
    "x * sigmoid(x)": (F.silu, ()),
    "x / (1 + exp(-x))": (F.silu, ()),
    "x * tanh(log(1 + exp(x)))": (F.mish, ()),
    "x * relu6(x + 3) / 6": (F.hardswish, (-3, 3)),
    "square(relu(x))": (lambda x: F.relu(x) ** 2, (0,)),
    "relu(x) * x": (lambda x: F.relu(x) * x, (0,)),
    "x + relu(x)": (lambda x: x + F.relu(x), (0,)),
    "where(x > 0, x, 0.1 * x)": (lambda x: F.leaky_relu(x, 0.1), (0,)),
    "where(x > 0.5, 2, x)": (lambda x: torch.where(x > 0.5, 2.0, x), (0.5,)),
    "minimum(maximum(x, -2), 3)": (lambda x: x.clamp(-2, 3), (-2, 3)),
    "1 + elu(x, 0.7)": (lambda x: 1 + F.elu(x, 0.7), (0,)),
    "abs(x - 1) - 2 * sin(x)": (lambda x: (x - 1).abs() - 2 * x.sin(), (1,)),
}
INPUTS = [(0.0, 1.0), (0.0, 2.0), (0.7, 0.5), (-1.3, 2.0)]


def integral(integrand: Callable[[float], float], mean: float, variance: float, kinks: tuple[float, ...]) -> float:
    """Integrate a function against the density of N(mean, variance)."""
    spread = math.sqrt(variance)
    points = [u for u in ((kink - mean) / spread for kink in kinks) if abs(u) < 11]

    def weighed(u: float) -> float:
        return integrand(mean + spread * u) * math.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)

    return float(quad(weighed, -11, 11, points=points or None, epsabs=1e-10, epsrel=1e-9, limit=200)[0])


@pytest.mark.parametrize(("mean", "variance"), INPUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_moments_are_those_of_the_whole_function(name: str, mean: float, variance: float) -> None:
    function, kinks = FUNCTIONS[name]

    def value(z: float) -> float:
        return function(torch.tensor(z, dtype=torch.float64)).item()

    expected = tuple(integral(lambda z, p=p: value(z) ** p, mean, variance, kinks) for p in (1, 2))  # type: ignore[misc]
    rel = 2e-3 if "0.5, 2" in name else 1e-5  # a jump between two nodes of the quadrature
    assert moments(name, mean, variance) == pytest.approx(expected, rel=rel, abs=rel)


@pytest.mark.parametrize(("mean", "variance"), INPUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_slopes_are_those_of_autograd(name: str, mean: float, variance: float) -> None:
    function, kinks = FUNCTIONS[name]

    def derivative(z: float) -> float:
        x = torch.tensor(z, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(x), x)
        return gradient.item() ** 2

    assert slope(name, mean, variance) == pytest.approx(integral(derivative, mean, variance, kinks), rel=3e-3)


def test_the_numbers_that_were_wrong() -> None:
    gelu, quick, squared = next(iter(FUNCTIONS)), "x * sigmoid(1.702 * x)", "square(relu(x))"
    assert moments(gelu, 0.0, 1.0)[1] == pytest.approx(0.425, abs=1e-3)
    assert moments(quick, 0.0, 1.0)[1] == pytest.approx(0.422, abs=1e-3)
    assert moments(squared, 0.0, 2.0)[1] == pytest.approx(6.0, rel=1e-5)  # half of E[z^4] = 3 variance^2


@pytest.mark.parametrize("name", ["rsqrt(1e-06 + x)", "1 / (0.001 + sqrt(x))", "pow(0.001 + x, -0.5)"])
def test_roots_of_what_is_positive_read_a_lognormal(name: str) -> None:
    random = np.random.default_rng(0)
    spread = math.log1p(0.5)
    x = np.exp(math.sqrt(spread) * random.standard_normal(2**20) - 0.5 * spread)
    found = values(parse(name), x)
    assert moments(name, 1.0, 0.5) == pytest.approx((found.mean(), (found**2).mean()), rel=0.01)


# Names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (next(iter(FUNCTIONS)), "gelu_tanh"),
        ("0.5 * x * (1 + erf(x / 1.4142135623730951))", "gelu"),
        ("x / (1 + exp(-x))", "silu"),
        ("x * tanh(softplus(x))", "mish"),
        ("x * minimum(relu(3 + x), 6) / 6", "hardswish"),
        ("maximum(x, 0)", "relu"),
        ("where(x > 0, x, 0)", "relu"),
        ("minimum(maximum(x, -1), 1)", "hardtanh"),
        ("x * x", "square"),
        ("x * x * x", "pow:3.0"),
        ("leaky_relu(x, 0.3)", "leaky_relu:0.3"),
        ("leaky_relu(x, 0.01)", "leaky_relu"),
        ("x * sigmoid(1.702 * x)", "x * sigmoid(1.702 * x)"),
    ],
)
def test_a_function_goes_by_the_name_of_the_known_one_it_equals(text: str, name: str) -> None:
    assert name_of(parse(text)) == name
    x = np.linspace(-4, 4, 33)
    assert values(expression_of(name), x) == pytest.approx(values(parse(text), x), abs=1e-6)


def test_names_are_short_where_people_read_them() -> None:
    name = str(parse("x * tanh(0.7978845608028654 * x)"))
    assert shortened(name) == "x * tanh(0.7979 * x)" == Activation(name).words()
    assert shortened("leaky_relu:0.123456") == "leaky_relu:0.123456"


def expressions() -> st.SearchStrategy[Expression]:
    numbers = st.floats(-3, 3).map(lambda value: round(value, 3))
    leaves = st.just(X)

    def grown(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        return st.one_of(
            st.builds(total, inner, inner),
            st.builds(product, inner, inner),
            st.builds(lambda a, b: quotient(a, shifted(applied("square", b), 1.0)), inner, inner),
            st.builds(shifted, inner, numbers),
            st.builds(scaled_by, inner, numbers.filter(bool)),
            st.builds(applied, st.sampled_from(["tanh", "relu", "sigmoid", "softplus", "sin"]), inner),
            st.builds(lambda a, p: applied("leaky_relu", a, p), inner, numbers),
            st.builds(larger, inner, inner),
            st.builds(smaller, inner, numbers.map(number)),
            st.builds(lambda a, b, c: chosen(compared(">", a, number(0.1)), b, c), inner, inner, inner),
        )

    return st.recursive(leaves, grown, max_leaves=6)


@given(expressions().filter(lambda e: "x" in str(e).replace("exp", "").replace("maximum", "")))
def test_text_reads_back_as_the_same_function(expression: Expression) -> None:
    x = np.linspace(-2.03, 2.01, 41)
    again = parse(str(expression))
    assert str(parse(str(again))) == str(again)
    np.testing.assert_allclose(values(again, x), values(expression, x), rtol=1e-9, atol=1e-9)


@given(expressions(), expressions())
def test_substitution_is_composition(outer: Expression, inner: Expression) -> None:
    x = np.linspace(-2.03, 2.01, 41)
    np.testing.assert_allclose(
        values(substituted(outer, inner), x), values(outer, values(inner, x)), rtol=1e-6, atol=1e-6
    )


@given(expressions())
def test_a_line_is_told_from_a_function(expression: Expression) -> None:
    x = np.linspace(-2.03, 2.01, 41)
    line = affine(expression)
    if line is not None:
        np.testing.assert_allclose(values(expression, x), line[0] * x + line[1], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(slopes(expression, x), line[0] + 0 * x, rtol=1e-9, atol=1e-9)
        assert core(expression) == X


def test_copies_have_one_core() -> None:
    assert core(parse("3 * tanh(x)")) == core(parse("1 - 2 * tanh(x)")) == parse("tanh(x)")
    assert core(parse("2 * x + 1")) == X


# What is refused


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x * rleu(x)", "calls 'rleu', which is not known"),
        ("__import__(x)", "calls '__import__', which is not known"),
        ("x.real + 1", "means nothing here"),
        ("x * (1 + tanh(x)", "lacks a '\\)'"),
        ("x x", "where it should end"),
        ("x +", "ends too early"),
        ("1 + 2", "does not use x"),
        ("where(x, 1, 2)", "no comparison"),
        ("maximum(x)", "takes 2"),
        ("pow(x)", "takes 2"),
        ("pow(x, x)", "a parameter that is not a number"),
        ("1 + softplus(x, 0)", "give a number above 0"),
        ("1e999 * x", "not finite"),
        ("(" * 500 + "x" + ")" * 500, "nested more than"),
        ("x + " * 10_000 + "x", "letters"),
        ("x > 0", "where it should end"),
        ("1 + softmax(x)", "calls 'softmax'"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        moments(text, 0.0, 1.0)
    with pytest.raises(InputError):
        operator_of({"op": "activation", "name": text})


def test_a_function_of_more_than_one_entry_is_no_expression() -> None:
    with pytest.raises(InputError, match="more than one entry"):
        expression_of("softmax:8")


def test_a_graph_keeps_expressions_in_json() -> None:
    operators = (Activation("x * sigmoid(1.702 * x)"), Weight(4, 4))
    graph = Graph.build(map(Vertex, "xy"), [Edge("x", "y", operators)], inputs=["x"], outputs=["y"])
    assert Graph.from_dict(graph.to_dict()) == graph
