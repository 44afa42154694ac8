"""Small networks of the same kinds, to see in a minute on a CPU that the benchmark works."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import nn

from evenstep_research.study.real.networks import CLASSES, RealNetwork, gpt2, llama

LENGTH = 16
_WIDTH, _HEAD, _CHANNELS = 32, 16, 16
_IMAGE = (1, 8, 8)


def small_set() -> tuple[RealNetwork, ...]:
    """Return a CNN on digits and two language models, of two or three blocks each."""
    return (
        RealNetwork("small cnn 3 x 16", "cnn", "images", partial(_cnn, 3), image=_IMAGE),
        _language_model("small gpt2 2 x 32", "gpt2", 2),
        _language_model("small llama 2 x 32", "llama", 2),
    )


def small_bases() -> Mapping[str, RealNetwork]:
    """Return the base of every kind: one block."""
    made = (
        RealNetwork("small cnn base", "cnn", "images", partial(_cnn, 1), image=_IMAGE),
        _language_model("small gpt2 base", "gpt2", 1),
        _language_model("small llama base", "llama", 1),
    )
    return {network.kind: network for network in made}


def _language_model(name: str, kind: str, depth: int) -> RealNetwork:
    make = {"gpt2": gpt2, "llama": llama}[kind]
    made = partial(make, depth, _WIDTH, head=_HEAD, length=LENGTH)
    return RealNetwork(name, kind, "text", made, "transformers", length=LENGTH)


def _cnn(depth: int) -> nn.Module:
    """Return a stem, convolutions of one width with batch norms, and a readout of their average."""
    layers: list[nn.Module] = [nn.Conv2d(1, _CHANNELS, 3, padding=1), nn.ReLU()]
    for _ in range(depth):
        convolution = nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(_CHANNELS), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_CHANNELS, CLASSES))
