"""Make a base automatically: the user's network with one block of each kind that it repeats."""

from evenstep.search.base.making import Base, base_of

__all__ = ["Base", "base_of"]
