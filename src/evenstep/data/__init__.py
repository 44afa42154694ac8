"""Data sets: scikit-learn's digits, which need no download, and CIFAR-10 from its official files."""

from evenstep.data.cifar10 import cifar10
from evenstep.data.digits import Split, digits

__all__ = ["Split", "cifar10", "digits"]
