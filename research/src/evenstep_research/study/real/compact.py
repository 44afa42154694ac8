"""Networks of the same kinds, made by transformers, small enough for the two cores of a laptop."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from evenstep_research.study.real.networks import CLASSES, ImageLogits, RealNetwork, gpt2, llama, package

SIDE, LENGTH = 32, 48
_WIDTH, _HEAD, _PATCH = 64, 16, 8


def compact_set() -> tuple[RealNetwork, ...]:
    """Return a network of every kind, six to ten blocks deep."""
    return (
        _of_images("compact vit 6 x 64", "vit", partial(vit, 6)),
        _of_images("compact resnet 3-3-3", "resnet", partial(_resnet, 3)),
        _of_images("compact convnext 3-4-3", "convnext", partial(_convnext, (3, 4, 3))),
        _of_text("compact gpt2 6 x 64", "gpt2", partial(gpt2, 6)),
        _of_text("compact llama 6 x 64", "llama", partial(llama, 6)),
    )


def million_set() -> tuple[RealNetwork, ...]:
    """Return the same networks at twice the width: a million parameters or more each."""
    return (
        _of_text("gpt2 6 x 128", "gpt2", partial(gpt2, 6), width=2 * _WIDTH),
        _of_text("llama 6 x 128", "llama", partial(llama, 6), width=2 * _WIDTH),
        _of_images("vit 6 x 128", "vit", partial(vit, 6, width=2 * _WIDTH)),
        _of_images("resnet 3-3-3, wide", "resnet", partial(_resnet, 3, widths=(32, 64, 128))),
        _of_images("convnext 3-4-3, wide", "convnext", partial(_convnext, (3, 4, 3), widths=(48, 96, 192))),
    )


def compact_bases() -> Mapping[str, RealNetwork]:
    """Return the base of every kind: one block, or one of every stage where a kind has stages."""
    made = (
        _of_images("compact vit base", "vit", partial(vit, 1)),
        _of_images("compact resnet base", "resnet", partial(_resnet, 1)),
        _of_images("compact convnext base", "convnext", partial(_convnext, (1, 1, 1))),
        _of_text("compact gpt2 base", "gpt2", partial(gpt2, 1)),
        _of_text("compact llama base", "llama", partial(llama, 1)),
    )
    return {network.kind: network for network in made}


def _of_images(name: str, kind: str, make: Any) -> RealNetwork:
    return RealNetwork(name, kind, "images", make, "transformers", image=(3, SIDE, SIDE))


def _of_text(name: str, kind: str, make: Any, *, width: int = _WIDTH) -> RealNetwork:
    made = partial(make, width, head=_HEAD, length=LENGTH)
    return RealNetwork(name, kind, "text", made, "transformers", length=LENGTH)


def vit(depth: int, width: int = _WIDTH) -> nn.Module:
    """Return a classifier of small images, as transformers makes it."""
    transformers = package("transformers")
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // _HEAD,
        intermediate_size=4 * width,
        image_size=SIDE,
        patch_size=_PATCH,
        num_labels=CLASSES,
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    )
    return ImageLogits(transformers.ViTForImageClassification(config))


def _resnet(depth: int, *, widths: tuple[int, ...] = (16, 32, 64)) -> nn.Module:
    transformers = package("transformers")
    config = transformers.ResNetConfig(
        embedding_size=widths[0],
        hidden_sizes=list(widths),
        depths=[depth] * len(widths),
        layer_type="basic",
        num_labels=CLASSES,
    )
    return ImageLogits(transformers.ResNetForImageClassification(config))


def _convnext(depths: tuple[int, ...], *, widths: tuple[int, ...] = (24, 48, 96)) -> nn.Module:
    transformers = package("transformers")
    config = transformers.ConvNextConfig(
        hidden_sizes=list(widths), depths=list(depths), num_stages=len(depths), num_labels=CLASSES
    )
    return ImageLogits(transformers.ConvNextForImageClassification(config))
