"""Graphs of networks, and the compact codes they can be read from. Needs neither torch nor numpy."""

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

__all__ = [
    "Edge",
    "Graph",
    "Parameter",
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
]
