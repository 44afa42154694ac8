"""Functions of single entries by name: the names of activations, and the parts of expressions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evenstep.errors import InputError

Array = npt.NDArray[np.float64]

erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(z: Array) -> Array:
    """Return 1 / (1 + exp(-z)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def _softplus(z: Array, beta: float) -> Array:
    return np.logaddexp(0.0, beta * z) / beta


def _gelu_tanh(z: Array) -> Array:
    return 0.5 * z * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3)))


def _power(z: Array, exponent: float) -> Array:
    if not float(exponent).is_integer():
        return np.power(np.maximum(z, TINY), exponent)
    if exponent >= 0:
        return np.power(z, exponent)
    far = np.abs(z) > TINY
    return np.where(far, np.power(np.where(far, z, 1.0), exponent), 0.0)


# Name -> function of (input, parameter). An activation is written 'name' or 'name:parameter'.
FUNCTIONS: dict[str, Callable[[Array, float], Array]] = {
    "relu": lambda z, _: np.maximum(z, 0.0),
    "relu6": lambda z, _: np.clip(z, 0.0, 6.0),
    "leaky_relu": lambda z, slope: np.where(z > 0, z, slope * z),
    "elu": lambda z, alpha: np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0.0))),
    "celu": lambda z, alpha: np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0.0) / alpha)),
    "selu": lambda z, _: 1.0507009873554805 * np.where(z > 0, z, 1.6732632423543772 * np.expm1(np.minimum(z, 0.0))),
    "gelu": lambda z, _: 0.5 * z * (1.0 + erf(z / math.sqrt(2.0))),
    "gelu_tanh": lambda z, _: _gelu_tanh(z),
    "silu": lambda z, _: z * sigmoid(z),
    "mish": lambda z, _: z * np.tanh(_softplus(z, 1.0)),
    "tanh": lambda z, _: np.tanh(z),
    "sigmoid": lambda z, _: sigmoid(z),
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
    "erf": lambda z, _: erf(z),
    "sqrt": lambda z, _: np.sqrt(np.maximum(z, 0.0)),
    "rsqrt": lambda z, _: 1.0 / np.sqrt(np.maximum(z, TINY)),
    "reciprocal": lambda z, _: np.where(np.abs(z) > TINY, 1.0 / np.where(z == 0.0, 1.0, z), 0.0),
    "log": lambda z, _: np.log(np.maximum(z, TINY)),
    "log1p": lambda z, _: np.log1p(np.maximum(z, -1.0 + TINY)),
    "pow": lambda z, exponent: _power(z, exponent),
}
# Functions with a pole at zero are cut off below this.
TINY = 1e-3
DEFAULTS = {"leaky_relu": 0.01, "elu": 1.0, "celu": 1.0, "softplus": 1.0, "softshrink": 0.5}
SPECIAL = ("glu", "softmax")  # functions of more than one entry
POSITIVE = frozenset({"sqrt", "rsqrt", "reciprocal", "log"})  # functions of positive numbers
DIVIDES = frozenset({"celu", "softplus", "softmax"})  # functions that divide by their parameter
HOMOGENEOUS = frozenset({"relu", "leaky_relu", "abs"})


def known_names() -> tuple[str, ...]:
    """Return the names of all functions, including `softmax:N` (over N entries)."""
    return (*sorted(FUNCTIONS), *SPECIAL)


def split_name(activation: str) -> tuple[str, float]:
    """Return the function and the parameter that 'name' or 'name:parameter' stands for; raise if there is none."""
    name, _, given = activation.partition(":")
    if name not in FUNCTIONS and name not in SPECIAL:
        raise InputError(f"activation '{activation}' is not known; choose one of {', '.join(known_names())}")
    try:
        parameter = float(given) if given else DEFAULTS.get(name, 1.0)
    except ValueError:
        raise InputError(f"activation '{activation}' has the parameter '{given}'; give a number") from None
    if not math.isfinite(parameter) or (parameter <= 0 and name in DIVIDES):
        kind = "a number above 0" if name in DIVIDES else "a finite number"
        raise InputError(f"activation '{activation}' has the parameter '{given}'; give {kind}")
    return name, parameter
