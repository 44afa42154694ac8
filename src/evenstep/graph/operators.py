"""What an edge can do to its signal: one small value for each operator, which knows its own arithmetic.

A signal is described by its mean and variance over units and examples. An operator says which moments its output has
(`moments`), with what amplitude copies of a field pass it (`copy_amplitude`; 0 if its output is a new field), by how
much it multiplies the variance of a small change (`slope`), how much it adds to the length of a path (`length`), and
its name (`words`). The signal, the initialisation and the report all use these methods.
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
_SMALLEST_GATE = 1e-6  # what a factor of zero counts as: shares are ratios, so how small does not matter


@dataclass(frozen=True, slots=True)
class Operator(ABC):
    """Describe an operation on a signal; `depth` is the number of activations that it counts as on a path."""

    op: ClassVar[str] = ""
    adds_field: ClassVar[bool] = False  # whether a new field joins the copy that passes
    depth: int = field(default=0, kw_only=True)

    @abstractmethod
    def moments(self, given: Moments) -> Moments:
        """Return the moments of the output."""

    def copy_amplitude(self) -> float:
        """Return the amplitude of the coherent copy that passes; 0 if the output is a new field."""
        return 0.0

    @abstractmethod
    def slope(self, given: Moments) -> float:
        """Return the factor of the variance of a small, independent change of the signal."""

    def length(self, kernel_length: float) -> float:  # noqa: ARG002
        """Return what the operator adds to a path's length; a kernel of side k adds `kernel_length` (k - 1)."""
        return float(self.depth)

    def words(self) -> str:
        """Return the operator's name, as people read it."""
        return self.op

    def to_dict(self) -> dict[str, Any]:
        """Return the operator as plain values; defaults are left out."""
        return {"op": self.op, **non_default_fields(self)}


@dataclass(frozen=True, slots=True)
class Scale(Operator):
    """Multiply by a fixed number: the output is a coherent copy, `factor` times as large."""

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
        """Name the factor if it is not one."""
        return "identity" if self.factor == 1.0 else f"times {self.factor:.4g}"


@dataclass(frozen=True, slots=True)
class Measured(Scale):
    """Correct the computed amplitude by a factor that a forward pass measured."""

    op: ClassVar[str] = "measured"

    def words(self) -> str:
        """Say how much larger the second moment was measured."""
        return f"measured {self.factor**2:.3g} times as large"


@dataclass(frozen=True, slots=True)
class Gate(Operator):
    """Multiply by a trained factor, or divide by it; `size` is its signed root mean square, None if unknown.

    Weights are drawn as if the factor were one: whoever starts a branch small wants it to start small. The signal at
    initialisation counts the factor as it starts; one that starts at zero lets practically nothing through.
    """

    op: ClassVar[str] = "gate"
    size: float | None = None
    inverse: bool = False

    @property
    def opened(self) -> Scale:
        """A factor of one with the same sign."""
        return Scale(-1.0 if self.size is not None and self.size < 0 else 1.0, depth=self.depth)

    @property
    def started(self) -> Scale:
        """The factor as it starts; one if that is unknown."""
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
        """Return the moments for Gaussian input of the given moments."""
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
    """Subtract the mean and bring the variance to one; `over_batch` says whether the statistics are the batch's."""

    op: ClassVar[str] = "norm"
    over_batch: bool = False

    def moments(self, given: Moments) -> Moments:
        """Return a new field of mean 0 and variance 1; zero stays zero."""
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
        """Name the norm."""
        return "root mean square norm"


@dataclass(frozen=True, slots=True)
class Average(Operator):
    """Take the mean over `window` positions, which are independent or, as neighbours, nearly `alike`."""

    op: ClassVar[str] = "average"
    window: int = 1
    correlated: bool = False

    @property
    def variance_kept(self) -> float:
        """The share of the variance that the mean keeps."""
        return 1.0 if self.correlated else 1.0 / self.window

    def moments(self, given: Moments) -> Moments:
        """Keep the mean and a share of the variance."""
        return Moments(given.mean, self.variance_kept * given.variance)

    def copy_amplitude(self) -> float:
        """Pass the part of a field that one position has in the mean: all of it if positions are alike."""
        return self.variance_kept

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Reduce changes like the signal."""
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
        """Return the moments over all entries: mean and variance of the t-th are t times as large."""
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
        """Return the moments for many entries, for which the sum of exponentials hardly fluctuates."""
        return Moments(-math.log(self.entries) - given.variance / 2, given.variance)

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Leave changes as they are: each is a small part of the sum."""
        return 1.0

    def words(self) -> str:
        """Say over how much."""
        return f"log softmax over {self.entries}"


@dataclass(frozen=True, slots=True)
class Dropout(Operator):
    """Set a share of the entries (`rate`) to zero at random and scale up the others, so that the mean stays."""

    op: ClassVar[str] = "dropout"
    adds_field: ClassVar[bool] = True
    rate: float = 0.0

    def moments(self, given: Moments) -> Moments:
        """Keep the mean; divide the second moment by the share of entries that is left."""
        return Moments(given.mean, given.second_moment / (1.0 - self.rate) - given.mean**2)

    def copy_amplitude(self) -> float:
        """Pass a copy; the rest is noise, a new field."""
        return 1.0

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Scale changes up like the signal."""
        return 1.0 / (1.0 - self.rate)

    def words(self) -> str:
        """Say how much is dropped."""
        return f"dropout of {self.rate:g}"


@dataclass(frozen=True, slots=True)
class Padding(Operator):
    """Append zeros to a signal, which is then the share `kept` of all entries."""

    op: ClassVar[str] = "padding"
    kept: float = 1.0

    def moments(self, given: Moments) -> Moments:
        """Spread the signal over more entries."""
        mean = self.kept * given.mean
        return Moments(mean, self.kept * given.second_moment - mean**2)

    def copy_amplitude(self) -> float:
        """Pass copies in the entries that are signal."""
        return math.sqrt(self.kept)

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Spread changes like the signal."""
        return self.kept

    def words(self) -> str:
        """Say how much is padding."""
        return f"padded, {100 * self.kept:.3g} % signal"


