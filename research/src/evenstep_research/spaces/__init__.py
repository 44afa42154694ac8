"""Hold the search spaces of the paper as plain modules: DAG-MLPs, DAG-CNNs, NAS-Bench-201 cells."""

from evenstep_research.spaces.dag import ACTIVATIONS, NORMS, ORDERS, DagCNN, DagMLP
from evenstep_research.spaces.nasbench201 import NasBench201

__all__ = ["ACTIVATIONS", "NORMS", "ORDERS", "DagCNN", "DagMLP", "NasBench201"]
