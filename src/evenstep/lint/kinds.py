"""What a parameter is, as far as optimisers should care: read from the graph, or only from the kinds of modules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

from torch import nn

from evenstep.graph import Graph
from evenstep.graph.model import EMBEDDING
from evenstep.graph.roles import roles
from evenstep.planning.decay import decaying
from evenstep.planning.unwrap import own_name, unwrapped

Kind = Literal["a norm's gain", "a bias", "an embedding", "a readout", "a vector", "a weight"]
_NORM = re.compile(r"Norm(\dd)?$")


class Part(NamedTuple):
    """Say what a parameter is, and whether it should decay."""

    kind: Kind
    decays: bool


def parts_of(graph: Graph) -> Mapping[str, Part]:
    """Return what each parameter of a graph is, leaving out those whose kind is unknown."""
    live = graph.live()
    positions, weights = roles(live), decaying(graph)
    parts = {}
    for parameter in graph.parameters:
        name = parameter.name
        if parameter.role == "gain":
            kind: Kind = "a norm's gain"
        elif parameter.role == "bias":
            kind = "a bias"
        elif parameter.role != "weight":
            continue
        elif positions.position_of(name) == "readout":
            kind = "a readout"
        elif parameter.note == EMBEDDING:
            kind = "an embedding"
        else:
            kind = "a vector" if len(parameter.shape) < 2 else "a weight"
        parts[name] = Part(kind, name in weights)
    return parts


def parts_by_module(model: nn.Module) -> Mapping[str, Part]:
    """Return the parameters of norms, embeddings and biases; modules do not tell which weights are readouts."""
    model = unwrapped(model)
    uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    parts = {}
    for module_name, module in model.named_modules():
        is_norm = _NORM.search(type(module).__name__) is not None
        for name, parameter in module.named_parameters(recurse=False):
            kind: Kind
            if uses[id(parameter)] > 1:  # an embedding that another layer multiplies by is a weight
                continue
            if is_norm and name == "weight":
                kind = "a norm's gain"
            elif isinstance(module, nn.Embedding | nn.EmbeddingBag) and name == "weight":
                kind = "an embedding"
            elif parameter.ndim == 1:
                kind = "a bias" if name.startswith("bias") or name.endswith("bias") else "a vector"
            else:
                continue
            parts[own_name(f"{module_name}.{name}" if module_name else name)] = Part(kind, kind == "a vector")
    return parts
