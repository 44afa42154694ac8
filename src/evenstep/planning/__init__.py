"""The plan as a value, and how it is made from a graph. No torch."""

from evenstep.planning.optimizers import OptimizerChoice, OptimizerLike, optimizer_choice
from evenstep.planning.plan import ParameterPlan, Plan, VertexPlan, any_digits
from evenstep.planning.planner import BASE_WIDTH, BaseSearch, chain_like, plan_graph, plan_network

__all__ = [
    "BASE_WIDTH",
    "BaseSearch",
    "OptimizerChoice",
    "OptimizerLike",
    "ParameterPlan",
    "Plan",
    "VertexPlan",
    "any_digits",
    "chain_like",
    "optimizer_choice",
    "plan_graph",
    "plan_network",
]
