"""evenstep: every parameter takes an even step.

Hand in any PyTorch module; get back an initialisation and a learning rate for every parameter.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenstep.errors import (
        DamageError,
        EvenstepError,
        GraphError,
        InputError,
        PlanError,
        PlanWarning,
        SearchError,
        SearchWarning,
        StoreError,
        TraceError,
    )
    from evenstep.graph import Graph
    from evenstep.module import check_groups, initialize_, ops, plan, register_op, trace
    from evenstep.planning import ParameterPlan, Plan
    from evenstep.report.page import write_report
    from evenstep.rules import Factor
    from evenstep.search import Base, Check, LRSearch, Refinement, auto_plan, base_of, check, refine, search_lr

__version__ = "0.1.0"

# Public name -> module that holds it. Loaded on first use, so that the graph and the rules work without torch.
_ERRORS = (
    *("EvenstepError", "DamageError", "GraphError", "InputError"),
    *("PlanError", "PlanWarning", "SearchError", "SearchWarning", "StoreError", "TraceError"),
)
_HOMES = {
    "evenstep.errors": _ERRORS,
    "evenstep.graph": ("Graph",),
    "evenstep.rules": ("Factor",),
    "evenstep.planning": ("ParameterPlan", "Plan"),
    "evenstep.module": ("check_groups", "initialize_", "ops", "plan", "register_op", "trace"),
    "evenstep.report.page": ("write_report",),
    "evenstep.search": (
        *("Base", "Check", "LRSearch", "Refinement"),
        *("auto_plan", "base_of", "check", "refine", "search_lr"),
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Base",
    "Check",
    "DamageError",
    "EvenstepError",
    "Factor",
    "Graph",
    "GraphError",
    "InputError",
    "LRSearch",
    "ParameterPlan",
    "Plan",
    "PlanError",
    "PlanWarning",
    "Refinement",
    "SearchError",
    "SearchWarning",
    "StoreError",
    "TraceError",
    "__version__",
    "auto_plan",
    "base_of",
    "check",
    "check_groups",
    "initialize_",
    "ops",
    "plan",
    "refine",
    "register_op",
    "search_lr",
    "trace",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'evenstep' has no attribute '{name}'")
    home = importlib.import_module(_HOME_OF[name])
    value = importlib.import_module(f"{home.__name__}.{name}") if name == "ops" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