@dataclass(frozen=True, slots=True)
class Offset(Operator):
    """Add fixed numbers of this mean and standard deviation, the same for all examples.

    If the numbers are a trained parameter that starts at random, `table` names it: it is drawn no larger than the
    signal, so that it does not drown it.
    """

    op: ClassVar[str] = "offset"
    adds_field: ClassVar[bool] = True
    mean: float = 0.0
    std: float = 0.0
    table: str = ""

    def std_beside(self, given: Moments) -> float:
        """Return the standard deviation to draw, given the signal; unchanged if there is no signal to drown.

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
        limit = ", or the signal's if that is less" if self.table else ""
        return f"plus numbers of mean {self.mean:.4g}, std {self.std:.4g}{limit}"


@dataclass(frozen=True, slots=True)
class Slice(Operator):
    """Take entries out of a signal: they have its moments and are independent of the others."""

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
    """Decide where the target's signal goes, not how large it is: queries and keys of attention, states of a cell."""

    op: ClassVar[str] = "steer"

    def moments(self, given: Moments) -> Moments:  # noqa: ARG002
        """Add nothing."""
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
    """Stand for an unknown operator that was let through on request and is taken as a copy."""

    op: ClassVar[str] = "unknown"
    name: str = ""

    def words(self) -> str:
        """Name the operator."""
        return f"unknown operator {self.name}".strip()


@dataclass(frozen=True, slots=True)
class ConcatBlock(_Unchanged):
    """Mark a block of a concatenation, `fraction` of its entries; the concatenation applies the fraction."""

    op: ClassVar[str] = "concat_block"
    fraction: float = 1.0

    def words(self) -> str:
        """Say which share of the entries it is."""
        return f"{100 * self.fraction:.3g} % of the entries"


@dataclass(frozen=True, slots=True)
class Contraction(_Unchanged):
    """Mark a factor of a product that is summed over `terms` entries, as in a matrix product of two signals."""

    op: ClassVar[str] = "contraction"
    terms: int = 1

    def words(self) -> str:
        """Say how many products are summed."""
        return f"factor of a sum over {self.terms}"


@dataclass(frozen=True, slots=True)
class Weight(Operator):
    """Multiply by an independent weight of mean zero: the output is a new field.

    `fan_in` counts the entries that an output unit reads and `fan_out` those that an input unit feeds, within its group
    and including kernel taps; `kernel_size` is the geometric mean of a kernel's sides and `kernel_axes` the number of
    axes it slides along; `patches` marks a kernel with a stride of its own size, which reads every entry once. `gain`
    is a factor of the second moment apart from the weights: the share of a kernel's taps that meet no padding.
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
        """The number of kernel taps: 1 for a matrix."""
        return self.kernel_size**self.kernel_axes

    @property
    def units_in(self) -> float:
        """The number of units that one output unit reads, without kernel taps."""
        return self.fan_in / self.taps

    @property
    def units_out(self) -> float:
        """The number of units that one input unit feeds, without kernel taps."""
        return self.fan_out if self.patches else self.fan_out / self.taps

    @property
    def slides(self) -> bool:
        """Whether it is a kernel that slides over positions with overlap."""
        return self.kernel_axes > 0 and not self.patches

    def output_moments(self, variance: float) -> Moments:
        """Return the moments of the output if the matrix product has this variance."""
        return Moments(0.0, variance)

    def moments(self, given: Moments) -> Moments:
        """Return the moments for a weight of fan_in * var(W) = 1; the initialisation sets its real size."""
        return self.output_moments(self.gain * given.second_moment)

    def slope(self, given: Moments) -> float:  # noqa: ARG002
        """Pass changes like the signal, for a weight of fan_in * var(W) = 1."""
        return self.gain

    def length(self, kernel_length: float) -> float:
        """Count a kernel of side k as k - 1 further weights: its activation counts as the first."""
        return self.depth + (0.0 if self.patches else kernel_length * (self.kernel_size - 1.0))


@dataclass(frozen=True, slots=True)
class Recurrent(Weight):
    """Run a sequence through an opaque recurrent block (`kind` lstm, gru, tanh or relu), with weights of its own."""

    op: ClassVar[str] = "recurrent"
    kind: str = "tanh"
    depth: int = field(default=1, kw_only=True)

    def output_moments(self, variance: float) -> Moments:  # noqa: ARG002
        """Return the stationary moments of the block's output if its gates read unit Gaussians."""
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
    """Return the moments of a signal after a sequence of operators."""
    for operator in operators:
        given = operator.moments(given)
    return given


def slope_of(operators: Iterable[Operator], given: Moments) -> float:
    """Return the factor of the variance of a small change through a sequence of operators."""
    slope = 1.0
    for operator in operators:
        slope *= operator.slope(given)
        given = operator.moments(given)
    return slope


def operator_of(values: Mapping[str, Any]) -> Operator:
    """Rebuild an operator from the output of `to_dict`; raise if a field is invalid."""
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
