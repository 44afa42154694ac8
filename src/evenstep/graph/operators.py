"""What an edge can do to the signal it carries: one small value for each operator, which knows its own arithmetic.

A signal is described by its mean and variance over units and examples. An operator says what it makes of them
(`moments`), with what amplitude copies of a field pass it (`passes`; 0 where what leaves it is a new field), by how
much it multiplies the variance of a small change (`slope`), what it adds to the length of a path (`length`), and what
it is called (`words`). Whoever needs one of these asks the operator: the signal, the initialisation, the report.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from evenstep.errors import GraphError
from evenstep.graph import activations
from evenstep.graph.expression_names import shortened
from evenstep.graph.fields import non_default_fields, validated


class Moments(NamedTuple):
    """Hold the mean and the variance of a signal."""

    mean: float
    variance: float

    @property
    def second_moment(self) -> float:
        """The mean square."""
        return self.variance + self.mean**2


STANDARD_GAUSSIAN = Moments(0.0, 1.0)  # a standard Gaussian
_SMALLEST_GATE = 1e-6  # shares are ratios: how small a factor of zero counts as does not matter


@dataclass(frozen=True, slots=True)
class Operator(ABC):
    """One operation on a signal; `depth` is the number of activations that it counts as on a path."""

    op: ClassVar[str] = ""
    adds_field: ClassVar[bool] = False  # whether a new field joins the copy that passes
    depth: int = field(default=0, kw_only=True)

    @abstractmethod
    def moments(self, given: Moments) -> Moments:
        """Return the moments of what leaves the operator."""

    def copy_amplitude(self) -> float:
        """Return the amplitude of the coherent copy that passes; 0 where all that leaves is a new field."""
        return 0.0

    @abstractmethod
    def slope(self, given: Moments) -> float:
        """Return the factor by which the variance of a small, independent change of the signal is multiplied."""

    def length(self, kernel_length: float) -> float:  # noqa: ARG002
        """Return what the operator adds to the length of a path; `kernel_length` weighs a kernel's side beyond one."""
        return float(self.depth)

    def words(self) -> str:
        """Return what the operator is called."""
        return self.op

    def to_dict(self) -> dict[str, Any]:
        """Return the operator as plain values; defaults are left out."""
        return {"op": self.op, **non_default_fields(self)}


@dataclass(frozen=True, slots=True)
class Scale(Operator):
    """Multiply by a fixed number: a coherent copy, `factor` times as large."""

    op: ClassVar[str] = "scale"
    factor: float = 1.0

    def moments(self, given: Moments) -> Moments:
        """Scale the mean, and the variance by the square."""
        return Moments(self.factor * given.mean, self.factor**2 * given.variance)

    def copy_amplitude(self) -> float:
        """Pass copies times the factor."""
        return self.factor

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Scale changes like the signal."""
        return self.factor**2

    def words(self) -> str:
        """Name the factor where it is not one."""
        return "identity" if self.factor == 1.0 else f"times {self.factor:.4g}"


@dataclass(frozen=True, slots=True)
class Measured(Scale):
    """Correct what was computed up to here by what a forward pass showed: the factor of the amplitude."""

    op: ClassVar[str] = "measured"

    def words(self) -> str:
        """Say what was measured."""
        return f"measured {self.factor**2:.3g} times as large"


@dataclass(frozen=True, slots=True)
class Gate(Operator):
    """Multiply by a trained factor, or divide by it; `size` is its root mean square, signed, None if unknown.

    Weights are drawn as if the factor were one: who starts a branch small means it to start small. What flows at the
    start is what the factor lets through; one that starts at zero lets as good as nothing through.
    """

    op: ClassVar[str] = "gate"
    size: float | None = None
    inverse: bool = False

    @property
    def opened(self) -> Scale:
        """The factor one, of the same sign."""
        return Scale(-1.0 if self.size is not None and self.size < 0 else 1.0, depth=self.depth)

    @property
    def started(self) -> Scale:
        """The factor as it starts; one where that is unknown."""
        if self.size is None:
            return self.opened
        size = max(abs(self.size), _SMALLEST_GATE)
        return Scale(self.opened.factor * (1.0 / size if self.inverse else size), depth=self.depth)

    def moments(self, given: Moments) -> Moments:
        """Scale the mean, and the variance by the square."""
        return self.started.moments(given)

    def copy_amplitude(self) -> float:
        """Pass copies times the factor."""
        return self.started.copy_amplitude()

    def slope(self, given: Moments) -> float:
        """Scale changes like the signal."""
        return self.started.slope(given)


@dataclass(frozen=True, slots=True)
class Activation(Operator):
    """Apply a nonlinearity to every entry, then average over `window` entries (a variance: the mean of squares).

    Its `name` is that of a known function, or an expression of x (`evenstep.graph.expression_names`).
    """

    op: ClassVar[str] = "activation"
    name: str = "relu"
    window: int = 1
    depth: int = field(default=1, kw_only=True)

    def moments(self, given: Moments) -> Moments:
        """Return the moments over a Gaussian of the given ones."""
        mean, second = activations.moments(self.name, given.mean, given.variance)
        return Moments(mean, max(second - mean**2, 0.0) / self.window)

    def slope(self, given: Moments) -> float:
        """Return the mean square of the derivative, over the window."""
        return activations.slope(self.name, given.mean, given.variance) / self.window

    def words(self) -> str:
        """Name the activation."""
        name = shortened(self.name)
        return name if self.window == 1 else f"mean of {name} over {self.window}"


@dataclass(frozen=True, slots=True)
class Norm(Operator):
    """Take the mean out and bring the variance to one; `over_batch` where the statistics are the batch's."""

    op: ClassVar[str] = "norm"
    over_batch: bool = False

    def moments(self, given: Moments) -> Moments:
        """Return a new field of mean 0 and variance 1, or nothing of nothing."""
        return Moments(0.0, 1.0 if given.variance > 0 else 0.0)

    def slope(self, given: Moments) -> float:
        """Divide by the variance."""
        return 1.0 / given.variance if given.variance > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RMSNorm(Norm):
    """Bring the second moment to one; the mean stays."""

    op: ClassVar[str] = "rms_norm"

    def moments(self, given: Moments) -> Moments:
        """Divide by the root mean square."""
        scale = 1.0 / given.second_moment if given.second_moment > 0 else 0.0
        return Moments(math.sqrt(scale) * given.mean, scale * given.variance)

    def slope(self, given: Moments) -> float:
        """Divide by the second moment."""
        return 1.0 / given.second_moment if given.second_moment > 0 else 0.0

    def words(self) -> str:
        """Say what it divides by."""
        return "root mean square norm"


