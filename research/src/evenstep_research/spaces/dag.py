"""Build the network of a compact DAG code such as '2_12_112'.

Row t of a code lists the edge into vertex t from each earlier vertex: 0 none, 1 skip, 2 weight.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenstep.arguments import LARGEST, require_choice, shown
from evenstep.errors import InputError
from evenstep.graph.codes import parse_dag_code

ORDERS: tuple[str, ...] = ("pre", "post")
NORMS: tuple[str, ...] = ("none", "batch", "layer")
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh}
)


def require_positive(name: str, value: int) -> int:
    """Return `value`, or raise `InputError` unless it is an integer of at least 1."""
    # bool is an int in Python; `width=True` is a slip, not a width of one.
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise InputError(f"{name} is {shown(value)}; give an integer of at least 1")
    return value


class _Dag(nn.Module):
    """Run the vertices of a DAG between a stem and a readout; the subclasses choose the layers."""

    def __init__(
        self,
        code: str,
        *,
        stem: nn.Module,
        make_edge: Callable[[], nn.Module],
        make_norm: Mapping[str, Callable[[], nn.Module]],
        readout: nn.Module,
        order: str,
        norm: str,
        activation: str,
    ) -> None:
        super().__init__()
        require_choice("order", order, ORDERS)
        require_choice("norm", norm, NORMS)
        require_choice("activation", activation, tuple(ACTIVATIONS))
        if order == "post" and norm != "none":
            raise InputError(f"norm is {norm!r} with order 'post'; norms need order 'pre', or pass norm='none'")
        wiring = parse_dag_code(code).live()
        edges = sorted(wiring.edges, key=lambda edge: (edge.target, edge.source))
        weights = [edge for edge in edges if edge.op == "weight"]

        self.code = code
        self.order = order
        self.wiring = wiring
        self._last = wiring.vertex_count - 1
        # (source, is a weight) of every edge into a vertex; vertices that prune away have no entry.
        self._incoming: dict[int, list[tuple[int, bool]]] = {}
        for edge in edges:
            self._incoming.setdefault(edge.target, []).append((edge.source, edge.op == "weight"))
        self._activated = frozenset({edge.source for edge in weights} | {self._last})
        self._activation = ACTIVATIONS[activation]

        self.stem = stem
        self.edges = nn.ModuleDict({f"{edge.source}_{edge.target}": make_edge() for edge in weights})
        normed = sorted(self._activated) if norm != "none" else []
        self.norms = nn.ModuleDict({str(vertex): make_norm[norm]() for vertex in normed})
        self.readout = readout

    def _vertices(self, stem_output: Tensor) -> Tensor:
        """Return what the readout reads: act(norm(z_last)) for order pre, x_last for order post."""
        return self._pre(stem_output) if self.order == "pre" else self._post(stem_output)

    def _pre(self, stem_output: Tensor) -> Tensor:
        """Compute z_t = sum W_st act(norm_s(z_s)) + sum over skips z_s, from z_0 = stem(x)."""
        fields = {0: stem_output}
        activated = {0: self._activate(0, stem_output)} if 0 in self._activated else {}
        for target, incoming in self._incoming.items():
            fields[target] = _add(
                [
                    self.edges[f"{source}_{target}"](activated[source]) if is_weight else fields[source]
                    for source, is_weight in incoming
                ]
            )
            # Here, not at the edge: all weights that leave a vertex read one and the same tensor.
            if target in self._activated:
                activated[target] = self._activate(target, fields[target])
        return activated[self._last]

    def _post(self, stem_output: Tensor) -> Tensor:
        """Compute x_t = sum act(W_st x_s) + sum over skips x_s, from x_0 = act(stem(x))."""
        fields = {0: self._activation(stem_output)}
        for target, incoming in self._incoming.items():
            fields[target] = _add(
                [
                    self._activation(self.edges[f"{source}_{target}"](fields[source])) if is_weight else fields[source]
                    for source, is_weight in incoming
                ]
            )
        return fields[self._last]

    def _activate(self, vertex: int, field: Tensor) -> Tensor:
        return self._activation(self.norms[str(vertex)](field) if self.norms else field)


def _add(terms: list[Tensor]) -> Tensor:
    """Add left to right; unlike `sum`, do not start from the integer 0, which a trace would record."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


