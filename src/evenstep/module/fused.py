"""Which weights hold several projections: their outputs are split, and never used as a whole.

To find the parts, the program runs on the indices of a weight's output features: they follow the features through
views, transposes and splits, and the indices that each part ends with show which rows it consists of.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from evenstep.module.ops import op_name
from evenstep.module.ops.structure import cuts_entries, moves_entries
from evenstep.module.program import Program

_LARGEST = 2**24  # entries of an output that can be followed; if it has more, a fused weight counts as one
# A weight's place among an operator's arguments, and the axis of the output that holds its features.
_PRODUCTS = {"aten.linear": (1, -1), "aten.matmul": (1, -1), "aten.mm": (1, -1), "aten.addmm": (2, -1)}
_PRODUCTS |= {f"aten.conv{axes}d": (1, 1) for axes in (1, 2, 3)}


def fused_parts(program: Program) -> Mapping[str, tuple[int, ...]]:
    """Return the sizes of the projections that a program's parameters hold, by the program's names for them.

    If parts are not contiguous (the heads of one projection between those of another), or differ between two uses of a
    weight, the weight counts as one.
    """
    names = {given.name: given.target for given in program.inputs if given.kind == "parameter"}
    sizes: dict[str, tuple[int, ...]] = {}
    for node in program.graph.nodes:
        place, axis = _PRODUCTS.get(op_name(node.target).rpartition(".")[0], (0, 0))
        matrix = node.args[place] if 0 < place < len(node.args) else None
        if not isinstance(matrix, fx.Node) or matrix.name not in names:
            continue
        name, parts = names[matrix.name], _parts_of(node, matrix, axis)
        sizes[name] = parts if sizes.get(name, parts) == parts else ()
    return {name: parts for name, parts in sizes.items() if parts}


def _parts_of(node: fx.Node, matrix: fx.Node, axis: int) -> tuple[int, ...]:
    """Return the sizes of the parts that a product's output is split into; none if it is used as a whole."""
    made, weight = node.meta.get("val"), matrix.meta.get("val")
    if not isinstance(made, torch.Tensor) or not isinstance(weight, torch.Tensor) or made.numel() > _LARGEST:
        return ()
    of_rows = op_name(node.target).startswith(("aten.linear.", "aten.conv"))
    if weight.dim() < 2 or (not of_rows and weight.shape[0] == weight.shape[1]) or not _is_always_cut(node):
        return ()
    features, sides = int(made.shape[axis]), [1] * made.dim()
    sides[axis] = features
    labels = torch.arange(features, dtype=torch.int32).reshape(sides).expand(made.shape).contiguous()
    try:
        ranges = {_range(part) for part in _ends(node, labels)}
    except Exception:  # an operator that does not take integers, so where it moves features is not known
        return ()
    ordered = sorted(ranges)
    stops = [0, *(stop for _, stop in ordered)]
    if len(ordered) < 2 or [start for start, _ in ordered] != stops[:-1] or stops[-1] != features:
        return ()
    return tuple(stop - start for start, stop in ordered)


def _is_always_cut(node: fx.Node) -> bool:
    """Return whether every path from a node leads, through moves only, to an operator that takes entries out."""
    users = list(node.users)
    return bool(users) and all(
        _only_reads(user, node) and (cuts_entries(name) or (moves_entries(name) and _is_always_cut(user)))
        for user in users
        for name in [op_name(user.target)]
    )


def _only_reads(user: fx.Node, node: fx.Node) -> bool:
    return user.op == "call_function" and user.all_input_nodes == [node]


def _ends(node: fx.Node, labels: Any) -> Iterator[torch.Tensor]:
    """Yield the parts that a node's labels are split into; an operator that leaves none out is a move."""
    for user in node.users:
        if user.target is operator.getitem:
            moved = labels[user.args[1]]
        else:
            args = fx.node.map_arg(user.args, lambda _: labels)
            kwargs = fx.node.map_arg(user.kwargs, lambda _: labels)
            moved = user.target(*args, **kwargs)  # type: ignore[operator]
        if isinstance(moved, list | tuple):
            yield from _ends(user, moved)
        elif isinstance(labels, list | tuple) or moved.numel() < labels.numel():
            yield moved
        else:
            yield from _ends(user, moved)


def _range(part: torch.Tensor) -> tuple[int, int]:
    """Return the range of features in a part; raise if they are not contiguous."""
    features = torch.unique(part)
    start, stop = int(features[0]), int(features[-1]) + 1
    if stop - start != len(features):
        raise ValueError("the parts are not contiguous")
    return start, stop
