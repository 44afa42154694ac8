"""From a graph to a plan: path moments, the signal at initialisation, and the rules built on them. No torch."""

from evenstep.rules.baselines import Constant, Mup
from evenstep.rules.initialisation import INITS, Init, Initialisation, initialise
from evenstep.rules.moments import PathMoments, path_moments
from evenstep.rules.network import OPTIMIZERS, Factor, Network, Optimizer, Rule
from evenstep.rules.paths import Paths
from evenstep.rules.plan import ParameterPlan, Plan, VertexPlan
from evenstep.rules.planning import BASE_WIDTH, RULES, BaseSearch, chain_like, plan_graph
from evenstep.rules.signal import Signal, VertexSignal, propagate
from evenstep.rules.weighted import Weighted

__all__ = [
    "BASE_WIDTH",
    "INITS",
    "OPTIMIZERS",
    "RULES",
    "BaseSearch",
    "Constant",
    "Factor",
    "Init",
    "Initialisation",
    "Mup",
    "Network",
    "Optimizer",
    "ParameterPlan",
    "PathMoments",
    "Paths",
    "Plan",
    "Rule",
    "Signal",
    "VertexPlan",
    "VertexSignal",
    "Weighted",
    "chain_like",
    "initialise",
    "path_moments",
    "plan_graph",
    "propagate",
]
