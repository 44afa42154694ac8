"""Names of functions of x: 'silu', 'leaky_relu:0.1', or an expression's text, which is parsed and never evaluated.

>>> str(parse("0.5*x * (1 + tanh(x))"))
'0.5 * (x * (1 + tanh(x)))'
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evenstep.errors import InputError
from evenstep.graph.expressions import (
    COMPARISONS,
    Expression,
    X,
    applied,
    compared,
    composed,
    is_number,
    number,
    product,
    quotient,
    reads_x,
    scaled_by,
    total,
    values,
    written,
)
from evenstep.graph.functions import DEFAULTS, FUNCTIONS, split_name

Array = npt.NDArray[np.float64]

_LONGEST_TEXT = 20_000
_DEEPEST_NESTING = 100


def is_plain(name: str) -> bool:
    """Return whether an activation's name is that of a known function and not an expression."""
    return re.fullmatch(r"\w*(:.*)?", name) is not None and name != "x"


@lru_cache(maxsize=4096)
def expression_of(name: str) -> Expression:
    """Return the function that an activation's name stands for: the known one, or the expression itself."""
    if not is_plain(name):
        return parse(name)
    function, parameter = split_name(name)
    if function not in FUNCTIONS:
        raise InputError(f"activation '{name}' reads more than one entry; give a function of a single x")
    return applied(function, X, parameter if ":" in name else None)


@lru_cache(maxsize=4096)
def name_of(expression: Expression) -> str:
    """Return the name of a function: that of the known function it equals, or its text.

    >>> name_of(parse("x * sigmoid(x)")), name_of(parse("x * sigmoid(1.702 * x)"))
    ('silu', 'x * sigmoid(1.702 * x)')
    """
    if expression.head in FUNCTIONS and expression.parts[0] == X:
        parameters = "".join(f":{part.value}" for part in expression.parts[1:])
        return expression.head + parameters
    x, known = _known_values()
    outputs = values(expression, x)
    for name, function in known.items():
        if np.allclose(outputs, function, rtol=1e-6, atol=1e-6):
            return name
    return str(expression)


@lru_cache(maxsize=1)
def _known_values() -> tuple[Array, dict[str, Array]]:
    """Return sample points, and the values of the known activations there."""
    x = np.linspace(-7.9, 8.1, 161)
    inner = frozenset({"pow", "sin", "cos", "erf", "exp"}) | {"sqrt", "rsqrt", "reciprocal", "log", "log1p"}
    return x, {name: FUNCTIONS[name](x, DEFAULTS.get(name, 1.0)) for name in FUNCTIONS if name not in inner}


def shortened(name: str) -> str:
    """Return an activation's name with its numbers rounded to four digits, for people to read.

    >>> shortened("x * sigmoid(1.70212345 * x)")
    'x * sigmoid(1.702 * x)'
    """
    return name if is_plain(name) else written(parse(name), 4)


# Reading

_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(>=|<=|[-+*/(),<>]))")


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parse an expression; raise with the place where it stops being valid."""
    if len(text) > _LONGEST_TEXT:
        raise InputError(f"activation '{text[:40]}...' has {len(text)} letters; give {_LONGEST_TEXT} at most")
    reader = _Reader(text)
    expression = reader.sum()
    if reader.token != "":
        raise reader.error(f"has '{reader.token}' where it should end")
    if not reads_x(expression):
        raise reader.error("does not use x")
    return expression


class _Reader:
    """Parse the tokens of a text by recursive descent."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.token, self.nesting = text, 0, "", 0
        self.advance()

    def error(self, problem: str) -> InputError:
        return InputError(
            f"activation '{self.text}' {problem}; write a known name, or an expression such as 'x * (1 + tanh(x))'"
        )

    def advance(self) -> str:
        """Return the current token and move to the next; '' at the end."""
        before = self.token
        if not self.text[self.place :].strip():
            self.token = ""
            return before
        match = _TOKEN.match(self.text, self.place)
        if match is None:
            raise self.error(f"has '{self.text[self.place :].strip()[0]}', which means nothing here")
        self.token, self.place = match.group(match.lastindex or 0), match.end()
        return before

    def expect(self, token: str) -> None:
        if self.token != token:
            raise self.error(f"has '{self.token}' instead of '{token}'" if self.token else f"lacks a '{token}'")
        self.advance()

    def condition(self) -> Expression:
        left = self.sum()
        if self.token not in COMPARISONS:
            raise self.error("has no comparison such as 'x > 0' in a 'where'")
        return compared(self.advance(), left, self.sum())

    def sum(self) -> Expression:
        self.nesting += 1
        if self.nesting > _DEEPEST_NESTING:
            raise self.error(f"is nested more than {_DEEPEST_NESTING} deep")
        whole = self.product()
        while self.token in ("+", "-"):
            sign = 1.0 if self.advance() == "+" else -1.0
            whole = total(whole, scaled_by(self.product(), sign))
        self.nesting -= 1
        return whole

    def product(self) -> Expression:
        whole = self.factor()
        while self.token in ("*", "/"):
            join = product if self.advance() == "*" else quotient
            whole = join(whole, self.factor())
        return whole

    def factor(self) -> Expression:
        sign = 1.0
        while self.token == "-":
            self.advance()
            sign = -sign
        return scaled_by(self.atom(), sign)

    def atom(self) -> Expression:
        token = self.advance()
        if token == "(":
            inside = self.sum()
            self.expect(")")
            return inside
        if token == "x":
            return X
        if token and (token[0].isdigit() or token[0] == "."):
            value = float(token)
            if not math.isfinite(value):
                raise self.error(f"has the number '{token}', which is not finite")
            return number(value)
        if token and (token[0].isalpha() or token[0] == "_"):
            return self.call(token)
        raise self.error(f"has '{token}' instead of a number, x or a function" if token else "ends too early")

    def call(self, name: str) -> Expression:
        if name not in FUNCTIONS and name not in ("maximum", "minimum", "where"):
            known = ", ".join((*sorted(FUNCTIONS), "maximum", "minimum", "where"))
            raise self.error(f"calls '{name}', which is not known (known are {known})")
        self.expect("(")
        parts = [self.condition() if name == "where" else self.sum()]
        while self.token == ",":
            self.advance()
            parts.append(self.sum())
        self.expect(")")
        wanted = {"maximum": (2,), "minimum": (2,), "where": (3,), "pow": (2,)}.get(name, (1, 2))
        if len(parts) not in wanted:
            raise self.error(f"gives '{name}' {len(parts)} arguments; it takes {' or '.join(map(str, wanted))}")
        if name not in FUNCTIONS:
            return composed(name, tuple(parts))
        if len(parts) == 2 and not is_number(parts[1]):
            raise self.error(f"gives '{name}' a parameter that is not a number")
        if len(parts) == 2:
            split_name(f"{name}:{parts[1].value}")  # raises if the function cannot have this parameter
        return composed(name, tuple(parts))
