"""Layers that read learned queries or constants: if their output joins a signal, it is a signal.

A linear layer that reads only parameters makes either a signal (the queries of a decoder's first attention) or a weight
(a network that computes another's weights). The use of its output tells which.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from evenstep.module.ops import op_name

_LAYERS = ("aten.linear.", "aten.conv1d.", "aten.conv2d.", "aten.conv3d.")
# Operators whose tensors are all signals, whatever their place among the arguments.
_JOINS = (
    *("aten.add.", "aten.add_.", "aten.sub.", "aten.cat.", "aten.stack.", "aten.concat."),
    *("aten.scaled_dot_product_attention.",),
)


def dependents(graph: fx.Graph, inputs: Collection[str]) -> set[fx.Node]:
    """Return the nodes whose values depend on the inputs of these names."""
    nodes: set[fx.Node] = set()
    for node in graph.nodes:
        if node.name in inputs or any(argument in nodes for argument in node.all_input_nodes):
            nodes.add(node)
    return nodes


def makes_a_signal(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    """Return whether the output of a layer that only reads parameters or constants joins a signal."""
    if not op_name(node.target).startswith(_LAYERS):
        return False
    queue, seen = [node], {node}
    for current in queue:
        for user in current.users:
            if user in dependent:
                if joins(op_name(user.target)):
                    return True
            elif user not in seen:
                seen.add(user)
                queue.append(user)
    return False


def joins(op: str) -> bool:
    """Return whether an operator joins tensors on an equal footing."""
    return op.startswith(_JOINS)
