"""Functions of one variable x, written as expressions: `0.5 * (x * (1 + tanh(x)))`.

An activation that a network computes in several operations is one function of its input field. Expressions hold such
functions: the functions below compose them, write them as text, and evaluate them and their derivatives on arrays;
`evenstep.graph.expression_names` parses them. They consist of numbers, x, `+ - * /`, the functions of
`evenstep.graph.functions` (with a parameter after a comma: `leaky_relu(x, 0.1)`), `maximum(a, b)`, `minimum(a, b)` and
`where(a > b, then, otherwise)`.

>>> gelu_like = product(X, shifted(applied("tanh", X), 1.0))
>>> str(gelu_like)
'x * (1 + tanh(x))'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.graph.functions import DEFAULTS, FUNCTIONS, POSITIVE

Array = npt.NDArray[np.float64]

COMPARISONS = frozenset({">", "<", ">=", "<="})
_BINDS = {"+": 1, "*": 2, "/": 2} | dict.fromkeys(COMPARISONS, 0)
LARGEST_SIZE = 200  # parts of an expression: repeated products can double its size each time
_POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}


@dataclass(frozen=True, slots=True)
class Expression:
    """Hold one part of a function: `x`, a number (its `value`), or a function or operator with its operands."""

    head: str
    parts: tuple[Expression, ...] = ()
    value: float = 0.0
    size: int = field(init=False, compare=False, repr=False, default=1)  # the number of parts in all

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 1 + sum(part.size for part in self.parts))

    def __str__(self) -> str:
        return written(self)


X = Expression("x")


def number(value: float) -> Expression:
    """Return a number as an expression."""
    return Expression("number", value=float(value))


def is_number(expression: Expression) -> bool:
    """Return whether an expression is a number."""
    return expression.head == "number"


# Composition


def total(a: Expression, b: Expression) -> Expression:
    """Return a + b, with numbers first and added up."""
    if is_number(b):
        a, b = b, a
    if not is_number(a):
        if _shift(a)[0]:
            return shifted(total(_shift(a)[1], b), _shift(a)[0])
        if _shift(b)[0]:
            return shifted(total(a, _shift(b)[1]), _shift(b)[0])
        return Expression("+", (a, b))
    if is_number(b):
        return number(a.value + b.value)
    inner, rest = _shift(b)
    value = a.value + inner
    return rest if value == 0.0 else Expression("+", (number(value), rest))


def shifted(a: Expression, value: float) -> Expression:
    """Return a + value."""
    return total(number(value), a)


def product(a: Expression, b: Expression) -> Expression:
    """Return a * b, with numbers first and multiplied out, and powers of one base merged."""
    if is_number(a) and is_number(b):
        return number(a.value * b.value)
    (first, a), (second, b) = _factor(a), _factor(b)
    factor = first * second
    if factor == 0.0:
        return number(0.0)
    if is_number(a) or is_number(b):
        rest = b if is_number(a) else a
    else:
        (base, exponent), (other, more) = _power(a), _power(b)
        if base == other and exponent >= 1 and more >= 1:
            rest = applied("square", base) if exponent + more == 2 else applied("pow", base, exponent + more)
        else:
            rest = Expression("*", (a, b))
    return rest if factor == 1.0 else Expression("*", (number(factor), rest))


def scaled_by(a: Expression, factor: float) -> Expression:
    """Return factor * a."""
    return product(number(factor), a)


def quotient(a: Expression, b: Expression) -> Expression:
    """Return a / b."""
    if is_number(b) and b.value:
        return scaled_by(a, 1.0 / b.value)
    (first, a), (second, b) = _factor(a), _factor(b)
    ratio = Expression("/", (a, b))
    return ratio if first == second else Expression("*", (number(first / second), ratio))


def applied(name: str, a: Expression, parameter: float | None = None) -> Expression:
    """Return a known function of a; if a is a number, evaluate it."""
    parts = (a,) if parameter is None or parameter == DEFAULTS.get(name) else (a, number(parameter))
    whole = Expression(name, parts)
    return number(float(values(whole, np.zeros(1))[0])) if is_number(a) else whole


def larger(a: Expression, b: Expression) -> Expression:
    """Return the maximum of a and b; a ReLU if one of them is zero."""
    a, b = (b, a) if is_number(a) else (a, b)
    return applied("relu", a) if b == number(0.0) else Expression("maximum", (a, b))


def smaller(a: Expression, b: Expression) -> Expression:
    """Return the minimum of a and b."""
    return Expression("minimum", (b, a) if is_number(a) else (a, b))


def compared(relation: str, a: Expression, b: Expression) -> Expression:
    """Return the condition a > b, or another relation."""
    return Expression(relation, (a, b))


def chosen(condition: Expression, then: Expression, otherwise: Expression) -> Expression:
    """Return `then` if a condition holds, else `otherwise`."""
    return Expression("where", (condition, then, otherwise))


def substituted(expression: Expression, a: Expression) -> Expression:
    """Return an expression with x replaced by a."""
    if expression == X or a == X or is_number(expression):
        return a if expression == X else expression
    return composed(expression.head, tuple(substituted(part, a) for part in expression.parts))


def composed(head: str, parts: tuple[Expression, ...]) -> Expression:
    """Join parts by the function or operator named `head`, in canonical form."""
    joins: dict[str, Any] = {"+": total, "*": product, "/": quotient, "maximum": larger, "minimum": smaller}
    if head in joins:
        return joins[head](*parts)  # type: ignore[no-any-return]
    if head in FUNCTIONS:
        return applied(head, parts[0], parts[1].value if len(parts) > 1 else None)
    return Expression(head, parts)


def _shift(a: Expression) -> tuple[float, Expression]:
    """Split an added number off."""
    return (a.parts[0].value, a.parts[1]) if a.head == "+" and is_number(a.parts[0]) else (0.0, a)


def _factor(a: Expression) -> tuple[float, Expression]:
    """Split a factor off; a number is all factor."""
    if is_number(a):
        return a.value, number(1.0)
    return (a.parts[0].value, a.parts[1]) if a.head == "*" and is_number(a.parts[0]) else (1.0, a)


def _power(a: Expression) -> tuple[Expression, float]:
    """Split an integer exponent off; one if there is none."""
    if a.head == "square":
        return a.parts[0], 2.0
    if a.head == "pow" and a.parts[1].value >= 1 and a.parts[1].value.is_integer():
        return a.parts[0], a.parts[1].value
    return a, 1.0


# Properties of an expression


def affine(expression: Expression) -> tuple[float, float] | None:
    """Return (a, b) for an expression of the form a x + b; None for any other.

    >>> affine(shifted(scaled_by(shifted(X, -1.0), 2.0), 3.0))
    (2.0, 1.0)
    """
    if expression == X:
        return 1.0, 0.0
    if is_number(expression):
        return 0.0, expression.value
    if expression.head not in ("+", "*"):
        return None
    a, b = (affine(part) for part in expression.parts)
    if a is None or b is None:
        return None
    if expression.head == "+":
        return a[0] + b[0], a[1] + b[1]
    if a[0] and b[0]:
        return None
    scale, inner = (a[1], b) if not a[0] else (b[1], a)
    return scale * inner[0], scale * inner[1]


def core(expression: Expression) -> Expression:
    """Return an expression without outer factors and added numbers; copies of one signal have equal cores."""
    if affine(expression) is not None:
        return X
    while _factor(expression)[0] != 1.0 or _shift(expression)[0]:
        expression = _shift(_factor(expression)[1])[1]
    return expression


def reads_x(expression: Expression) -> bool:
    """Return whether an expression depends on x."""
    return expression == X or any(reads_x(part) for part in expression.parts)


def only_powers(expression: Expression) -> bool:
    """Return whether an expression only has powers, factors and added numbers, as the parts of a written-out norm do.

    >>> only_powers(applied("sqrt", shifted(applied("square", X), 0.001))), only_powers(applied("exp", X))
    (True, False)
    """
    if expression == X:
        return True
    if expression.head in ("+", "*"):
        a, b = expression.parts
        return is_number(a) and only_powers(b)
    return expression.head in (*_POWERS, "pow", "abs") and only_powers(expression.parts[0])


def reads_positive(expression: Expression, x: Array) -> bool:
    """Return whether x, scaled or shifted, is under a root or a divisor and would be negative at these values."""
    if not expression.parts or expression.head in COMPARISONS:
        return False
    fractional = expression.head == "pow" and not expression.parts[1].value.is_integer()
    if expression.head in POSITIVE or fractional or expression.head == "/":
        inner = expression.parts[-1] if expression.head == "/" else expression.parts[0]
        line = affine(inner)
        if line is not None and line[0] > 0 and bool(np.any(line[0] * x + line[1] <= 0.0)):
            return True
    return any(reads_positive(part, x) for part in expression.parts)


# Values


def values(expression: Expression, x: Array) -> Array:
    """Return the function's values."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _dual(expression, x, slopes=False)[0]


