"""The signal at every vertex at initialisation, walks back from it, and how changes propagate. No torch."""

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
