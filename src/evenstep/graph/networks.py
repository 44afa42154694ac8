"""From a code to the graph of a whole network (stem, DAG, readout), named like the networks of evenstep-research."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from evenstep.arguments import require_whole, shown
from evenstep.errors import InputError
from evenstep.graph.codes import Wiring, parse_dag_code, parse_nasbench201_code
from evenstep.graph.model import Edge, Graph, Parameter, Vertex
from evenstep.graph.operators import Activation, Average, Norm, Operator, Weight
from evenstep.graph.windows import tap_coverage

# Far larger than any layer; beyond it fans overflow a float.
_LARGEST_SIZE = 10**12
Order = Literal["pre", "post"]
NormKind = Literal["none", "batch", "layer"]


@dataclass
class _Sheet:
    """Collect vertices, edges and parameters while a graph is built."""

    vertices: dict[str, Vertex] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)

    def edge(self, edge: Edge) -> str:
        """Add an edge and the vertices it joins; return its target."""
        for end in (edge.source, edge.target):
            self.vertices.setdefault(end, Vertex(end))
        self.edges.append(edge)
        return edge.target

    def norm(self, source: str, target: str, name: str, width: int, *, over_batch: bool = True) -> str:
        """Add a normalisation with a gain and a bias."""
        self.parameters.append(Parameter(f"{name}.weight", "gain", (width,)))
        self.parameters.append(Parameter(f"{name}.bias", "bias", (width,)))
        uses = (f"{name}.weight", f"{name}.bias")
        return self.edge(Edge(source, target, (Norm(over_batch),), uses))

    def graph(self) -> Graph:
        return Graph.build(
            self.vertices.values(),
            self.edges,
            inputs=("input",),
            outputs=("output",),
            parameters=self.parameters,
        )


@dataclass(frozen=True)
class _LayerKind:
    """Describe a kind of layer: a matrix (kernel 1, no image) or a convolution that keeps the image's size."""

    kernel: int = 1
    image: int = 0
    bias: bool = True

    def weight(
        self,
        sheet: _Sheet,
        source: str,
        target: str,
        name: str,
        sizes: tuple[int, int],
        *,
        activation: str | None,
        first: bool = True,
    ) -> str:
        """Add a weight edge with its parameters; `sizes` is (input units, output units)."""
        operators = self.operators(sizes, activation, first)
        weight = next(operator for operator in operators if isinstance(operator, Weight))
        side = (self.kernel,) * weight.kernel_axes
        fans = weight.fan_in, weight.fan_out
        names = [f"{name}.weight"]
        sheet.parameters.append(Parameter(names[0], "weight", (sizes[1], sizes[0], *side), *fans))
        if self.bias:
            names.append(f"{name}.bias")
            sheet.parameters.append(Parameter(names[1], "bias", (sizes[1],), *fans))
        return sheet.edge(Edge(source, target, operators, tuple(names)))

    @cache  # noqa: B019
    def operators(self, sizes: tuple[int, int], activation: str | None, first: bool) -> tuple[Operator, ...]:
        """Return the operators of an edge; layers of one kind share them."""
        taps = self.kernel**2 if self.image else 1
        weight = Weight(
            sizes[0] * taps,
            sizes[1] * taps,
            kernel_size=float(self.kernel),
            kernel_axes=2 if self.image else 0,
            gain=self.coverage(),
        )
        if activation is None:
            return (weight,)
        return (Activation(activation), weight) if first else (weight, Activation(activation))

    def coverage(self) -> float:
        """Return the share of taps that fall inside the image, for a convolution that keeps the image's size."""
        if not self.image or self.kernel == 1:
            return 1.0
        half = (self.kernel // 2,) * 2
        return tap_coverage((self.image,) * 2, (self.kernel,) * 2, stride=(1, 1), padding=half, dilation=(1, 1))


def dag_mlp_graph(
    code: str,
    *,
    width: int = 256,
    inputs: int = 3072,
    classes: int = 10,
    order: Order = "pre",
    norm: NormKind = "none",
    activation: str = "relu",
    bias: bool = True,
) -> Graph:
    """Return the graph of `spaces.DagMLP(code, ...)`.

    Order `pre`: `z_t = sum W act(z_s) + sum over skips z_s`, readout on `act(z_last)`; order `post`:
    `x_t = sum act(W x_s) + sum over skips x_s`, `x_0 = act(W x)`, readout on `x_last` (`eq:forward_dag`).

    >>> dag_mlp_graph("2_12").in_degree("2")
    2
    """
    _check(width=width, inputs=inputs, classes=classes)
    return _dag(code, _LayerKind(bias=bias), inputs, width, classes, order, norm, activation)


def dag_cnn_graph(
    code: str,
    *,
    width: int = 64,
    channels: int = 3,
    classes: int = 10,
    kernel_size: int = 3,
    image_size: int = 32,
    order: Order = "pre",
    norm: NormKind = "none",
    activation: str = "relu",
    bias: bool = True,
) -> Graph:
    """Return the graph of `spaces.DagCNN(code, ...)` on square images: convolutions, pooled linear readout."""
    _check(width=width, channels=channels, classes=classes, kernel_size=kernel_size, image_size=image_size)
    if kernel_size % 2 == 0:
        raise InputError(f"kernel_size is {kernel_size}; only odd ones keep the image's size: give 1, 3, 5, 7, ...")
    layer = _LayerKind(kernel=kernel_size, image=image_size, bias=bias)
    return _dag(code, layer, channels, width, classes, order, norm, activation)


def nasbench201_graph(
    code: str, *, channels: int = 16, inputs: int = 3, classes: int = 10, image_size: int = 32
) -> Graph:
    """Return the graph of one NAS-Bench-201 cell between stem and readout: `spaces.NasBench201(cells=1, stages=1)`.

    Convolutions are ReLU-Conv-BatchNorm, so a path's depth is its number of convolutions plus one for the ReLU before
    the readout.
    """
    _check(channels=channels, inputs=inputs, classes=classes, image_size=image_size)
    wiring = parse_nasbench201_code(code).live()
    sheet = _Sheet()
    stem = _LayerKind(kernel=3, image=image_size, bias=False)
    vertex = stem.weight(sheet, "input", "stem.conv", "stem.conv", (inputs, channels), activation=None)
    sheet.norm(vertex, "0", "stem.norm", channels)
    for edge in wiring.edges:
        source, target, name = (
            str(edge.source),
            str(edge.target),
            f"cells.0.edges.{edge.source}_{edge.target}",
        )
        if edge.op == "skip_connect":
            sheet.edge(Edge(source, target))
        elif edge.op == "avg_pool_3x3":
            sheet.edge(Edge(source, target, (Average(9, correlated=True),)))
        else:
            layer = _LayerKind(kernel=int(edge.op[-1]), image=image_size, bias=False)
            middle = f"{edge.source}_{edge.target}.conv"
            layer.weight(sheet, source, middle, f"{name}.conv", (channels, channels), activation="relu")
            sheet.norm(middle, target, f"{name}.norm", channels)
    last = str(wiring.vertex_count - 1)
    vertex = sheet.norm(last, f"{last}.norm", "norm", channels)
    _pooled_readout(sheet, vertex, last, channels, classes, _LayerKind(image=image_size), activation="relu")
    return sheet.graph()


def _dag(
    code: str,
    layer: _LayerKind,
    inputs: int,
    width: int,
    classes: int,
    order: Order,
    norm: NormKind,
    activation: str,
) -> Graph:
    if not isinstance(order, str) or order not in ("pre", "post"):
        raise InputError(f"order is '{order}'; choose 'pre' or 'post'")
    if not isinstance(activation, str):
        raise InputError(f"activation is {shown(activation)}; name one, such as relu")
    if not activation:
        raise InputError("activation is empty; name one, such as relu")
    if not isinstance(norm, str) or norm not in ("none", "batch", "layer"):
        raise InputError(f"norm is '{norm}'; choose 'none', 'batch' or 'layer'")
    if norm != "none" and order == "post":
        raise InputError(f"norm is '{norm}' with order 'post'; norms are defined for order 'pre': use that")
    wiring = parse_dag_code(code).live()
    pre = order == "pre"
    sheet = _Sheet()
    layer.weight(sheet, "input", "0", "stem", (inputs, width), activation=None if pre else activation, first=False)
    last = str(wiring.vertex_count - 1)
    read = dict(_normed(sheet, wiring, width, over_batch=norm == "batch")) if norm != "none" else {}
    for edge in wiring.edges:
        source, target = str(edge.source), str(edge.target)
        if edge.op == "skip":
            sheet.edge(Edge(source, target))
        else:
            layer.weight(
                sheet,
                read.get(source, source),
                target,
                f"edges.{source}_{target}",
                (width, width),
                activation=activation,
                first=pre,
            )
    vertex = read.get(last, last)
    if layer.image:
        _pooled_readout(sheet, vertex, last, width, classes, layer, activation=activation if pre else None)
    else:
        _LayerKind(bias=layer.bias).weight(
            sheet, vertex, "output", "readout", (width, classes), activation=activation if pre else None
        )
    return sheet.graph()


def _normed(sheet: _Sheet, wiring: Wiring, width: int, *, over_batch: bool) -> Iterator[tuple[str, str]]:
    """Add a norm after every vertex that is read through an activation; yield (vertex, normed vertex)."""
    last = wiring.vertex_count - 1
    for number in sorted({e.source for e in wiring.edges if e.op == "weight"} | {last}):
        name = f"norms.{number}"
        yield str(number), sheet.norm(str(number), f"{number}.norm", name, width, over_batch=over_batch)


def _pooled_readout(
    sheet: _Sheet, vertex: str, last: str, width: int, classes: int, layer: _LayerKind, *, activation: str | None
) -> None:
    if activation:
        vertex = sheet.edge(Edge(vertex, f"{last}.{activation}", (Activation(activation),)))
    vertex = sheet.edge(Edge(vertex, "pooled", (Average(layer.image**2),)))
    _LayerKind(bias=layer.bias).weight(sheet, vertex, "output", "readout", (width, classes), activation=None)


def _check(**sizes: int) -> None:
    for name, value in sizes.items():
        require_whole(name, value)
        if value > _LARGEST_SIZE:
            raise InputError(f"{name} has {len(str(value))} digits; give a whole number up to {_LARGEST_SIZE}")
