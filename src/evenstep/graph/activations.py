"""Moments of activations on Gaussian input, by quadrature: E[act(z)], E[act(z)^2], E[act'(z)^2]."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evenstep.graph.expression_names import is_plain, parse
from evenstep.graph.expressions import reads_positive, slopes, values
from evenstep.graph.functions import (
    FUNCTIONS,
    HOMOGENEOUS,
    POSITIVE,
    TINY,
    erf,
    known_names,
    sigmoid,
    split_name,
)

Array = npt.NDArray[np.float64]

_NODES = 4001
_SPAN = 9.0


def known_activations() -> tuple[str, ...]:
    """Return the names that `moments` accepts besides expressions, including `softmax:N` (over N entries)."""
    return known_names()


@lru_cache(maxsize=1)
def _quadrature() -> tuple[Array, Array]:
    """Return nodes and weights for a standard Gaussian.

    The trapezoid rule on a fine, even grid is spectrally accurate for smooth functions and, unlike Gauss-Hermite,
    accurate to 1e-6 for functions with a kink at zero.
    """
    nodes = np.linspace(-_SPAN, _SPAN, _NODES)
    weights = np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()


def require_known(activation: str) -> None:
    """Refuse an activation that is not known, or that cannot have its parameter."""
    if is_plain(activation):
        split_name(activation)
    else:
        parse(activation)


@lru_cache(maxsize=65536)
def moments(activation: str, mean: float, variance: float) -> tuple[float, float]:
    """Return (E[act(z)], E[act(z)^2]) for z ~ N(mean, variance).

    The activation is a function's name, with its parameter if any ('leaky_relu:0.1'), or an expression in x.

    >>> [round(value, 4) for value in moments("relu", 0.0, 1.0)]
    [0.3989, 0.5]
    >>> [round(value, 4) for value in moments("x * sigmoid(1.702 * x)", 0.0, 1.0)]
    [0.2823, 0.422]
    """
    nodes, weights = _quadrature()
    if not is_plain(activation):
        expression = parse(activation)
        inputs = mean + math.sqrt(variance) * nodes
        if mean > 0.0 and reads_positive(expression, inputs):
            inputs = _lognormal(mean, variance, nodes)
        outputs = values(expression, inputs)
        return float(weights @ outputs), float(weights @ outputs**2)
    name, parameter = split_name(activation)
    if name == "softmax":
        # exp(z) / sum exp over independent entries: for many entries a lognormal over its mean, for few at most one.
        spread = math.exp(min(variance, 30.0))
        return 1.0 / parameter, spread / (1.0 + (spread - 1.0) / parameter) / parameter**2
    if name == "glu":
        # One half of the signal times the sigmoid of the other half, which is independent.
        gate_mean, gate_second = moments("sigmoid", mean, variance)
        return mean * gate_mean, (mean**2 + variance) * gate_second
    if name in HOMOGENEOUS and mean == 0.0 and variance not in (0.0, 1.0):
        unit_mean, unit_second = moments(activation, 0.0, 1.0)
        return unit_mean * math.sqrt(variance), unit_second * variance
    inputs = mean + math.sqrt(variance) * nodes
    if name in POSITIVE and mean > 0.0:
        inputs = _lognormal(mean, variance, nodes)
    outputs = FUNCTIONS[name](inputs, parameter)
    return float(weights @ outputs), float(weights @ outputs**2)


def _lognormal(mean: float, variance: float, nodes: Array) -> Array:
    """Return positive inputs of this mean and variance, such as sums of squares."""
    spread = math.log1p(variance / mean**2)
    inputs: Array = mean * np.exp(math.sqrt(spread) * nodes - 0.5 * spread)
    return inputs


@lru_cache(maxsize=65536)
def slope(activation: str, mean: float, variance: float) -> float:
    """Return E[act'(z)^2] for z ~ N(mean, variance): the factor of a small change's variance.

    >>> round(slope("relu", 0.0, 1.0), 3)
    0.5
    """
    nodes, weights = _quadrature()
    inputs = mean + math.sqrt(max(variance, TINY**2)) * nodes
    if not is_plain(activation):
        return float(weights @ slopes(parse(activation), inputs) ** 2)
    name, parameter = split_name(activation)
    if name == "softmax":  # d p_i / d z_i = p_i (1 - p_i), and p_i is small
        return moments(activation, mean, variance)[1]
    if name == "glu":  # a * sigmoid(b): both halves may change
        return moments("sigmoid", mean, variance)[1] + (mean**2 + variance) * slope("sigmoid", mean, variance)
    derivative = np.gradient(FUNCTIONS[name](inputs, parameter), inputs)
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
    distribution = (0.5 * (1.0 + erf(nodes / math.sqrt(2.0)))) ** window
    weights = np.diff(distribution, prepend=0.0)
    middle = nodes - 0.5 * (nodes[1] - nodes[0])
    return float(weights @ middle), float(weights @ middle**2)


RECURRENT = ("lstm", "gru", "tanh", "relu")


@lru_cache(maxsize=8)
def recurrent_second_moment(kind: str) -> float:
    """Return the stationary second moment of a recurrent cell whose gates read unit Gaussians (simulated)."""
    random = np.random.default_rng(0)
    state = cell = np.zeros(16384)
    for _ in range(48):
        spread = math.sqrt(1.0 + float(np.mean(state**2)))
        a, b, c, d = (spread * random.standard_normal(16384) for _ in range(4))
        if kind == "lstm":
            cell = sigmoid(a) * cell + sigmoid(b) * np.tanh(c)
            state = sigmoid(d) * np.tanh(cell)
        elif kind == "gru":
            state = sigmoid(a) * state + (1 - sigmoid(a)) * np.tanh(b)
        else:
            state = np.maximum(a, 0.0) if kind == "relu" else np.tanh(a)
    return float(np.mean(state**2))
