"""What every vertex carries at initialisation, how walks go back from it, and how far changes go on. No torch."""

from evenstep.signal.backward import effects, sensitivities
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
    "effects",
    "propagate",
    "sensitivities",
    "walk_statistics",
]
