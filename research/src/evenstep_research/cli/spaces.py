"""The spaces of `evenstep plan --code`, each from the options that describe its networks."""

from __future__ import annotations

from typing import Any, TypeVar

from evenstep.cli.added import Space, SpaceOptions
from evenstep.graph import dag_cnn_graph, dag_mlp_graph, nasbench201_graph
from evenstep.planning import BASE_WIDTH

Value = TypeVar("Value")
NASBENCH201_BASE = "0_00_300"  # one 3x3 convolution from the cell's input to its output


def mlp(options: SpaceOptions) -> Space:
    """Return the space of DAG-MLPs."""
    shared = {**_shared(options), "inputs": _or(options.inputs, 3072)}
    width, base_width = _or(options.width, BASE_WIDTH["mlp"]), _or(options.base_width, BASE_WIDTH["mlp"])
    return Space(
        lambda code: dag_mlp_graph(code, width=width, **shared),
        lambda: dag_mlp_graph(_or(options.base_code, "2"), width=base_width, **shared),
    )


def cnn(options: SpaceOptions) -> Space:
    """Return the space of DAG-CNNs."""
    shared = {**_shared(options), "channels": _or(options.inputs, 3), "image_size": options.image_size}
    width, base_width = _or(options.width, BASE_WIDTH["cnn"]), _or(options.base_width, BASE_WIDTH["cnn"])
    side, base_side = options.kernel_size, options.base_kernel_size
    return Space(
        lambda code: dag_cnn_graph(code, width=width, kernel_size=side, **shared),
        lambda: dag_cnn_graph(_or(options.base_code, "2"), width=base_width, kernel_size=base_side, **shared),
    )


def nasbench201(options: SpaceOptions) -> Space:
    """Return the space of NAS-Bench-201's networks."""
    cell: dict[str, Any] = {
        "inputs": _or(options.inputs, 3),
        "classes": options.classes,
        "image_size": options.image_size,
    }
    return Space(
        lambda code: nasbench201_graph(code, channels=_or(options.width, 16), **cell),
        lambda: nasbench201_graph(
            _or(options.base_code, NASBENCH201_BASE), channels=_or(options.base_width, 16), **cell
        ),
    )


def _shared(options: SpaceOptions) -> dict[str, Any]:
    return {
        "order": options.order,
        "norm": options.norm,
        "activation": options.activation,
        "classes": options.classes,
    }


def _or(given: Value | None, default: Value) -> Value:
    return default if given is None else given
