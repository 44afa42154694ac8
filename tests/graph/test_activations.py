"""Check the moments of activations against torch's own functions, integrated by scipy."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.integrate import quad
from torch import Tensor

from evenstep.errors import InputError
from evenstep.graph.activations import gain, known_activations, maximum_moments, moments

Function = Callable[[Tensor], Tensor]

# Written form -> (torch's function, where it has kinks).
ANYWHERE: dict[str, tuple[Function, tuple[float, ...]]] = {
    "relu": (F.relu, (0,)),
    "relu6": (F.relu6, (0, 6)),
    "leaky_relu": (F.leaky_relu, (0,)),
    "leaky_relu:0.3": (lambda z: F.leaky_relu(z, 0.3), (0,)),
    "elu": (F.elu, (0,)),
    "elu:0.4": (lambda z: F.elu(z, 0.4), (0,)),
    "celu": (F.celu, (0,)),
    "celu:2.5": (lambda z: F.celu(z, 2.5), (0,)),
    "selu": (F.selu, (0,)),
    "gelu": (F.gelu, ()),
    "gelu_tanh": (lambda z: F.gelu(z, approximate="tanh"), ()),
    "silu": (F.silu, ()),
    "mish": (F.mish, ()),
    "tanh": (torch.tanh, ()),
    "sigmoid": (torch.sigmoid, ()),
    "logsigmoid": (F.logsigmoid, ()),
    "hardswish": (F.hardswish, (-3, 3)),
    "hardsigmoid": (F.hardsigmoid, (-3, 3)),
    "hardtanh": (F.hardtanh, (-1, 1)),
    "softplus": (F.softplus, ()),
    "softplus:3": (lambda z: F.softplus(z, beta=3.0), ()),
    "softshrink": (F.softshrink, (-0.5, 0.5)),
    "softshrink:1.2": (lambda z: F.softshrink(z, 1.2), (-1.2, 1.2)),
    "softsign": (F.softsign, (0,)),
    "abs": (torch.abs, (0,)),
    "square": (torch.square, ()),
    "exp": (torch.exp, ()),
    "sin": (torch.sin, ()),
    "cos": (torch.cos, ()),
    "erf": (torch.erf, ()),
    "pow:3": (lambda z: torch.pow(z, 3), ()),
    "pow:2": (torch.square, ()),
}
# These have a pole or an edge at zero; they are right where the signal stays away from it.
ABOVE_ZERO: dict[str, Function] = {
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "log": torch.log,
    "log1p": torch.log1p,
    "pow:0.5": torch.sqrt,
    "pow:-1": torch.reciprocal,
}
INPUTS = [(0.0, 1.0), (0.0, 0.25), (0.0, 4.0), (0.7, 1.0), (-1.3, 0.5), (2.0, 2.0)]


def integrated(function: Function, mean: float, variance: float, kinks: tuple[float, ...]) -> tuple[float, float]:
    """Integrate f and f^2 against the density of N(mean, variance)."""
    spread = math.sqrt(variance)
    points = sorted(kink for kink in ((k - mean) / spread for k in kinks) if abs(kink) < 11)

    def integral(power: int) -> float:
        def integrand(u: float) -> float:
            value = function(torch.tensor(mean + spread * u, dtype=torch.float64)).item()
            return value**power * math.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)

        return float(quad(integrand, -11, 11, points=points or None, epsabs=1e-11, epsrel=1e-10, limit=200)[0])

    return integral(1), integral(2)


@pytest.mark.parametrize(("mean", "variance"), INPUTS)
@pytest.mark.parametrize("name", ANYWHERE)
def test_moments_equal_the_integrals_of_torch_s_function(name: str, mean: float, variance: float) -> None:
    function, kinks = ANYWHERE[name]
    expected = integrated(function, mean, variance, kinks)
    assert moments(name, mean, variance) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("mean", "variance"), [(3.0, 0.04), (6.0, 0.25), (20.0, 1.0)])
@pytest.mark.parametrize("name", ABOVE_ZERO)
def test_moments_away_from_a_pole(name: str, mean: float, variance: float) -> None:
    expected = integrated(ABOVE_ZERO[name], mean, variance, ())
    assert moments(name, mean, variance) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("mean", "variance"), [(1.0, 0.5), (0.3, 0.09), (8.0, 100.0)])
@pytest.mark.parametrize(("name", "power"), [("sqrt", 0.5), ("rsqrt", -0.5), ("reciprocal", -1.0)])
def test_powers_of_positive_signals_are_those_of_a_lognormal(
    name: str, power: float, mean: float, variance: float
) -> None:
    # E[X^p] = m^p exp(p (p - 1) s / 2) for a lognormal of mean m and variance v, with s = log(1 + v / m^2).
    spread = math.log(1 + variance / mean**2)
    expected = [mean**p * math.exp(p * (p - 1) * spread / 2) for p in (power, 2 * power)]
    assert moments(name, mean, variance) == pytest.approx(tuple(expected), rel=1e-4)


@pytest.mark.parametrize(("mean", "variance"), [(1.0, 0.5), (0.3, 0.09), (8.0, 100.0)])
def test_the_logarithm_of_a_positive_signal_is_that_of_a_lognormal(mean: float, variance: float) -> None:
    spread = math.log(1 + variance / mean**2)
    centre = math.log(mean) - spread / 2
    assert moments("log", mean, variance) == pytest.approx((centre, centre**2 + spread), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "reciprocal", "log", "log1p", "exp", "pow:-1", "pow:0.5"])
def test_moments_stay_finite_at_a_pole(name: str) -> None:
    assert all(math.isfinite(value) for value in moments(name, 0.0, 1.0))
    assert all(math.isfinite(value) for value in moments(name, 0.0, 100.0))


def test_every_known_activation_is_checked_here() -> None:
    checked = {name.partition(":")[0] for name in (*ANYWHERE, *ABOVE_ZERO)} | {"glu", "softmax"}
    assert set(known_activations()) == checked


@pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "sigmoid", "leaky_relu:0.3", "abs"])
@pytest.mark.parametrize("mean", [-1.5, 0.0, 0.8])
def test_a_constant_input_gives_the_function_itself(name: str, mean: float) -> None:
    value = ANYWHERE[name][0](torch.tensor(mean, dtype=torch.float64)).item()
    assert moments(name, mean, 0.0) == pytest.approx((value, value**2), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("mean", "variance"), INPUTS)
def test_glu_equals_torch_on_samples(mean: float, variance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z = mean + math.sqrt(variance) * torch.randn(2, 2**20, generator=generator, dtype=torch.float64)
    gated = F.glu(z, dim=0)
    expected = (gated.mean().item(), gated.square().mean().item())
    assert moments("glu", mean, variance) == pytest.approx(expected, rel=0.01, abs=0.005)


@pytest.mark.parametrize(("entries", "variance"), [(256, 0.25), (256, 1.0), (1024, 2.0)])
def test_softmax_equals_torch_on_samples(entries: int, variance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z = math.sqrt(variance) * torch.randn(2**21 // entries, entries, generator=generator, dtype=torch.float64)
    shares = F.softmax(z, dim=1)
    found = moments(f"softmax:{entries}", 0.0, variance)
    assert found[0] == pytest.approx(shares.mean().item(), rel=1e-9)
    assert found[1] == pytest.approx(shares.square().mean().item(), rel=0.05)


def test_gains_with_a_closed_form() -> None:
    assert gain("relu") == pytest.approx(0.5, rel=1e-6)
    assert gain("leaky_relu:0.5") == pytest.approx((1 + 0.25) / 2, rel=1e-6)
    assert gain("abs") == pytest.approx(1.0, rel=1e-6)
    assert gain("square") == pytest.approx(3.0, rel=1e-6)
    assert gain("exp") == pytest.approx(math.exp(2), rel=1e-6)
    assert gain("sin") == pytest.approx((1 - math.exp(-2)) / 2, rel=1e-6)
    assert moments("relu", 0.0, 1.0)[0] == pytest.approx(1 / math.sqrt(2 * math.pi), rel=1e-5)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 9, 49])
def test_the_largest_of_many_equals_samples_and_integrals(window: int) -> None:
    found = maximum_moments(window)

    def density(x: float) -> float:
        below = 0.5 * math.erfc(-x / math.sqrt(2))
        return window * math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) * below ** (window - 1)

    exact = [quad(lambda x, k=k: x**k * density(x), -12, 12, epsabs=1e-12)[0] for k in (1, 2)]
    assert found == pytest.approx(tuple(exact), rel=1e-4, abs=1e-5)
    random = np.random.default_rng(window)
    largest = random.standard_normal((2**20 // window, window)).max(axis=1)
    assert found == pytest.approx((largest.mean(), (largest**2).mean()), rel=0.02, abs=0.01)


def test_the_largest_of_two_and_three_have_known_means() -> None:
    assert maximum_moments(2)[0] == pytest.approx(1 / math.sqrt(math.pi), rel=1e-5)
    assert maximum_moments(3)[0] == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-5)


@pytest.mark.parametrize("name", ["rleu", "", "relu7", "leakyrelu:0.1"])
def test_an_unknown_activation_is_named(name: str) -> None:
    with pytest.raises(InputError, match=f"activation '{name}' is not known") as caught:
        moments(name, 0.0, 1.0)
    assert "relu, " in str(caught.value)


@pytest.mark.parametrize("name", ["leaky_relu:x", "elu:"])
def test_a_parameter_that_is_no_number_is_named(name: str) -> None:
    if name.endswith(":"):  # nothing given: the default
        assert moments(name, 0.0, 1.0) == moments("elu", 0.0, 1.0)
        return
    with pytest.raises(InputError, match=name):
        moments(name, 0.0, 1.0)


@pytest.mark.parametrize("name", ["leaky_relu:nan", "elu:inf", "softmax:0", "softplus:0", "celu:-0.0"])
def test_parameters_no_function_can_have_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="give a"):
        moments(name, 0.0, 1.0)
