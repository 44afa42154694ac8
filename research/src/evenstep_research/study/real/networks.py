"""The networks: made by the public constructors of torchvision and transformers, and a depth-one base of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from evenstep.errors import InputError

Data = Literal["images", "text"]
SIDE, CLASSES = 64, 10  # CIFAR-10, enlarged
LENGTH, VOCABULARY = 128, 256  # bytes
HEAD = 64  # units of an attention head
PACKAGE_ERRORS = (ImportError, RuntimeError, AttributeError)  # torchvision made for another torch raises any of these


@dataclass(frozen=True)
class RealNetwork:
    """Name a network, the kind it is of, what it is trained on, and how it is made.

    `image` is the shape of an image and `length` that of a text; `needs` names the package that makes it, if any.
    """

    name: str
    kind: str
    data: Data
    make: Callable[[], nn.Module]
    needs: str = ""
    image: tuple[int, int, int] = (3, SIDE, SIDE)
    length: int = LENGTH

    @property
    def classes(self) -> int:
        """How many classes it tells apart."""
        return CLASSES if self.data == "images" else VOCABULARY

    def example(self) -> Tensor:
        """Return inputs to trace it with."""
        if self.data == "images":
            return torch.zeros(2, *self.image)
        return torch.zeros(2, self.length, dtype=torch.long)


class Logits(nn.Module):
    """A language model of transformers that takes tokens and returns logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every position."""
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits


class ImageLogits(nn.Module):
    """A classifier of transformers that takes images and returns logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of every image."""
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


def development_set() -> tuple[RealNetwork, ...]:
    """Return the networks that the rule was settled on."""
    return (
        RealNetwork("resnet18", "resnet", "images", partial(_torchvision, "resnet18"), "torchvision"),
        RealNetwork("resnet34", "resnet", "images", partial(_torchvision, "resnet34"), "torchvision"),
        RealNetwork("vgg11", "vgg", "images", partial(_torchvision, "vgg11"), "torchvision"),
        RealNetwork("vgg13_bn", "vgg_bn", "images", partial(_torchvision, "vgg13_bn"), "torchvision"),
        RealNetwork("vit 6 x 192", "vit", "images", partial(_vit, 6), "torchvision"),
        RealNetwork("vit 12 x 192", "vit", "images", partial(_vit, 12), "torchvision"),
        RealNetwork(
            "convnext 10 blocks", "convnext", "images", partial(_convnext, ((64, 3), (128, 3), (256, 4))), "torchvision"
        ),
        RealNetwork("gpt2 6 x 256", "gpt2", "text", partial(gpt2, 6, 256), "transformers"),
        RealNetwork("gpt2 12 x 192", "gpt2", "text", partial(gpt2, 12, 192), "transformers"),
        RealNetwork("llama 6 x 256", "llama", "text", partial(llama, 6, 256), "transformers"),
        RealNetwork("llama 12 x 192", "llama", "text", partial(llama, 12, 192), "transformers"),
    )


def bases() -> Mapping[str, RealNetwork]:
    """Return the base of every kind: one block, or one of every stage where a kind has stages."""
    made = (
        RealNetwork("resnet base", "resnet", "images", _resnet_base, "torchvision"),
        RealNetwork("vgg base", "vgg", "images", partial(_vgg_base, batch_norm=False), "torchvision"),
        RealNetwork("vgg_bn base", "vgg_bn", "images", partial(_vgg_base, batch_norm=True), "torchvision"),
        RealNetwork("vit base", "vit", "images", partial(_vit, 1), "torchvision"),
        RealNetwork(
            "convnext base", "convnext", "images", partial(_convnext, ((64, 1), (128, 1), (256, 1))), "torchvision"
        ),
        RealNetwork("gpt2 base", "gpt2", "text", partial(gpt2, 1, 256), "transformers"),
        RealNetwork("llama base", "llama", "text", partial(llama, 1, 256), "transformers"),
    )
    return {network.kind: network for network in made}


def package(name: str) -> Any:
    """Import a package that the extra `real` brings."""
    try:
        return import_module(name)
    except PACKAGE_ERRORS as error:
        raise InputError(
            f"the networks people train need '{name}', which cannot be loaded ({error}); pip install "
            "'evenstep-research[real]'"
        ) from None


def _torchvision(constructor: str) -> nn.Module:
    model: nn.Module = getattr(package("torchvision.models"), constructor)(num_classes=CLASSES)
    return model


def _resnet_base() -> nn.Module:
    resnet = package("torchvision.models.resnet")
    model: nn.Module = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)
    return model


def _vgg_base(*, batch_norm: bool) -> nn.Module:
    vgg = package("torchvision.models.vgg")
    stages = [size for width in (64, 128, 256, 512) for size in (width, "M")]
    model: nn.Module = vgg.VGG(vgg.make_layers(stages, batch_norm=batch_norm), num_classes=CLASSES)
    return model


def _vit(depth: int) -> nn.Module:
    sizes = {"num_layers": depth, "num_heads": 192 // HEAD, "hidden_dim": 192, "mlp_dim": 768}
    model: nn.Module = package("torchvision.models").VisionTransformer(
        image_size=SIDE, patch_size=8, num_classes=CLASSES, **sizes
    )
    return model


def _convnext(stages: tuple[tuple[int, int], ...]) -> nn.Module:
    convnext = package("torchvision.models.convnext")
    widths = [width for width, _ in stages]
    following = [*widths[1:], None]
    blocks = [convnext.CNBlockConfig(w, out, n) for (w, n), out in zip(stages, following, strict=True)]
    model: nn.Module = convnext.ConvNeXt(blocks, num_classes=CLASSES)
    return model


def gpt2(depth: int, width: int, *, head: int = HEAD, length: int = LENGTH) -> nn.Module:
    """Return a language model of bytes, as transformers makes it."""
    transformers = package("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=length,
        n_embd=width,
        n_layer=depth,
        n_head=width // head,
        use_cache=False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    )
    return Logits(transformers.GPT2LMHeadModel(config))


def llama(depth: int, width: int, *, head: int = HEAD, length: int = LENGTH) -> nn.Module:
    """Return a language model of bytes, as transformers makes it."""
    transformers = package("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=length,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=depth,
        num_attention_heads=width // head,
        num_key_value_heads=width // head,
        use_cache=False,
        tie_word_embeddings=False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    )
    return Logits(transformers.LlamaForCausalLM(config))
