"""The base's learning rate: trained for, not guessed."""

from evenstep.search.checking import Check, check
from evenstep.search.engines import Engine, LocalEngine
from evenstep.search.result import LRSearch
from evenstep.search.searching import SearchProgress, search_lr
from evenstep.search.store import Store
from evenstep.search.training import mean_loss, train_

__all__ = [
    "Check",
    "Engine",
    "LRSearch",
    "LocalEngine",
    "SearchProgress",
    "Store",
    "check",
    "mean_loss",
    "search_lr",
    "train_",
]