@dataclass(frozen=True, slots=True)
class Average(Operator):
    """Take the mean over `window` positions: independent ones, or neighbours that are nearly `alike`."""

    op: ClassVar[str] = "average"
    window: int = 1
    correlated: bool = False

    @property
    def variance_kept(self) -> float:
        """The share of the variance that is left."""
        return 1.0 if self.correlated else 1.0 / self.window

    def moments(self, given: Moments) -> Moments:
        """Keep the mean and what is left of the variance."""
        return Moments(given.mean, self.variance_kept * given.variance)

    def copy_amplitude(self) -> float:
        """Pass of every field what one position has in the mean: all of it where positions are alike."""
        return self.variance_kept

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Keep of a change what is left of the signal."""
        return self.variance_kept

    def words(self) -> str:
        """Say over how much."""
        return f"average of {self.window}"


@dataclass(frozen=True, slots=True)
class RunningSum(Operator):
    """Replace every entry by the sum of those up to it, along an axis of `window` independent entries."""

    op: ClassVar[str] = "running_sum"
    window: int = 1

    def moments(self, given: Moments) -> Moments:
        """Return the moments over all places: after t entries mean and variance are t times as large."""
        places = (self.window + 1) / 2
        squares = (self.window + 1) * (2 * self.window + 1) / 6
        mean = places * given.mean
        return Moments(mean, places * given.variance + squares * given.mean**2 - mean**2)

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Add up the changes."""
        return (self.window + 1) / 2

    def words(self) -> str:
        """Say over how much."""
        return f"running sum over {self.window}"


@dataclass(frozen=True, slots=True)
class LogSoftmax(Operator):
    """Subtract the logarithm of the sum of exponentials over `entries` entries."""

    op: ClassVar[str] = "log_softmax"
    entries: int = 1

    def moments(self, given: Moments) -> Moments:
        """Return the moments for many entries, whose sum of exponentials hardly fluctuates."""
        return Moments(-math.log(self.entries) - given.variance / 2, given.variance)

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Leave changes as they are: each is a small part of the sum."""
        return 1.0

    def words(self) -> str:
        """Say over how much."""
        return f"log softmax over {self.entries}"


@dataclass(frozen=True, slots=True)
class Dropout(Operator):
    """Set a part of the entries (`rate`) to zero at random and make the others larger, so that the mean stays."""

    op: ClassVar[str] = "dropout"
    adds_field: ClassVar[bool] = True
    rate: float = 0.0

    def moments(self, given: Moments) -> Moments:
        """Keep the mean; the second moment grows by one over the part that is left."""
        return Moments(given.mean, given.second_moment / (1.0 - self.rate) - given.mean**2)

    def copy_amplitude(self) -> float:
        """Pass a copy; the rest is noise, a new field."""
        return 1.0

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Make changes larger like the signal."""
        return 1.0 / (1.0 - self.rate)

    def words(self) -> str:
        """Say how much is dropped."""
        return f"dropout of {self.rate:g}"


