"""Moments of activations on Gaussian input, by quadrature: E[act(z)], E[act(z)^2], E[act'(z)^2]."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evenstep.errors import InputError

Array = npt.NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[float])


def _sigmoid(z: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def _softplus(z: Array, beta: float) -> Array:
    return np.logaddexp(0.0, beta * z) / beta


def _gelu_tanh(z: Array) -> Array:
    return 0.5 * z * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3)))


def _power(z: Array, exponent: float) -> Array:
    if not float(exponent).is_integer():
        return np.power(np.maximum(z, _TINY), exponent)
    if exponent >= 0:
        return np.power(z, exponent)
    far = np.abs(z) > _TINY
    return np.where(far, np.power(np.where(far, z, 1.0), exponent), 0.0)


# Name -> function of (input, parameter). An activation is written 'name' or 'name:parameter'.
_FUNCTIONS: dict[str, Callable[[Array, float], Array]] = {
    "relu": lambda z, _: np.maximum(z, 0.0),
    "relu6": lambda z, _: np.clip(z, 0.0, 6.0),
    "leaky_relu": lambda z, slope: np.where(z > 0, z, slope * z),
    "elu": lambda z, alpha: np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0.0))),
    "celu": lambda z, alpha: np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0.0) / alpha)),
    "selu": lambda z, _: 1.0507009873554805 * np.where(z > 0, z, 1.6732632423543772 * np.expm1(np.minimum(z, 0.0))),
    "gelu": lambda z, _: 0.5 * z * (1.0 + _erf(z / math.sqrt(2.0))),
    "gelu_tanh": lambda z, _: _gelu_tanh(z),
    "silu": lambda z, _: z * _sigmoid(z),
    "mish": lambda z, _: z * np.tanh(_softplus(z, 1.0)),
    "tanh": lambda z, _: np.tanh(z),
    "sigmoid": lambda z, _: _sigmoid(z),
    "logsigmoid": lambda z, _: -_softplus(-z, 1.0),
    "hardswish": lambda z, _: z * np.clip(z + 3.0, 0.0, 6.0) / 6.0,
    "hardsigmoid": lambda z, _: np.clip(z + 3.0, 0.0, 6.0) / 6.0,
    "hardtanh": lambda z, _: np.clip(z, -1.0, 1.0),
    "softplus": lambda z, beta: _softplus(z, beta),
    "softshrink": lambda z, width: np.sign(z) * np.maximum(np.abs(z) - width, 0.0),
    "softsign": lambda z, _: z / (1.0 + np.abs(z)),
    "abs": lambda z, _: np.abs(z),
    "square": lambda z, _: z**2,
    "exp": lambda z, _: np.exp(np.minimum(z, 30.0)),
    "sin": lambda z, _: np.sin(z),
    "cos": lambda z, _: np.cos(z),
    "erf": lambda z, _: _erf(z),
    "sqrt": lambda z, _: np.sqrt(np.maximum(z, 0.0)),
    "rsqrt": lambda z, _: 1.0 / np.sqrt(np.maximum(z, _TINY)),
    "reciprocal": lambda z, _: np.where(np.abs(z) > _TINY, 1.0 / np.where(z == 0.0, 1.0, z), 0.0),
    "log": lambda z, _: np.log(np.maximum(z, _TINY)),
    "log1p": lambda z, _: np.log1p(np.maximum(z, -1.0 + _TINY)),
    "pow": lambda z, exponent: _power(z, exponent),
}
# Below this, functions with a pole at zero are cut off.
_TINY = 1e-3
_DEFAULTS = {"leaky_relu": 0.01, "elu": 1.0, "celu": 1.0, "softplus": 1.0, "softshrink": 0.5}
_SPECIAL = ("glu", "softmax")  # of more than one entry
_POSITIVE = frozenset({"sqrt", "rsqrt", "reciprocal", "log"})  # functions that are asked about positive numbers
_DIVIDES = frozenset({"celu", "softplus", "softmax"})  # functions that divide by their parameter
_HOMOGENEOUS = frozenset({"relu", "leaky_relu", "abs"})
_NODES = 4001
_SPAN = 9.0


def known_activations() -> tuple[str, ...]:
    """Return the names that `moments` accepts, `softmax:N` (over N entries) among them."""
    return (*sorted(_FUNCTIONS), *_SPECIAL)


@lru_cache(maxsize=1)
def _quadrature() -> tuple[Array, Array]:
    """Return nodes and weights for a standard Gaussian.

    The trapezoid rule on a fine even grid: spectrally accurate for smooth functions, and unlike Gauss-Hermite it
    stays accurate to 1e-6 for functions with a kink at zero.
    """
    nodes = np.linspace(-_SPAN, _SPAN, _NODES)
    weights = np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()


def _parse(activation: str) -> tuple[str, float]:
    name, _, given = activation.partition(":")
    if name not in _FUNCTIONS and name not in _SPECIAL:
        raise InputError(f"activation '{activation}' is not known; choose one of {', '.join(known_activations())}")
    try:
        parameter = float(given) if given else _DEFAULTS.get(name, 1.0)
    except ValueError:
        raise InputError(f"activation '{activation}' has the parameter '{given}'; give a number") from None
    if not math.isfinite(parameter) or (parameter <= 0 and name in _DIVIDES):
        kind = "a number above 0" if name in _DIVIDES else "a finite number"
        raise InputError(f"activation '{activation}' has the parameter '{given}'; give {kind}")
    return name, parameter


def require_known(activation: str) -> None:
    """Refuse an activation that there is no function for, or a parameter that it cannot have."""
    _parse(activation)


@lru_cache(maxsize=65536)
def moments(activation: str, mean: float, variance: float) -> tuple[float, float]:
    """Return (E[act(z)], E[act(z)^2]) for z ~ N(mean, variance).

    >>> [round(value, 4) for value in moments("relu", 0.0, 1.0)]
    [0.3989, 0.5]
    """
    name, parameter = _parse(activation)
    if name == "softmax":
        # exp(z) / sum exp over `parameter` independent entries, for many entries: a lognormal over its mean.
        return 1.0 / parameter, math.exp(min(variance, 30.0)) / parameter**2
    if name == "glu":
        # One half of the signal times the sigmoid of the other, the halves independent.
        gate_mean, gate_second = moments("sigmoid", mean, variance)
        return mean * gate_mean, (mean**2 + variance) * gate_second
    if name in _HOMOGENEOUS and mean == 0.0 and variance not in (0.0, 1.0):
        unit_mean, unit_second = moments(activation, 0.0, 1.0)
        return unit_mean * math.sqrt(variance), unit_second * variance
    nodes, weights = _quadrature()
    if name in _POSITIVE and mean > 0.0:
        # Sums of squares and their like: positive, so lognormal with this mean and variance in place of Gaussian.
        spread = math.log1p(variance / mean**2)
        inputs = mean * np.exp(math.sqrt(spread) * nodes - 0.5 * spread)
    else:
        inputs = mean + math.sqrt(variance) * nodes
    values = _FUNCTIONS[name](inputs, parameter)
    return float(weights @ values), float(weights @ values**2)


@lru_cache(maxsize=65536)
def slope(activation: str, mean: float, variance: float) -> float:
    """Return E[act'(z)^2] for z ~ N(mean, variance): the factor by which a small change's variance grows.

    >>> round(slope("relu", 0.0, 1.0), 3)
    0.5
    """
    name, parameter = _parse(activation)
    if name == "softmax":  # d p_i / d z_i = p_i (1 - p_i), and p_i is small
        return moments(activation, mean, variance)[1]
    if name == "glu":  # a * sigmoid(b): both halves may change
        return moments("sigmoid", mean, variance)[1] + (mean**2 + variance) * slope("sigmoid", mean, variance)
    nodes, weights = _quadrature()
    inputs = mean + math.sqrt(max(variance, _TINY**2)) * nodes
    derivative = np.gradient(_FUNCTIONS[name](inputs, parameter), inputs)
    return float(weights @ derivative**2)


def gain(activation: str) -> float:
    """Return E[act(z)^2] for a standard Gaussian z: the second-moment gain of the activation.

    >>> round(gain("relu"), 6)
    0.5
    """
    return moments(activation, 0.0, 1.0)[1]


@lru_cache(maxsize=256)
def maximum_moments(window: int) -> tuple[float, float]:
    """Return mean and second moment of the largest of `window` independent standard Gaussians."""
    nodes, _ = _quadrature()
    distribution = (0.5 * (1.0 + _erf(nodes / math.sqrt(2.0)))) ** window
    weights = np.diff(distribution, prepend=0.0)
    middle = nodes - 0.5 * (nodes[1] - nodes[0])
    return float(weights @ middle), float(weights @ middle**2)


RECURRENT = ("lstm", "gru", "tanh", "relu")


@lru_cache(maxsize=8)
def recurrent_second_moment(kind: str) -> float:
    """Return the stationary second moment of a recurrent cell's output, its gates fed unit Gaussians (simulated)."""
    random = np.random.default_rng(0)
    state = cell = np.zeros(16384)
    for _ in range(48):
        spread = math.sqrt(1.0 + float(np.mean(state**2)))
        a, b, c, d = (spread * random.standard_normal(16384) for _ in range(4))
        if kind == "lstm":
            cell = _sigmoid(a) * cell + _sigmoid(b) * np.tanh(c)
            state = _sigmoid(d) * np.tanh(cell)
        elif kind == "gru":
            state = _sigmoid(a) * state + (1 - _sigmoid(a)) * np.tanh(b)
        else:
            state = np.maximum(a, 0.0) if kind == "relu" else np.tanh(a)
    return float(np.mean(state**2))
