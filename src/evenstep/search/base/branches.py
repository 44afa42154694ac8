"""Find out from autograd's graph whether the results of some modules are only added to the stream."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import Node

from evenstep.search.base.recording import Call, Recording, flows_of, reached

# These turn a zero operand into zeros, whatever their others are, ...
_ANY = frozenset({"Mul", "Mm", "Bmm"})
# ... these do so with their only operand, ...
_UNARY = frozenset(
    """
    Alias AsStrided Clone Elu Expand Gelu LeakyRelu Mean Mish NativeDropout Neg Permute Pow Relu Repeat Reshape
    ReshapeAlias Roll Select Silu Slice Split SplitWithSizes Squeeze Sum T Tanh ToCopy Transpose Unbind UnsafeSplit
    UnsafeView Unsqueeze View AdaptiveAvgPool2D AvgPool2D ConstantPadNd MaxPool2DWithIndices UpsampleBilinear2D
    UpsampleNearest2D
    """.split()
)
# ... and these do so if all operands are zero.
_ALL = frozenset({"Cat", "Stack"})
_SUMS = frozenset({"Add", "Sub"})


def is_added(calls: Sequence[Call], recording: Recording) -> bool:
    """Say whether all results of the calls, except those that only the calls use, are added to other results.

    They may be scaled, gated, dropped or moved on the way. Removing the calls from a sum that is scaled, or whose other
    summand is, would leave a factor behind.
    """
    makers = {flow.maker for call in calls for flow in flows_of(call.returned) if flow.maker is not None}
    inside = _inside(calls, recording)
    zero = _zero(makers, inside, recording)
    if zero.intersection(recording.results):
        return False
    # Zeros that end in one of the calls, or in zeros again, disappear as well.
    live = set[Node]().union(*(reached(result, recording.sources, zero | inside) for result in recording.results))
    outlets = {user for node in zero for user in recording.users.get(node, ()) if user in live}
    taken = (flow.maker for call in calls for flow in call.taken.values())
    stream = set[Node]().union(*(reached(node, recording.sources) for node in taken if node is not None))
    return bool(outlets) and all(_is_plain_sum(outlet, zero, stream, recording) for outlet in outlets)


def _is_plain_sum(node: Node, zero: set[Node], stream: set[Node], recording: Recording) -> bool:
    others = {source for source in recording.sources[node] if source not in zero}
    users = recording.users.get(node, ())
    scaled = any(_scales(other) for other in (*users[: len(users) == 1], *(others - stream)))
    return _kind(node) in _SUMS and bool(others) and not scaled


def _inside(calls: Sequence[Call], recording: Recording) -> set[Node]:
    """Return the nodes inside the calls, which disappear with them."""
    found: set[Node] = set()
    for call in calls:
        stop = {flow.maker for flow in call.taken.values()}
        for flow in flows_of(call.returned):
            if flow.maker is not None:
                found |= reached(flow.maker, recording.sources, stop)
    return found


def _zero(makers: set[Node], inside: set[Node], recording: Recording) -> set[Node]:
    """Return the nodes that are zero if the makers are, or a number that was added to them, as Python's `sum` does."""
    zero, shifted = set[Node](), set[Node]()
    left = list(makers)
    while left:
        node = left.pop()
        if node in zero:
            continue
        zero.add(node)
        operands = [source for source, _ in node.next_functions]
        if node not in makers and _kind(node) in _SUMS and (None in operands or not shifted.isdisjoint(operands)):
            shifted.add(node)
        users = (user for user in recording.users.get(node, ()) if user not in inside)
        left += [user for user in users if _keeps_zero(user, zero, shifted)]
    return zero


def _keeps_zero(node: Node, zero: set[Node], shifted: set[Node]) -> bool:
    kind = _kind(node)
    operands = [source for source, _ in node.next_functions]
    if kind in _SUMS:  # an added parameter is not zero
        return all(operand is None or operand in zero for operand in operands)
    if not shifted.isdisjoint(operands):
        return False
    if kind in _ALL:
        return all(operand in zero for operand in operands)
    return operands[0] in zero if kind == "Div" else kind in _ANY or kind in _UNARY


def _kind(node: Node) -> str:
    return node.name().rpartition("Backward")[0]


def _scales(node: Node) -> bool:
    """Say whether a node multiplies by a single number."""
    other = getattr(node, "_saved_other", None) if _kind(node) in ("Mul", "Div") else None
    return isinstance(other, Tensor) and other.numel() == 1
