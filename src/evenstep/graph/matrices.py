"""Which parameters are hidden matrices, for optimisers that orthogonalise their steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from evenstep.graph.model import EMBEDDING, Graph, Parameter
from evenstep.graph.operators import Recurrent, Weight
from evenstep.graph.roles import Roles


class Matrices(NamedTuple):
    """Describe a parameter as matrices: its entries, in order, are `stacked` matrices of `rows` x `columns`.

    A matrix that holds several side by side is cut into `sizes` along its rows (`axis` 0) or columns (1).

    >>> Matrices(1, 12, 4, 0, (8, 4)).largest_sides
    (8, 4)
    """

    stacked: int
    rows: int
    columns: int
    axis: int = 0
    sizes: tuple[int, ...] = ()

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The distinct shapes of the matrices."""
        if not self.sizes:
            return ((self.rows, self.columns),)
        return tuple((size, self.columns) if self.axis == 0 else (self.rows, size) for size in self.sizes)

    @property
    def largest_sides(self) -> tuple[int, ...]:
        """Each matrix's longer side n: the entries of an orthogonal matrix have root mean square n^(-1/2)."""
        return tuple(map(max, self.shapes))

    def words(self) -> str:
        """Say how many matrices there are, and their shapes.

        >>> Matrices(3, 8, 8).words(), Matrices(1, 12, 4, 0, (8, 4)).words()
        ('3 matrices of 8 x 8', 'matrices of 8 x 4 and 4 x 4')
        """
        shapes = [f"{rows} x {columns}" for rows, columns in self.shapes]
        if len(shapes) > 1:
            return f"matrices of {', '.join(shapes[:-1])} and {shapes[-1]}"
        return f"{self.stacked} matrices of {shapes[0]}" if self.stacked > 1 else f"a matrix of {shapes[0]}"


def hidden_matrices(graph: Graph, roles: Roles) -> Mapping[str, Matrices]:
    """Return the hidden weights of a live graph that are matrices, by name; AdamW steps all other parameters.

    A hidden weight is neither at the input nor a readout in any of its uses, and not a table whose rows are looked up.
    Kernels are flattened to outputs x (inputs taps). If a tensor holds several matrices, each counts separately: those
    of a convolution's groups, a recurrent block's gates, experts, and fused projections whose `parts` are known. A
    single row or column, as in depthwise kernels, is not a matrix.
    """
    hidden: dict[str, Matrices] = {}
    for parameter in graph.parameters:
        edges = [graph.edges[i] for i in roles.edges_of.get(parameter.name, ())]
        if not edges or not _is_matrix(parameter) or roles.position_of(parameter.name) != "hidden":
            continue
        weights = [edge.weight for edge in edges]
        first = weights[0]
        if first is None or None in weights:
            continue
        matrices = _read(parameter, first)
        if matrices is not None and min(min(shape) for shape in matrices.shapes) > 1:
            hidden[parameter.name] = matrices
    return hidden


def _is_matrix(parameter: Parameter) -> bool:
    drawn = parameter.trainable and parameter.role == "weight" and parameter.note != EMBEDDING
    return drawn and sum(size > 1 for size in parameter.shape) > 1


def _read(parameter: Parameter, weight: Weight) -> Matrices | None:
    """Return a weight as matrices; None if its axes do not tell inputs from outputs."""
    shape, numbers = parameter.shape, math.prod(parameter.shape)
    if isinstance(weight, Recurrent):  # its gates' matrices are stacked by rows
        gates = shape[0] // parameter.fan_out if shape[0] % parameter.fan_out == 0 else 1
        return Matrices(gates, shape[0] // gates, shape[1])
    if len(shape) == 2 or weight.kernel_axes:
        rows, columns = shape[0], numbers // shape[0]
        if parameter.parts and weight.groups == 1:
            return _cut(rows, columns, parameter.parts)
        if rows % weight.groups:
            return None
        return Matrices(weight.groups, rows // weight.groups, columns)
    if shape[0] * parameter.fan_in * parameter.fan_out == numbers:  # experts
        return Matrices(shape[0], numbers // shape[0] // shape[-1], shape[-1])
    if parameter.fan_in * parameter.fan_out != numbers:
        return None
    for place in range(1, len(shape)):  # heads with axes of their own
        rows = math.prod(shape[:place])
        if rows in (parameter.fan_in, parameter.fan_out):
            return Matrices(1, rows, numbers // rows)
    return None


def _cut(rows: int, columns: int, parts: tuple[int, ...]) -> Matrices:
    """Return a fused projection as the matrices it holds."""
    axis = 0 if sum(parts) == rows else 1
    if axis == 0 and len(set(parts)) == 1:
        return Matrices(len(parts), parts[0], columns)
    return Matrices(1, rows, columns, axis, parts)
