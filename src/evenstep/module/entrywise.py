"""Compose everything computed entry by entry from one field into one function, however many operators compute it.

Every value of a trace says of which field it is a function (`Entrywise`). An operator on single entries composes the
functions of its operands if all are functions of one field with its entries in the same places. Copies of one function
that meet in a sum stay a sum: they are separate paths.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from evenstep.graph import expressions
from evenstep.graph.expression_names import expression_of, is_plain, name_of
from evenstep.graph.expressions import COMPARISONS, LARGEST_SIZE, Expression, X, affine, core, reads_x
from evenstep.graph.functions import SPECIAL
from evenstep.graph.operators import Activation, Operator, Scale
from evenstep.module.handler_types import (
    Call,
    ConstantValue,
    Entrywise,
    Formula,
    Outcome,
    Shape,
    SignalValue,
    edge_from,
)
from evenstep.module.ops.pointwise import COMPARED

# Operators that pass every entry on unchanged: in the same shape, and in the same order in another shape.
_COPIES = frozenset(
    """
    clone contiguous detach alias to _to_copy type_as lift_fresh_copy lift_fresh requires_grad_ float half bfloat16
    double positive view _unsafe_view reshape flatten unflatten squeeze unsqueeze ravel view_as reshape_as
    """.split()
)
# Operators whose arguments determine how they move entries.
_MOVES = frozenset("permute transpose t mT numpy_T movedim moveaxis swapaxes swapdims expand select flip roll".split())
_KEEPS_ZEROS = frozenset("dropout div neg relu gelu silu tanh sum mean".split())
_FILLS = {"zeros": 0.0, "ones": 1.0, "zeros_like": 0.0, "ones_like": 1.0, "new_zeros": 0.0, "new_ones": 1.0}


def entrywise_of(signal: SignalValue) -> Entrywise:
    """Return the field that a signal is a function of: its own vertex's if nothing else is known."""
    return signal.entrywise or Entrywise(signal.vertex)


def composed(call: Call, outcome: Outcome) -> Entrywise | None:
    """Return an operator's output as a function of the single field it is computed from; None if it is not one."""
    if outcome.uses or outcome.parts or outcome.scale != 1.0 or any(edge.parameters for edge in outcome.edges):
        return None
    if call.parameters() or not outcome.edges:
        return None
    entrywise = None
    if outcome.formula is not None:
        entrywise = _by_formula(outcome.formula, call.shape)
    elif len(outcome.edges) == 1 and len(call.signals()) == 1:
        (signal,), operators = call.signals(), outcome.edges[0].operators
        entrywise = _by_operators(signal, operators, call) if operators else moved(entrywise_of(signal), call)
    if entrywise is None or entrywise.function.size > LARGEST_SIZE or not reads_x(entrywise.function):
        return None
    return entrywise


def moved(given: Entrywise, call: Call) -> Entrywise | None:
    """Return the same function with its entries moved as the operator moves them; None if that is not known."""
    op = _short(call)
    if op in _COPIES:
        return given
    settled = (*call.args[1:], *call.kwargs.values())
    if op not in _MOVES or not all(_is_settled(value) for value in settled):
        return None
    arguments = ", ".join(map(repr, (*call.args[1:], *sorted(call.kwargs.items()))))
    return replace(given, layout=f"{given.layout}.{op}({arguments})[{call.shape}]")


def mask_of(call: Call) -> Entrywise | None:
    """Return a comparison as a condition on one field; None for any other operator."""
    relation = COMPARED.get(call.op.rpartition(".")[0])
    if relation is None or len(call.args) < 2:
        return None
    return _by_formula(Formula(lambda a, b: expressions.compared(relation, a, b), call.args[:2]), call.shape)


def fill_of(call: Call) -> float | None:
    """Return the number that an operator fills a tensor with; None for any other operator."""
    op = _short(call)
    value = (
        call.argument(2 if op == "new_full" else 1, "fill_value") if op in ("full", "full_like", "new_full") else None
    )
    return _FILLS.get(op, float(value) if isinstance(value, int | float) else None)


def makes_zeros(call: Call) -> bool:
    """Return whether an operator turns tensors of zeros into zeros, whatever its other arguments are."""

    def zero(value: Any) -> bool:
        return isinstance(value, ConstantValue) and value.fill == 0.0

    op = _short(call)
    first, *others = call.args or (None,)
    if call.parameters() and fill_of(call) == 0.0:  # depends only on a parameter's shape
        return True
    if op in ("mul", "mm", "bmm", "matmul"):
        return zero(first) or any(zero(other) for other in others)
    if op in ("add", "sub"):
        terms = call.args[:2]
        return any(zero(term) for term in terms) and all(zero(t) or (type(t) in (int, float) and t == 0) for t in terms)
    return zero(first) and (op in _COPIES or op in _MOVES or op in _KEEPS_ZEROS)