@dataclass(frozen=True, slots=True)
class Padding(Operator):
    """Join zeros to a signal, which then is the part `kept` of all entries."""

    op: ClassVar[str] = "padding"
    kept: float = 1.0

    def moments(self, given: Moments) -> Moments:
        """Spread the signal over more entries."""
        mean = self.kept * given.mean
        return Moments(mean, self.kept * given.second_moment - mean**2)

    def copy_amplitude(self) -> float:
        """Pass copies where there is a signal."""
        return math.sqrt(self.kept)

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Spread changes like the signal."""
        return self.kept

    def words(self) -> str:
        """Say how much is padding."""
        return f"padded, {100 * self.kept:.3g} % signal"


@dataclass(frozen=True, slots=True)
class Offset(Operator):
    """Add fixed numbers of this mean and deviation, the same for all examples.

    A `table` is the trained parameter that they are, where it starts at random: it is drawn no larger than the signal,
    which it would drown.
    """

    op: ClassVar[str] = "offset"
    adds_field: ClassVar[bool] = True
    mean: float = 0.0
    std: float = 0.0
    table: str = ""

    def std_beside(self, given: Moments) -> float:
        """Return the deviation next to a signal; where there is none to drown it stays as it is.

        >>> offset = Offset(std=1.0, table="positions")
        >>> [offset.std_beside(Moments(0.0, variance)) for variance in (0.01, 4.0)]
        [0.1, 1.0]
        """
        limited = self.table and given.second_moment > 0
        return min(self.std, math.sqrt(given.second_moment)) if limited else self.std

    def moments(self, given: Moments) -> Moments:
        """Add means and variances."""
        return Moments(given.mean + self.mean, given.variance + self.std_beside(given) ** 2)

    def copy_amplitude(self) -> float:
        """Pass copies; what is added is a new field."""
        return 1.0

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Leave changes as they are."""
        return 1.0

    def words(self) -> str:
        """Say what is added."""
        if self.std == 0.0:
            return f"plus {self.mean:.4g}"
        limit = ", or the signal's where that is less" if self.table else ""
        return f"plus numbers of mean {self.mean:.4g}, std {self.std:.4g}{limit}"


@dataclass(frozen=True, slots=True)
class Slice(Operator):
    """Take entries out of a signal: of its size, and independent of the entries that are left."""

    op: ClassVar[str] = "slice"

    def moments(self, given: Moments) -> Moments:
        """Leave them as they are."""
        return given

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Leave changes as they are."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Maximum(Operator):
    """Take the largest of `window` entries."""

    op: ClassVar[str] = "maximum"
    window: int = 1

    def moments(self, given: Moments) -> Moments:
        """Return the moments of the largest of independent Gaussians."""
        mean, second = activations.maximum_moments(self.window)
        return Moments(given.mean + math.sqrt(given.variance) * mean, given.variance * (second - mean**2))

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Pass on the change of the entry that is taken."""
        return 1.0

    def words(self) -> str:
        """Say over how much."""
        return f"maximum of {self.window}"


@dataclass(frozen=True, slots=True)
class Steer(Operator):
    """Say where the target's signal goes, not how large it is: queries and keys of attention, states of a cell."""

    op: ClassVar[str] = "steer"

    def moments(self, given: Moments) -> Moments:  # noqa: ARG002
        """Bring nothing."""
        return Moments(0.0, 0.0)

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Count as nothing."""
        return 0.0

    def words(self) -> str:
        """Say what it does."""
        return "steers"


@dataclass(frozen=True, slots=True)
class _Unchanged(Operator):
    """Leave the signal as it is."""

    def moments(self, given: Moments) -> Moments:
        """Leave them as they are."""
        return given

    def copy_amplitude(self) -> float:
        """Pass copies as they are."""
        return 1.0

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Leave changes as they are."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Unknown(_Unchanged):
    """Stand for an operator that was let through on request: outside the theory, taken as a copy."""

    op: ClassVar[str] = "unknown"
    name: str = ""

    def words(self) -> str:
        """Name the operator."""
        return f"unknown operator {self.name}".strip()


@dataclass(frozen=True, slots=True)
class ConcatBlock(_Unchanged):
    """Be one block of a concatenation, `fraction` of its entries; the concatenation weighs it."""

    op: ClassVar[str] = "concat_block"
    fraction: float = 1.0

    def words(self) -> str:
        """Say how much of the whole."""
        return f"{100 * self.fraction:.3g} % of the entries"


@dataclass(frozen=True, slots=True)
class Contraction(_Unchanged):
    """Be one factor of a product that is summed over `terms` entries, as in a matrix product of two signals."""

    op: ClassVar[str] = "contraction"
    terms: int = 1

    def words(self) -> str:
        """Say how many products are summed."""
        return f"factor of a sum over {self.terms}"


@dataclass(frozen=True, slots=True)
class Weight(Operator):
    """Multiply by a drawn, independent, zero-mean weight: what leaves it is a new field.

    `fan_in` and `fan_out` count what one output unit reads and one input unit feeds, in its group, kernel positions
    included; `kernel_size` is the geometric mean of a kernel's sides and `kernel_axes` the number of axes it slides
    along; `patches` marks a kernel whose steps are as long as itself, so that it reads every entry once. `gain` is the
    second moment it passes besides its draw: the share of a kernel's taps that meet no padding.
    """

    op: ClassVar[str] = "weight"
    fan_in: int = 1
    fan_out: int = 1
    kernel_size: float = 1.0
    kernel_axes: int = 0
    groups: int = 1
    gain: float = 1.0
    patches: bool = False

    @property
    def taps(self) -> float:
        """The positions of the kernel: 1 for a matrix."""
        return self.kernel_size**self.kernel_axes

    @property
    def units_in(self) -> float:
        """What one output unit reads, kernel positions aside."""
        return self.fan_in / self.taps

    @property
    def units_out(self) -> float:
        """What one input unit feeds, kernel positions aside."""
        return self.fan_out if self.patches else self.fan_out / self.taps

    @property
    def slides(self) -> bool:
        """Whether it is a kernel that slides over positions, one step or a few at a time."""
        return self.kernel_axes > 0 and not self.patches

    def output_moments(self, variance: float) -> Moments:
        """Return the moments of what leaves, where the matrix product with what is read has this variance."""
        return Moments(0.0, variance)

    def moments(self, given: Moments) -> Moments:
        """Return what a weight of fan_in * var(W) = 1 makes; how large it really is, the initialisation says."""
        return self.output_moments(self.gain * given.second_moment)

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Pass changes like the signal, for a weight of fan_in * var(W) = 1."""
        return self.gain

    def length(self, kernel_length: float) -> float:
        """Count a kernel of side k as k weights, one of them in the activation it stands beside."""
        return self.depth + (0.0 if self.patches else kernel_length * (self.kernel_size - 1.0))