def slopes(expression: Expression, x: Array) -> Array:
    """Return the function's derivative, ignoring jumps as a backward pass does."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _dual(expression, x, slopes=True)[1]


_OUTER: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a * FUNCTIONS["reciprocal"](b, 1.0),
    "maximum": np.maximum,
    "minimum": np.minimum,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
    "where": np.where,
}


def _dual(expression: Expression, x: Array, *, slopes: bool) -> tuple[Array, Array]:
    """Return values and, if `slopes`, derivatives, by forward-mode differentiation."""
    head, nothing = expression.head, np.zeros_like(x)
    if head == "x":
        return x, np.ones_like(x)
    if head == "number":
        return np.full_like(x, expression.value), nothing
    if head in FUNCTIONS:
        inner, change = _dual(expression.parts[0], x, slopes=slopes)
        parameter = expression.parts[1].value if len(expression.parts) > 1 else DEFAULTS.get(head, 1.0)
        function = FUNCTIONS[head]
        outer = function(inner, parameter)
        if not slopes:
            return outer, nothing
        step = 1e-5 * np.maximum(np.abs(inner), 1.0)
        return outer, (function(inner + step, parameter) - function(inner - step, parameter)) / (2 * step) * change
    parts = [_dual(part, x, slopes=slopes) for part in expression.parts]
    outer = np.asarray(_OUTER[head](*(value for value, _ in parts)))
    if not slopes or head in COMPARISONS:
        return outer, nothing
    (a, da), (b, db) = parts[-2:]
    if head == "+":
        return outer, da + db
    if head == "*":
        return outer, a * db + da * b
    if head == "/":
        inverse = FUNCTIONS["reciprocal"](b, 1.0)
        return outer, da * inverse - a * db * inverse**2
    if head == "where":
        return outer, np.where(parts[0][0], da, db)
    first = a > b if head == "maximum" else a < b
    return outer, np.where(a == b, 0.5 * (da + db), np.where(first, da, db))


# Text


def written(expression: Expression, digits: int | None = None) -> str:
    """Return an expression's text, with its numbers in full or rounded to `digits`."""
    return _written(expression, digits)[0]


def _written(expression: Expression, digits: int | None) -> tuple[str, int]:
    """Return an expression's text and how tightly its outermost operator binds."""
    if is_number(expression):
        value = expression.value
        return f"{value:.{digits}g}" if digits else repr(value).removesuffix(".0"), 3
    head, parts = expression.head, [_written(part, digits) for part in expression.parts]
    if not parts:
        return head, 3
    if head not in _BINDS:
        return f"{head}({', '.join(text for text, _ in parts)})", 3
    binds = _BINDS[head]
    left, right = (
        text if inner > binds or (inner == binds and not place) else f"({text})"
        for place, (text, inner) in enumerate(parts)
    )
    if head == "*" and left == "-1":
        return f"-{right}", binds
    if head == "+" and right.startswith("-"):
        return f"{left} - {right[1:]}", binds
    return f"{left} {head} {right}", binds