def is_drawn_exactly(call: Call, outcome: Outcome, function: Expression) -> bool:
    """Return whether the edges that the handler drew give the same moments as the function.

    A signal is described by its mean and variance and taken as Gaussian, which it no longer is after an activation. A
    factor after a function stays a factor, unless together they are a known function, like a written-out hardswish.
    """
    if len(outcome.edges) != 1 or len(call.signals()) != 1:
        return False
    operators = outcome.edges[0].operators
    operand = entrywise_of(call.signals()[0]).function
    if not _acts_on_entries(operators) or _through(operators, operand) != function:
        return False
    activations = sum(isinstance(operator, Activation) for operator in operators)
    line = affine(operand)
    if activations == 0:
        return line is not None or is_plain(name_of(operand)) or not is_plain(name_of(function))
    return activations == 1 and line is not None and line[1] == 0.0


def sums_copies(call: Call, outcome: Outcome) -> bool:
    """Return whether copies of one function meet in a sum."""
    if outcome.merge != "sum" or len(outcome.edges) < 2:
        return False
    return len({core(entrywise_of(signal).function) for signal in call.signals()}) < len(call.signals())


def one_activation(entrywise: Entrywise, shape: Shape) -> Outcome:
    """Return the outcome that draws a function as a single activation of its field."""
    operator = Activation(name_of(entrywise.function), depth=int(entrywise.counts))
    return Outcome((edge_from(SignalValue(entrywise.root, shape), operator),))


# Composition


def _by_formula(formula: Formula, shape: Shape) -> Entrywise | None:
    """Compose the functions of an operator's operands, which have to be numbers or functions of one field."""
    fields: list[Entrywise] = []
    functions: list[Expression] = []
    for place, operand in enumerate(formula.operands):
        value = _number(operand)
        if value is not None:
            functions.append(expressions.number(value))
            continue
        if not isinstance(operand, SignalValue | ConstantValue) or operand.shape != shape:
            return None
        known = entrywise_of(operand) if isinstance(operand, SignalValue) else operand.entrywise
        if known is None:
            return None
        fields.append(known)
        condition = known.function.head in COMPARISONS
        chooses = formula.function is expressions.chosen and place == 0
        if chooses and not condition:
            return None
        functions.append(_indicator(known.function) if condition and not chooses else known.function)
    if not fields or len({(known.root, known.layout) for known in fields}) > 1:
        return None
    function = formula.function(*functions)
    counts = any(known.counts for known in fields) or _is_activation(function)
    return Entrywise(fields[0].root, fields[0].layout, function, counts)


def _by_operators(signal: SignalValue, operators: Sequence[Operator], call: Call) -> Entrywise | None:
    given = entrywise_of(signal)
    if not _acts_on_entries(operators) or signal.shape != call.shape:
        return None
    function = _through(operators, given.function)
    counts = given.counts or any(operator.depth for operator in operators) or _is_activation(function)
    return replace(given, function=function, counts=counts)


def _acts_on_entries(operators: Iterable[Operator]) -> bool:
    return all(
        type(o) is Scale or (type(o) is Activation and o.window == 1 and o.name.partition(":")[0] not in SPECIAL)
        for o in operators
    )


def _through(operators: Iterable[Operator], function: Expression) -> Expression:
    """Return a function followed by operators that act on entries."""
    for operator in operators:
        if isinstance(operator, Scale):
            function = expressions.scaled_by(function, operator.factor)
        elif isinstance(operator, Activation):
            function = expressions.substituted(expression_of(operator.name), function)
    return function


def _is_activation(function: Expression) -> bool:
    """Return whether a function counts as an activation though none of its parts does: it has several, not only powers.

    Powers occur in written-out norms, and a single exponential or sine only shapes a signal: these add no depth.
    """
    inner = core(function)
    if inner == X or expressions.only_powers(inner):
        return False
    lone = inner.head not in ("+", "*", "/", "where", "maximum", "minimum")
    return not (lone and affine(inner.parts[0]) is not None)


def _indicator(condition: Expression) -> Expression:
    return expressions.chosen(condition, expressions.number(1.0), expressions.number(0.0))


def _number(value: Any) -> float | None:
    """Return the finite number that all entries of a value equal; None if there is none."""
    if isinstance(value, ConstantValue):
        if value.fill is not None:
            value = value.fill
        elif value.tensor is not None and value.entrywise is None and math.prod(value.shape) == 1:
            tensor = value.tensor()
            value = None if tensor.is_meta or tensor.is_complex() else tensor.item()
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def _is_settled(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_settled, value))
    return value is None or isinstance(value, int | float | str | bool)


def _short(call: Call) -> str:
    """Return an operator's bare name: `view` of `aten.view.default`."""
    return call.op.split(".")[1] if call.op.startswith("aten.") and call.op.count(".") > 1 else ""