@final
class DagMLP(_Dag):
    """Build the MLP of a DAG code: z_t = sum W_st act(norm_s(z_s)) + sum over skips z_s.

    Maps (batch, ...) with `inputs` numbers a sample to (batch, classes). Order 'pre' (above): z_0 = stem(x),
    the output is readout(act(norm(z_last))). Order 'post': x_0 = act(stem(x)),
    x_t = sum act(W_st x_s) + sum over skips x_s, the output is readout(x_last). Only live edges, those on
    a path from vertex 0 to the last, become layers. One norm a vertex stands before its activation and
    is shared by all weights that leave it; skips carry the field before the norm. `bias` is that of stem,
    edges and readout; norms always have theirs.

    >>> [name for name, _ in DagMLP("2_12", width=4, inputs=8, bias=False).named_parameters()]
    ['stem.weight', 'edges.0_1.weight', 'edges.1_2.weight', 'readout.weight']
    """

    def __init__(
        self,
        code: str,
        *,
        width: int = 256,
        inputs: int = 3072,
        classes: int = 10,
        order: str = "pre",
        norm: str = "none",
        activation: str = "relu",
        bias: bool = True,
    ) -> None:
        require_positive("width", width)
        require_positive("inputs", inputs)
        require_positive("classes", classes)
        super().__init__(
            code,
            stem=nn.Linear(inputs, width, bias=bias),
            make_edge=lambda: nn.Linear(width, width, bias=bias),
            make_norm={"batch": lambda: nn.BatchNorm1d(width), "layer": lambda: nn.LayerNorm(width)},
            readout=nn.Linear(width, classes, bias=bias),
            order=order,
            norm=norm,
            activation=activation,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, ...) to logits of shape (batch, classes)."""
        logits: Tensor = self.readout(self._vertices(self.stem(x.flatten(1))))
        return logits


@final
class DagCNN(_Dag):
    """Build the CNN of a DAG code: `DagMLP` with convolutions, and a mean over space before the readout.

    Maps (batch, channels, H, W) to (batch, classes). Stem and edges are convolutions of stride 1 that keep
    H and W; the readout is activation (order pre), mean over H and W, linear. 'layer' norm is over
    channels and space together, `GroupNorm(1, width)`.

    >>> [name for name, _ in DagCNN("2", width=4, norm="batch", bias=False).named_parameters()][2:]
    ['norms.0.weight', 'norms.0.bias', 'norms.1.weight', 'norms.1.bias', 'readout.weight']
    """

    def __init__(
        self,
        code: str,
        *,
        width: int = 64,
        channels: int = 3,
        classes: int = 10,
        kernel_size: int = 3,
        order: str = "pre",
        norm: str = "none",
        activation: str = "relu",
        bias: bool = True,
    ) -> None:
        require_positive("width", width)
        require_positive("channels", channels)
        require_positive("classes", classes)
        if require_positive("kernel_size", kernel_size) % 2 == 0:
            raise InputError(f"kernel_size is {kernel_size}; give an odd one, an even kernel shifts the image")
        padding = kernel_size // 2
        super().__init__(
            code,
            stem=nn.Conv2d(channels, width, kernel_size, padding=padding, bias=bias),
            make_edge=lambda: nn.Conv2d(width, width, kernel_size, padding=padding, bias=bias),
            make_norm={"batch": lambda: nn.BatchNorm2d(width), "layer": lambda: nn.GroupNorm(1, width)},
            readout=nn.Linear(width, classes, bias=bias),
            order=order,
            norm=norm,
            activation=activation,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, H, W) to logits of shape (batch, classes)."""
        logits: Tensor = self.readout(self._vertices(self.stem(x)).mean(dim=(2, 3)))
        return logits
