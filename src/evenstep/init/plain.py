"""`he` and `keep`: initialisations that do not look at the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evenstep.graph import Graph
from evenstep.init.initialisation import DrawnInitialisation, Initialisation, Sizes, alike
from evenstep.signal import IncomingWeights


@dataclass(frozen=True)
class He(DrawnInitialisation):
    """Draw every hidden weight with variance `gain` / fan_in."""

    name: ClassVar[str] = "he"
    gain: float = 2.0  # what undoes the ReLU's halving (He et al. 2015)

    def hidden(self, graph: Graph, incoming: IncomingWeights) -> Sizes:  # noqa: ARG002
        """Size all weights alike."""
        return alike(incoming, self.gain, f"{self.gain:g}/fan_in (he)")


@dataclass(frozen=True)
class Keep(Initialisation):
    """Leave all weights as they are: a plan of learning rates alone."""

    name: ClassVar[str] = "keep"

    @property
    def keeps(self) -> bool:
        """All of them."""
        return True

    def hidden(self, graph: Graph, incoming: IncomingWeights) -> Sizes:  # noqa: ARG002
        """Size nothing: every weight is replaced by its measured size."""
        return alike(incoming, 1.0, "")
