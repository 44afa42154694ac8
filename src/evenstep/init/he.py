"""`he`: one variance for all hidden weights, whatever the graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenstep.graph import Graph
from evenstep.init.initialisation import MeanFieldReadout, Sizes, equal_sizes
from evenstep.signal import IncomingWeights


@dataclass(frozen=True)
class He(MeanFieldReadout):
    """Draw every hidden weight with variance `gain` / fan_in."""

    name: str = field(default="he", kw_only=True)
    gain: float = 2.0  # compensates for ReLU (He et al. 2015)

    def size_hidden(self, graph: Graph, incoming: IncomingWeights) -> Sizes:  # noqa: ARG002
        """Size all weights alike."""
        return equal_sizes(incoming, self.gain, f"variance {self.gain:g}/fan_in (he)")
