"""The signal at every vertex at initialisation, and walks back from it. No torch."""

from evenstep.signal.comparison import deviations
from evenstep.signal.forward import IncomingWeights, Signal, Sizing, VertexSignal, propagate
from evenstep.signal.walks import WalkStatistics, walk_statistics

__all__ = [
    "IncomingWeights",
    "Signal",
    "Sizing",
    "VertexSignal",
    "WalkStatistics",
    "deviations",
    "propagate",
    "walk_statistics",
]
