"""What an initialisation is: a value that owns its numbers and sizes the weights that meet at a vertex.

All that draw weights treat tied ones alike. Each adds its own way to size hidden weights, by fan_in * var(W).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from evenstep.errors import InputError
from evenstep.graph import Edge, Graph, Parameter
from evenstep.graph.fields import require_valid_fields
from evenstep.graph.operators import Moments
from evenstep.graph.roles import Head
from evenstep.signal import IncomingWeights, VertexSignal

Tied = Literal["smallest", "largest"]
# For each weight edge that reaches a vertex: fan_in * var(W), and why.
Sizes = tuple[list[float], list[str]]
_SMALLEST_VARIANCE = 1e-12  # shares are ratios: how small a weight of zero counts as does not matter


@dataclass(frozen=True)
class Initialisation(ABC):
    """Say how weights start; trained factors that multiply signals are taken as one."""

    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        require_valid_fields(self)

    @property
    def keeps(self) -> bool:
        """Whether trained weights stay as they are."""
        return False

    @abstractmethod
    def size_hidden(self, graph: Graph, incoming: IncomingWeights) -> Sizes:
        """Size the hidden weights that meet at a vertex."""

    @abstractmethod
    def size_readout(self, graph: Graph, head: Head, edge: Edge, read: float, at: VertexSignal) -> tuple[float, str]:
        """Size a readout that reads the second moment `read` of a head that carries `at`."""

    def choose_tied_use(self, stds: Mapping[int, float]) -> int:
        """Choose one of the uses of a tied weight, which ask for these standard deviations."""
        return min(stds, key=lambda edge_index: stds[edge_index])

    def size_kept(self, edge: Edge, parameter: Parameter) -> tuple[float, str]:
        """Size a weight that stays as it is by what was measured when the network was traced."""
        assert edge.weight is not None
        if parameter.measured is None:
            raise InputError(
                f"init is 'keep' but the size of '{parameter.name}' is not known; "
                "'keep' reads a module's weights: plan a module, or choose another init"
            )
        if not math.isfinite(parameter.measured):
            raise InputError(
                f"'{parameter.name}' is kept as it is but holds values that are not finite; load good ones, or draw it"
            )
        return edge.weight.fan_in * max(parameter.measured**2, _SMALLEST_VARIANCE), "kept as it is"

    @property
    def undoes_growth(self) -> bool:
        """Whether weights that read a field which has grown are drawn smaller for it, readouts among them."""
        return False

    def relative_to(self, readout_fan_in: float | None) -> Initialisation:  # noqa: ARG002
        """Return the initialisation of a network whose base's readouts read so many units."""
        return self


@dataclass(frozen=True)
class DrawnInitialisation(Initialisation):
    """Say how weights are drawn, all but their sizes; one of several uses takes the `tied` one of what they ask for."""

    tied: Tied = "smallest"  # no use of a tied weight then overshoots

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tied not in get_args(Tied):
            raise InputError(f"tied of init '{self.name}' is {self.tied!r}; choose one of {', '.join(get_args(Tied))}")

    def choose_tied_use(self, stds: Mapping[int, float]) -> int:
        """Choose the smallest or the largest."""
        choose = min if self.tied == "smallest" else max
        return choose(stds, key=lambda edge_index: stds[edge_index])

    @abstractmethod
    def readout_size(self, fan_in: int) -> float:
        """Return fan_in * var(W) of a readout that reads second moment one."""

    @abstractmethod
    def readout_words(self) -> str:
        """Say how a readout that reads second moment one starts."""

    def size_readout(self, graph: Graph, head: Head, edge: Edge, read: float, at: VertexSignal) -> tuple[float, str]:  # noqa: ARG002
        """Size a readout as if what it reads had second moment one."""
        assert edge.weight is not None
        return self.readout_size(edge.weight.fan_in), self.readout_words()


@dataclass(frozen=True)
class MeanFieldReadout(DrawnInitialisation):
    """Start readouts with standard deviation fan_in^-`readout_power`.

    1 is mean-field, so that the output starts near zero at any width; 1/2 would keep the output's size.
    """

    readout_power: float = 1.0  # the limit of infinite width, as the paper's authors train

    def readout_size(self, fan_in: int) -> float:
        """Return fan_in * var(W) of a readout."""
        return math.pow(fan_in, 1.0 - 2.0 * self.readout_power)

    def readout_words(self) -> str:
        """Say how a readout starts."""
        return (
            "mean-field readout, 1/fan_in" if self.readout_power == 1.0 else f"readout, fan_in^-{self.readout_power:g}"
        )


def equal_sizes(incoming: IncomingWeights, size: float, why: str) -> Sizes:
    """Size all weights that meet at a vertex alike."""
    return [size] * len(incoming.edges), [why] * len(incoming.edges)


def rescaled_to_unit(signal: VertexSignal) -> Moments:
    """Return a vertex's moments if it carried second moment one: the mean keeps its share."""
    mean, variance = signal.moments
    second = variance + mean**2
    return Moments(mean / math.sqrt(second), variance / second) if second > 0 else Moments(0.0, 1.0)
