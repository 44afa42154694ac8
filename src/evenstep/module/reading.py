"""A module as it was read: its graph, the program it was read from, and the node that makes each vertex's signal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import fx

from evenstep.graph.model import Graph
from evenstep.module.program import Program

# Operators that run a graph inside as it stands; others with graphs inside (cond, while_loop) choose and repeat.
TRANSPARENT = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap", "tag_activation_checkpoint")


class Maker(NamedTuple):
    """Name the node of a program that makes a vertex's signal, and which of its outputs that is, if it has several."""

    node: fx.Node
    place: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reading:
    """Hold a module as it was read: its graph, the program it was read from, and the node that makes each vertex.

    `own_names` maps every name of a parameter to the one that plans use: tied parameters have several.
    """

    graph: Graph
    program: Program
    makers: Mapping[str, Maker]
    own_names: Mapping[str, str]
