"""Check how a model's parameters were given to optimisers and schedulers."""

from evenstep.lint.finding import Finding
from evenstep.lint.linting import lint

__all__ = ["Finding", "lint"]
