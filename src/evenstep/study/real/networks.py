"""The networks: made by the public constructors of torchvision and transformers, and a depth-one base of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from evenstep.errors import InputError

Data = Literal["images", "text"]
SIDE, CLASSES = 64, 10  # CIFAR-10, enlarged
LENGTH, VOCABULARY = 128, 256  # bytes
_HEAD = 64  # units of an attention head


@dataclass(frozen=True)
class RealNetwork:
    """Name a network, the kind it is of, what it is trained on, and how it is made."""

    name: str
    kind: str
    data: Data
    make: Callable[[], nn.Module]

    def example(self) -> Tensor:
        """Return inputs to trace it with."""
        if self.data == "images":
            return torch.zeros(2, 3, SIDE, SIDE)
        return torch.zeros(2, LENGTH, dtype=torch.long)


class Logits(nn.Module):
    """A language model of transformers that takes tokens and returns logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every position."""
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits


def development_set() -> tuple[RealNetwork, ...]:
    """Return the networks that the rule was settled on."""
    return (
        RealNetwork("resnet18", "resnet", "images", partial(_torchvision, "resnet18")),
        RealNetwork("resnet34", "resnet", "images", partial(_torchvision, "resnet34")),
        RealNetwork("vgg11", "vgg", "images", partial(_torchvision, "vgg11")),
        RealNetwork("vgg13_bn", "vgg_bn", "images", partial(_torchvision, "vgg13_bn")),
        RealNetwork("vit 6 x 192", "vit", "images", partial(_vit, 6)),
        RealNetwork("vit 12 x 192", "vit", "images", partial(_vit, 12)),
        RealNetwork("convnext 10 blocks", "convnext", "images", partial(_convnext, ((64, 3), (128, 3), (256, 4)))),
        RealNetwork("gpt2 6 x 256", "gpt2", "text", partial(_gpt2, 6, 256)),
        RealNetwork("gpt2 12 x 192", "gpt2", "text", partial(_gpt2, 12, 192)),
        RealNetwork("llama 6 x 256", "llama", "text", partial(_llama, 6, 256)),
        RealNetwork("llama 12 x 192", "llama", "text", partial(_llama, 12, 192)),
    )


def bases() -> Mapping[str, RealNetwork]:
    """Return the base of every kind: one block, or one of every stage where a kind has stages."""
    made = (
        RealNetwork("resnet base", "resnet", "images", _resnet_base),
        RealNetwork("vgg base", "vgg", "images", partial(_vgg_base, batch_norm=False)),
        RealNetwork("vgg_bn base", "vgg_bn", "images", partial(_vgg_base, batch_norm=True)),
        RealNetwork("vit base", "vit", "images", partial(_vit, 1)),
        RealNetwork("convnext base", "convnext", "images", partial(_convnext, ((64, 1), (128, 1), (256, 1)))),
        RealNetwork("gpt2 base", "gpt2", "text", partial(_gpt2, 1, 256)),
        RealNetwork("llama base", "llama", "text", partial(_llama, 1, 256)),
    )
    return {network.kind: network for network in made}


def _package(name: str) -> Any:
    """Import a package that the extra `real` brings."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"the networks people train need '{name}', which cannot be loaded ({error}); pip install 'evenstep[real]'"
        ) from None


def _torchvision(constructor: str) -> nn.Module:
    model: nn.Module = getattr(_package("torchvision.models"), constructor)(num_classes=CLASSES)
    return model


def _resnet_base() -> nn.Module:
    resnet = _package("torchvision.models.resnet")
    model: nn.Module = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)
    return model


def _vgg_base(*, batch_norm: bool) -> nn.Module:
    vgg = _package("torchvision.models.vgg")
    stages = [size for width in (64, 128, 256, 512) for size in (width, "M")]
    model: nn.Module = vgg.VGG(vgg.make_layers(stages, batch_norm=batch_norm), num_classes=CLASSES)
    return model


def _vit(depth: int) -> nn.Module:
    sizes = {"num_layers": depth, "num_heads": 192 // _HEAD, "hidden_dim": 192, "mlp_dim": 768}
    model: nn.Module = _package("torchvision.models").VisionTransformer(
        image_size=SIDE, patch_size=8, num_classes=CLASSES, **sizes
    )
    return model


def _convnext(stages: tuple[tuple[int, int], ...]) -> nn.Module:
    convnext = _package("torchvision.models.convnext")
    widths = [width for width, _ in stages]
    following = [*widths[1:], None]
    blocks = [convnext.CNBlockConfig(w, out, n) for (w, n), out in zip(stages, following, strict=True)]
    model: nn.Module = convnext.ConvNeXt(blocks, num_classes=CLASSES)
    return model


def _gpt2(depth: int, width: int) -> nn.Module:
    transformers = _package("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=width,
        n_layer=depth,
        n_head=width // _HEAD,
        use_cache=False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    )
    return Logits(transformers.GPT2LMHeadModel(config))


def _llama(depth: int, width: int) -> nn.Module:
    transformers = _package("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=depth,
        num_attention_heads=width // _HEAD,
        num_key_value_heads=width // _HEAD,
        use_cache=False,
        tie_word_embeddings=False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    )
    return Logits(transformers.LlamaForCausalLM(config))
