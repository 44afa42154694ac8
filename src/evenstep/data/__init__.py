"""Data that needs no download: scikit-learn's digits, and the text of Python's standard library."""

from evenstep.data.digits import digits
from evenstep.data.split import Split
from evenstep.data.text import standard_library

__all__ = ["Split", "digits", "standard_library"]
