"""The values in a trace (signals, parameters, constants), and what an operator's handler receives and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenstep.graph.expressions import Expression, X
from evenstep.graph.model import Edge, Merge, Parameter
from evenstep.graph.operators import Operator

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entrywise:
    """Say which function of which field a tensor is, entry by entry.

    The field is the signal at vertex `root`, with entries moved as `layout` says: tensors with the same root, layout
    and shape have the same entries in the same places. `counts` says whether the function counts as an activation.
    """

    root: str
    layout: str = ""
    function: Expression = X
    counts: bool = False


@dataclass(frozen=True, slots=True)
class SignalValue:
    """Hold a tensor on a path from the input: the vertex that carries it, and its shape.

    `probability` marks the output of a softmax, whose rows sum to one. `entrywise` says of which field the tensor is a
    function; None if it is its own vertex's field.
    """

    vertex: str
    shape: Shape
    probability: bool = False
    entrywise: Entrywise | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ParameterValue:
    """Hold a parameter, or a tensor computed from parameters only: their names and its shape.

    `made` names the tensor if it is more than parameters with their entries moved (a normed weight, an exponential):
    drawing them then does not determine its size. `tensor` returns its values if they are available.
    """

    names: tuple[str, ...]
    shape: Shape
    made: str | None = None
    tensor: Callable[[], Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """Hold a tensor that depends on neither inputs nor parameters: buffers, masks, positions.

    `buffer` names the buffer, or a tensor computed from one; `tensor` returns its values if they are available. If it
    was drawn from a unit interval, `starts` is where that begins, and `mean` is the mean of a mask made of such draws.
    `fill` is the number that all its entries equal; `entrywise` the condition on a field that a mask holds (`x > 0`).
    """

    shape: Shape
    buffer: str | None = None
    tensor: Callable[[], Any] | None = field(default=None, compare=False, repr=False)
    starts: float | None = None
    mean: float | None = None
    fill: float | None = None
    entrywise: Entrywise | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Formula:
    """Hold an operator as a function of its operands' entries: signals, masks, constants and numbers."""

    function: Callable[..., Expression]
    operands: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold what a handler draws for an operator: the edges into its output, how they join, the parameters it uses.

    The edges' target is the output, which the tracer names; `edge_from` makes them. Without edges the output is on no
    path: it is a parameter's value if parameters are used, else a constant. For a parameter in `uses` the handler gives
    name, role and fans, and the tracer adds the rest. `parts` says that several outputs are different entries of the
    signal, each with its own vertex; `scale` multiplies the joined edges; `probability` marks rows that sum to one.
    `formula` says what the operator computes entry by entry: if all its operands are functions of one field, one
    activation of that field replaces the edges.
    """

    edges: tuple[Edge, ...] = ()
    merge: Merge = "sum"
    uses: tuple[Parameter, ...] = ()
    probability: bool = False
    parts: bool = False
    scale: float = 1.0
    formula: Formula | None = field(default=None, compare=False)


OUTPUT = ""  # the target of a handler's edges, until the tracer names it


def edge_from(signal: SignalValue, *operators: Operator, parameters: tuple[str, ...] = ()) -> Edge:
    """Return an edge from a signal to the operator's output."""
    return Edge(signal.vertex, OUTPUT, operators, parameters)


def carried(signal: SignalValue) -> Outcome:
    """Pass a signal on unchanged."""
    return Outcome((edge_from(signal),), probability=signal.probability)


@dataclass(frozen=True)
class Call:
    """Hold one operator call as its handler receives it.

    `args` and `kwargs` hold `SignalValue`, `ParameterValue` or `ConstantValue` in place of tensors and plain Python
    values elsewhere; `shape` is that of the (first) output; `rms` gives the root mean square of a parameter or buffer.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shape: Shape
    module: str = ""
    rms: Callable[[str], float | None] = field(default=lambda _: None, repr=False)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument given by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def signals(self) -> tuple[SignalValue, ...]:
        """Return all signals among the arguments, including those in lists, in order."""
        return tuple(v for v in flattened((self.args, tuple(self.kwargs.values()))) if isinstance(v, SignalValue))

    def parameters(self) -> tuple[ParameterValue, ...]:
        """Return all parameter values among the arguments."""
        return tuple(v for v in flattened((self.args, tuple(self.kwargs.values()))) if isinstance(v, ParameterValue))


Handler = Callable[[Call], Outcome]


def flattened(values: Any) -> Iterator[Any]:
    """Yield the leaves of nested lists and tuples."""
    if isinstance(values, list | tuple):
        for value in values:
            yield from flattened(value)
    else:
        yield values
