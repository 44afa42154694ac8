"""The demo's networks: small ones of four common kinds, each at three depths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

SIDE, CLASSES = 8, 10  # side of an image of a digit, and number of classes
PATCH = 2
VOCABULARY, LENGTH = 128, 32  # bytes below 128, and the length of a text
WIDTH = 32  # of a transformer's stream
HEADS = 2
EMBEDDED = 0.02  # standard deviation of token and position embeddings
UNITS = 64  # in a chain's layer
CHANNELS = 16  # in a residual network


class Chain(nn.Module):
    """A plain multi-layer perceptron: no norm, no skips."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        widths = [SIDE * SIDE, *[UNITS] * depth]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.readout = nn.Linear(UNITS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [n, 10] of images [n, 1, 8, 8]."""
        signal = images.flatten(1)
        for layer in self.layers:
            signal = torch.relu(layer(signal))
        logits: Tensor = self.readout(signal)
        return logits


class ResidualBlock(nn.Module):
    """Two convolutions with batch norms, added to their input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.last_norm = nn.BatchNorm2d(CHANNELS)

    def forward(self, fields: Tensor) -> Tensor:
        """Return fields of the same shape."""
        inner = torch.relu(self.norm(self.first(fields)))
        return torch.relu(fields + self.last_norm(self.second(inner)))


class ResNet(nn.Module):
    """A convolutional stem, residual blocks of one width, and a readout of their average."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, CHANNELS, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.blocks = nn.Sequential(*(ResidualBlock() for _ in range(depth)))
        self.readout = nn.Linear(CHANNELS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [n, 10] of images [n, 1, 8, 8]."""
        fields = self.blocks(torch.relu(self.norm(self.stem(images))))
        logits: Tensor = self.readout(fields.mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """Attention and an MLP, each after a norm and added to the stream."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, stream: Tensor) -> Tensor:
        """Return a stream [n, length, width] of the same shape."""
        heads = self.qkv(self.norm(stream)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        stream = stream + self.out(mixed.transpose(1, 2).flatten(2))
        added: Tensor = self.down(functional.gelu(self.up(self.mlp_norm(stream))))
        return stream + added


class ViT(nn.Module):
    """A vision transformer: patches with learnt positions, blocks, and a readout of their average."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.places = nn.Parameter(EMBEDDED * torch.randn((SIDE // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(*(Block(causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(WIDTH)
        self.readout = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [n, 10] of images [n, 1, 8, 8]."""
        stream = self.blocks(self.patches(images).flatten(2).transpose(1, 2) + self.places)
        logits: Tensor = self.readout(self.norm(stream).mean(dim=1))
        return logits


class LanguageModel(nn.Module):
    """A causal transformer over bytes whose readout is its embedding.

    Embeddings start as in GPT-2: torch's default is so large that the loss would start at 14.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(WIDTH)
        self.readout = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.readout.weight = self.embedding.weight
        for embedding in (self.embedding, self.places):
            nn.init.normal_(embedding.weight, std=EMBEDDED)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [n, length, 128] of tokens [n, length]."""
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        logits: Tensor = self.readout(self.norm(self.blocks(self.embedding(tokens) + places)))
        return logits


@dataclass(frozen=True)
class Kind:
    """Name a kind of network and its data, with a function that makes one of a given depth.

    Small networks train fastest `stacked`: many rates as one network.
    """

    name: str
    data: Literal["digits", "text"]
    depths: tuple[int, ...]
    make: Callable[[int], nn.Module]
    stacked: bool

    def maker(self, depth: int) -> Callable[[], nn.Module]:
        """Return a function that makes a network of this depth."""
        return partial(self.make, depth)


KINDS = (
    Kind("plain chain", "digits", (4, 12, 24), Chain, stacked=True),
    Kind("residual CNN", "digits", (2, 6, 12), ResNet, stacked=True),
    Kind("ViT", "digits", (2, 4, 8), ViT, stacked=False),
    Kind("tied transformer", "text", (2, 4, 8), LanguageModel, stacked=False),
)
