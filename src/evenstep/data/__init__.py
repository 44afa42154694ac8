"""Data sets; so far scikit-learn's digits, which need no download."""

from evenstep.data.digits import Split, digits

__all__ = ["Split", "digits"]
