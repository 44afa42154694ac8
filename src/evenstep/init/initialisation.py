"""What an initialisation is: a value that holds its constants and sizes the weights that meet at a vertex.

Initialisations that draw weights treat tied ones alike and differ in how they size hidden weights, by fan_in * var(W).
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
from evenstep.graph.residual import Joined
from evenstep.graph.roles import Head
from evenstep.signal import IncomingWeights, VertexSignal

Tied = Literal["smallest", "largest"]
# For each weight edge into a vertex: fan_in * var(W), and why.
Sizes = tuple[list[float], list[str]]
_SMALLEST_VARIANCE = 1e-12  # what a weight of zero counts as: shares are ratios, so how small does not matter


@dataclass(frozen=True)
class Initialisation(ABC):
    """Say how weights are initialised; trained factors that multiply signals count as one."""

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
        """Size a readout that reads the second moment `read` from a head whose signal is `at`."""

    def choose_tied_use(self, stds: Mapping[int, float]) -> int:
        """Choose one use of a tied weight, given the standard deviation that each use needs."""
        return min(stds, key=lambda edge_index: stds[edge_index])

    def size_kept(self, edge: Edge, parameter: Parameter) -> tuple[float, str]:
        """Size a weight that stays as it is by what was measured when the network was traced."""
        assert edge.weight is not None
        if parameter.measured is None:
            raise InputError(
                f"init is 'keep', but the size of '{parameter.name}' is not known; "
                "'keep' reads a module's weights: plan a module, or choose another init"
            )
        if not math.isfinite(parameter.measured):
            raise InputError(
                f"'{parameter.name}' is kept as it is, but holds values that are not finite; load others, or draw it"
            )
        return edge.weight.fan_in * max(parameter.measured**2, _SMALLEST_VARIANCE), "kept as it is"

    @property
    def undoes_growth(self) -> bool:
        """Whether weights that read a field that has grown, including readouts, are drawn smaller in proportion."""
        return False

    def branch_scale(self, joined: Joined) -> float:  # noqa: ARG002
        """Return the factor of what a branch ends in, past which a skip leads: a weight's deviation, or a gain."""
        return 1.0

    def relative_to(self, readout_fan_in: float | None) -> Initialisation:  # noqa: ARG002
        """Return the initialisation of a network whose base's readouts read this number of units."""
        return self


@dataclass(frozen=True)
class DrawnInitialisation(Initialisation):
    """Say how weights are drawn, except for their sizes; `tied` says which use sets the size of a tied weight."""

    tied: Tied = "smallest"  # so that no use of a tied weight overshoots

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tied not in get_args(Tied):
            raise InputError(f"tied of init '{self.name}' is {self.tied!r}; choose one of {', '.join(get_args(Tied))}")

    def choose_tied_use(self, stds: Mapping[int, float]) -> int:
        """Choose the use that needs the smallest or the largest standard deviation, as `tied` says."""
        choose = min if self.tied == "smallest" else max
        return choose(stds, key=lambda edge_index: stds[edge_index])

    @abstractmethod
    def readout_size(self, fan_in: int) -> float:
        """Return fan_in * var(W) of a readout whose input has second moment one."""

    @abstractmethod
    def readout_words(self) -> str:
        """Say how a readout whose input has second moment one starts."""

    def size_readout(self, graph: Graph, head: Head, edge: Edge, read: float, at: VertexSignal) -> tuple[float, str]:  # noqa: ARG002
        """Size a readout as if its input had second moment one."""
        assert edge.weight is not None
        return self.readout_size(edge.weight.fan_in), self.readout_words()


@dataclass(frozen=True)
class MeanFieldReadout(DrawnInitialisation):
    """Start readouts with standard deviation fan_in^-`readout_power`.

    A power of 1 is mean-field: the wider the network, the smaller the output starts; 1/2 would keep the output's size.
    """

    readout_power: float = 1.0  # the limit of infinite width, as in the paper's experiments

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
    """Return the moments that a vertex would have at second moment one; the mean keeps its share."""
    mean, variance = signal.moments
    second = variance + mean**2
    return Moments(mean / math.sqrt(second), variance / second) if second > 0 else Moments(0.0, 1.0)
