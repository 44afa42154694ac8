"""The base's learning rate: trained for, not guessed."""

from evenstep.search.result import LRSearch
from evenstep.search.sequential import search_lr
from evenstep.search.training import mean_loss, train_

__all__ = ["LRSearch", "mean_loss", "search_lr", "train_"]
