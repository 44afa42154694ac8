"""Layers that read learned queries or constants: what they make joins the signal, so it is one.

A linear layer of parameters alone either makes a signal (the queries of a decoder's first attention) or a weight (a
network that writes another's). What becomes of its output tells them apart.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from evenstep.module.ops import op_name

_LAYERS = ("aten.linear.", "aten.conv1d.", "aten.conv2d.", "aten.conv3d.")
# Where a tensor is one signal among others, whatever its place among the arguments.
_JOINS = (
    *("aten.add.", "aten.add_.", "aten.sub.", "aten.cat.", "aten.stack.", "aten.concat."),
    *("aten.scaled_dot_product_attention.",),
)


def dependents(graph: fx.Graph, inputs: Collection[str]) -> set[fx.Node]:
    """Return the nodes whose values depend on the inputs of these names."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.name in inputs or any(argument in found for argument in node.all_input_nodes):
            found.add(node)
    return found


def makes_a_signal(node: fx.Node, dependent: Collection[fx.Node]) -> bool:
    """Return whether a layer that reads parameters or constants alone makes something that joins a signal."""
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
