"""From a torch module to a graph, and from a plan back to the module."""

from evenstep.module.apply import initialize_
from evenstep.module.groups import check_groups
from evenstep.module.ops import register_op
from evenstep.module.planning import plan
from evenstep.module.trace import trace

__all__ = ["check_groups", "initialize_", "plan", "register_op", "trace"]
