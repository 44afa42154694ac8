"""Search the base's learning rate, plan from it, and correct plans by short runs."""

from evenstep.search.auto import auto_plan
from evenstep.search.base import Base, base_of
from evenstep.search.checking import Check, check
from evenstep.search.engines import Engine, LocalEngine
from evenstep.search.recipe import cosine_schedule
from evenstep.search.refining import Refinement, refine
from evenstep.search.result import LRSearch
from evenstep.search.searching import search_lr
from evenstep.search.showing import SearchProgress
from evenstep.search.store import Store

__all__ = [
    "Base",
    "Check",
    "Engine",
    "LRSearch",
    "LocalEngine",
    "Refinement",
    "SearchProgress",
    "Store",
    "auto_plan",
    "base_of",
    "check",
    "cosine_schedule",
    "refine",
    "search_lr",
]
