"""What rules multiply a rate by from every cell of a table to every other: matrices of logarithms, bases by targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from evenstep.rules import Optimizer, Rule
from evenstep.rules.batch import BatchRule
from evenstep.rules.length import LengthRule
from evenstep_research.study.external.curves import Numbers
from evenstep_research.study.external.shapes import Shape, hidden_rate
from evenstep_research.study.external.tables import Table

Value = TypeVar("Value")


def shape_transfers(table: Table, rule: Rule, optimizer: Optimizer) -> Numbers:
    """Return the logarithms of a rule's factors between the shapes of cells."""
    shapes = [cell.shape for cell in table.cells]
    own = {shape: hidden_rate(shape, shape, rule, optimizer) for shape in dict.fromkeys(shapes)}

    def factor(target: Shape, base: Shape) -> float:
        return 1.0 if target == base else hidden_rate(target, base, rule, optimizer) / own[base]

    return _between(shapes, factor)


def batch_transfers(table: Table, rule: BatchRule, optimizer: Optimizer) -> Numbers:
    """Return the logarithms of a rule's factors between the batches of cells."""
    return _between([cell.batch or 1.0 for cell in table.cells], partial(_of_batches, rule, optimizer))


def length_transfers(table: Table, rule: LengthRule) -> Numbers:
    """Return the logarithms of a rule's factors between the lengths of cells."""
    return _between([cell.steps or 1 for cell in table.cells], partial(_of_lengths, rule))


def no_transfers(table: Table) -> Numbers:
    """Return the logarithms of factors that are all one."""
    return np.zeros((len(table.cells), len(table.cells)))


def _between(values: Sequence[Value], factor: Callable[[Value, Value], float]) -> Numbers:
    """Return log factor(target, base) for all pairs; each pair of distinct values is asked about once."""
    distinct = list(dict.fromkeys(values))
    at = [distinct.index(value) for value in values]
    logs = np.array([[math.log(factor(target, base)) for target in distinct] for base in distinct])
    answer: Numbers = logs[np.ix_(at, at)]
    return answer


def _of_batches(rule: BatchRule, optimizer: Optimizer, target: float, base: float) -> float:
    return rule.factor(target, searched=base, optimizer=optimizer).value


def _of_lengths(rule: LengthRule, target: int, base: int) -> float:
    return rule.factor(target, searched=base).value
