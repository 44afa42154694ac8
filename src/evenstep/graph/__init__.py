"""Graphs of networks, the operators on their edges, and the compact codes that describe them. No torch."""

from evenstep.graph.codes import (
    Wiring,
    WiringEdge,
    dag_code,
    nasbench201_digits,
    nasbench201_string,
    parse_dag_code,
    parse_nasbench201_code,
)
from evenstep.graph.model import Edge, Graph, Parameter, Vertex
from evenstep.graph.networks import dag_cnn_graph, dag_mlp_graph, nasbench201_graph
from evenstep.graph.path_moments import PathMoments, path_moments

__all__ = [
    "Edge",
    "Graph",
    "Parameter",
    "PathMoments",
    "Vertex",
    "Wiring",
    "WiringEdge",
    "dag_cnn_graph",
    "dag_code",
    "dag_mlp_graph",
    "nasbench201_digits",
    "nasbench201_graph",
    "nasbench201_string",
    "parse_dag_code",
    "parse_nasbench201_code",
    "path_moments",
]
