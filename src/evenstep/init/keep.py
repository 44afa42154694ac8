"""`keep`: weights stay as they are, for a plan of learning rates only."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenstep.graph import Edge, Graph
from evenstep.graph.roles import Head
from evenstep.init.initialisation import Initialisation, Sizes, equal_sizes
from evenstep.signal import IncomingWeights, VertexSignal


@dataclass(frozen=True)
class Keep(Initialisation):
    """Leave all weights as they are."""

    name: str = field(default="keep", kw_only=True)

    @property
    def keeps(self) -> bool:
        """True: every weight stays as it is."""
        return True

    def size_hidden(self, graph: Graph, incoming: IncomingWeights) -> Sizes:  # noqa: ARG002
        """Return placeholders: every weight gets its measured size instead."""
        return equal_sizes(incoming, 1.0, "")

    def size_readout(self, graph: Graph, head: Head, edge: Edge, read: float, at: VertexSignal) -> tuple[float, str]:  # noqa: ARG002
        """Return a placeholder, as `size_hidden` does."""
        return 1.0, ""
