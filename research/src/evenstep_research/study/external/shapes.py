"""Shapes of language models: built as modules without memory, read as graphs, and planned relative to each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from evenstep.errors import InputError
from evenstep.graph import Graph
from evenstep.init import Network, initialisation
from evenstep.module.trace import trace
from evenstep.planning import plan_graph
from evenstep.rules import Optimizer, Rule
from evenstep_research.study.real.networks import Logits, package

VOCABULARY = 32768  # of no weight: rates of hidden matrices do not go with it
_TOKENS = 16  # of the text a module is read with; no size follows from it
INIT = "conserve"


@dataclass(frozen=True, order=True)
class Shape:
    """Name the sizes of a Llama."""

    width: int
    layers: int
    ffn_width: int
    heads: int

    def words(self) -> str:
        """Return the shape as text.

        >>> Shape(960, 7, 9368, 15).words()
        '7 x 960, feed-forward 9368'
        """
        return f"{self.layers} x {self.width}, feed-forward {self.ffn_width}"


def llama_on_meta(shape: Shape) -> torch.nn.Module:
    """Return the Llama of a shape as transformers builds it, on the meta device: sizes, and no numbers."""
    transformers = package("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        hidden_size=shape.width,
        intermediate_size=shape.ffn_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        use_cache=False,
        tie_word_embeddings=False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    )
    with torch.device("meta"):
        return Logits(transformers.LlamaForCausalLM(config))


@lru_cache(maxsize=64)
def graph_of(shape: Shape) -> Graph:
    """Return the graph of a shape."""
    if shape.width % (2 * shape.heads):  # positions turn pairs of a head's units
        raise InputError(
            f"the shape '{shape.words()}' has {shape.heads} heads, whose width is not even; correct its rows "
            "of the table"
        )
    return trace(llama_on_meta(shape), torch.zeros(2, _TOKENS, dtype=torch.long, device="meta"))


def hidden_rate(shape: Shape, base: Shape, rule: Rule, optimizer: Optimizer) -> float:
    """Return the geometric mean of the rates that a shape's hidden matrices get from a base of rate one.

    The tables' networks trained at one rate for all: a rule's factor between two shapes is this of the one over this of
    the other, both from the same base.
    """
    plan = plan_graph(graph_of(shape), rule=rule, init=INIT, optimizer=optimizer, base_graph=graph_of(base))
    hidden = _hidden_matrices(shape)
    return math.exp(sum(math.log(plan[name].lr_scale) for name in hidden) / len(hidden))


@lru_cache(maxsize=64)
def _hidden_matrices(shape: Shape) -> tuple[str, ...]:
    """Return the names of the matrices between embedding and readout."""
    network = Network(graph_of(shape), initialisation(INIT))
    return tuple(
        parameter.name
        for parameter in network.live.parameters
        if parameter.role == "weight" and network.roles.position_of(parameter.name) == "hidden"
    )