@dataclass(frozen=True, slots=True)
class Recurrent(Weight):
    """Run a sequence through an opaque recurrent block (`kind` lstm, gru, tanh or relu), with weights of its own."""

    op: ClassVar[str] = "recurrent"
    kind: str = "tanh"
    depth: int = field(default=1, kw_only=True)

    def output_moments(self, variance: float) -> Moments:  # noqa: ARG002
        """Return the stationary moments of the block's output, its gates fed unit Gaussians."""
        return Moments(0.0, activations.recurrent_second_moment(self.kind))

    def words(self) -> str:
        """Name the block."""
        return f"recurrent block ({self.kind})"


_OPERATORS: tuple[type[Operator], ...] = (
    *(Weight, Recurrent, Scale, Measured, Gate, Activation, Norm, RMSNorm, Average, RunningSum, Slice, Maximum),
    *(LogSoftmax, Dropout, Padding, Offset, Steer, Unknown, ConcatBlock, Contraction),
)
OPERATORS: Mapping[str, type[Operator]] = {kind.op: kind for kind in _OPERATORS}


def scaled(factor: float) -> tuple[Operator, ...]:
    """Return the operators that multiply by a number: none for one."""
    return () if factor == 1.0 else (Scale(factor),)


def moments_of(operators: Iterable[Operator], given: Moments) -> Moments:
    """Return the moments of a signal after operators, one after the other."""
    for operator in operators:
        given = operator.moments(given)
    return given


def slope_of(operators: Iterable[Operator], given: Moments) -> float:
    """Return the factor by which the variance of a small change grows through operators."""
    slope = 1.0
    for operator in operators:
        slope *= operator.slope(given)
        given = operator.moments(given)
    return slope


def operator_of(values: Mapping[str, Any]) -> Operator:
    """Rebuild an operator from `to_dict`, or raise if a field is invalid."""
    op = values.get("op")
    if not isinstance(op, str) or op not in OPERATORS:
        raise GraphError(f"an edge has the operator {op!r}; choose one of {', '.join(sorted(OPERATORS))}")
    operator = validated(OPERATORS[op](**{name: value for name, value in values.items() if name != "op"}))
    if isinstance(operator, Activation):
        activations.require_known(operator.name)
    if isinstance(operator, Recurrent) and operator.kind not in activations.RECURRENT:
        kinds = ", ".join(activations.RECURRENT)
        raise GraphError(f"a recurrent block is of kind {operator.kind!r}; choose one of {kinds}")
    return operator
