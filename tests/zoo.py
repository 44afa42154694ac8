"""Keep a zoo of small modules of many shapes, realistic and nasty, for tests of the tracer and the rules."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenstep_research.spaces import DagCNN, DagMLP, NasBench201

Made = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True)
class ZooEntry:
    """Name a module, make it with example inputs, and say what else its call and its making need."""

    name: str
    make: Callable[[], Made]
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    requires: tuple[str, ...] = ()


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def tokens(*shape: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(0))


# --- images -------------------------------------------------------------------------------------------


def plain_mlp() -> Made:
    layers = (nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    return nn.Sequential(nn.Flatten(), *layers), (normal(2, 3, 2, 2),)


def lenet() -> Made:
    features = (
        nn.Conv2d(1, 6, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(72, 12), nn.ReLU(), nn.Linear(12, 4)), (
        normal(2, 1, 20, 20),
    )


class BasicBlock(nn.Module):
    def __init__(self, c: int, d: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c, d, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(d)
        self.conv2 = nn.Conv2d(d, d, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(d)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or c != d:
            self.downsample = nn.Sequential(nn.Conv2d(c, d, 1, stride=stride, bias=False), nn.BatchNorm2d(d))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        # In place, as torchvision writes it.
        out += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out)
        return result


def basic_resnet() -> Made:
    stem = (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    blocks = (BasicBlock(8, 8, stride=1), BasicBlock(8, 16, stride=2), BasicBlock(16, 16, stride=1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    return nn.Sequential(*stem, *blocks, *head), (normal(2, 3, 8, 8),)


class GroupedBottleneck(nn.Module):
    def __init__(self, c: int, inner: int, d: int, *, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(c, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU())
        grouped = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=4, bias=False)
        self.grouped = nn.Sequential(grouped, nn.BatchNorm2d(inner), nn.ReLU())
        self.expand = nn.Sequential(nn.Conv2d(inner, d, 1, bias=False), nn.BatchNorm2d(d))
        self.shortcut = nn.Conv2d(c, d, 1, stride=stride, bias=False) if c != d else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.expand(self.grouped(self.reduce(x))) + self.shortcut(x))


def grouped_bottleneck_resnet() -> Made:
    stem = (nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    blocks = (GroupedBottleneck(8, 8, 16, stride=1), GroupedBottleneck(16, 8, 16, stride=1))
    head = (GroupedBottleneck(16, 8, 32, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
    return nn.Sequential(*stem, nn.MaxPool2d(3, stride=2, padding=1), *blocks, *head), (normal(2, 3, 16, 16),)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up2 = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge2 = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.ReLU())
        self.up1 = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.merge1 = nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        three = self.middle(F.max_pool2d(two, 2))
        two = self.merge2(torch.cat([self.up2(three), two], dim=1))
        one = self.merge1(torch.cat([self.up1(two), one], dim=1))
        logits: Tensor = self.head(one)
        return logits


def unet() -> Made:
    return UNet(), (normal(2, 1, 8, 8),)


class DenseBlock(nn.Module):
    def __init__(self, c: int, *, growth: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(c + growth * i) for i in range(layers))
        self.convs = nn.ModuleList(nn.Conv2d(c + growth * i, growth, 3, padding=1) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(F.relu(norm(torch.cat(features, dim=1)))))
        return torch.cat(features, dim=1)


def densenet() -> Made:
    transition = (nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 10, 1), nn.AvgPool2d(2))
    head = (nn.BatchNorm2d(18), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(18, 4))
    blocks = (DenseBlock(8, growth=4, layers=3), *transition, DenseBlock(10, growth=4, layers=2))
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, *head), (normal(2, 3, 8, 8),)


class InceptionBlock(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(c, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(c, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1))
        factored = (nn.Conv2d(4, 4, (1, 5), padding=(0, 2)), nn.Conv2d(4, 4, (5, 1), padding=(2, 0)))
        self.five = nn.Sequential(nn.Conv2d(c, 4, 1), nn.ReLU(), *factored)
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(c, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1))


def inception() -> Made:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 4))
    return nn.Sequential(InceptionBlock(3), InceptionBlock(16), *head), (normal(2, 3, 8, 8),)


class SqueezeExcite(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1)
        self.squeeze = nn.Linear(c, c // 4)
        self.excite = nn.Linear(c // 4, c)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean(dim=(2, 3))))))
        return F.relu(x + y * gate[:, :, None, None])


def squeeze_excite() -> Made:
    stem = nn.Conv2d(3, 8, 3, padding=1)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return nn.Sequential(stem, SqueezeExcite(8), SqueezeExcite(8), *head), (normal(2, 3, 8, 8),)


class InvertedResidual(nn.Module):
    def __init__(self, c: int, d: int, *, stride: int) -> None:
        super().__init__()
        inner = 3 * c
        self.expand = nn.Sequential(nn.Conv2d(c, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.Hardswish())
        depthwise = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner, bias=False)
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(inner), nn.Hardswish())
        self.project = nn.Sequential(nn.Conv2d(inner, d, 1, bias=False), nn.BatchNorm2d(d))
        self.residual = stride == 1 and c == d

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


def mobilenet() -> Made:
    stem = (nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
    blocks = (InvertedResidual(8, 8, stride=1), InvertedResidual(8, 12, stride=2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 16), nn.Hardswish(), nn.Linear(16, 4))
    return nn.Sequential(*stem, *blocks, *head), (normal(2, 3, 16, 16),)


class ConvNextBlock(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = nn.LayerNorm(c)
        self.expand = nn.Linear(c, 4 * c)
        self.project = nn.Linear(4 * c, c)
        self.layer_scale = nn.Parameter(torch.full((c,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = torch.mul(self.layer_scale, self.project(F.gelu(self.expand(y))))
        return x + y.permute(0, 3, 1, 2)


def convnext_blocks() -> Made:
    stem = nn.Conv2d(3, 8, 4, stride=4)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 4))
    return nn.Sequential(stem, ConvNextBlock(8), ConvNextBlock(8), *head), (normal(2, 3, 16, 16),)


def conv1d() -> Made:
    layers = (nn.Conv1d(2, 8, 5, padding=2, dilation=1), nn.ReLU(), nn.Conv1d(8, 8, 3, padding=2, dilation=2))
    head = (nn.LeakyReLU(0.1), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(8, 4))
    return nn.Sequential(*layers, *head), (normal(2, 2, 16),)


def conv3d() -> Made:
    layers = (nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ELU(), nn.MaxPool3d(2), nn.Conv3d(4, 8, 3))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 4)), (normal(2, 1, 8, 8, 8),)


def instance_norm() -> Made:
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.ReLU())
    upsample = (nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(8, 8, 3))
    return nn.Sequential(*first, *upsample, nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1), nn.Tanh()), (
        normal(2, 3, 8, 8),
    )


def group_norm() -> Made:
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU())
    second = (nn.Conv2d(8, 8, 3, padding="same"), nn.GroupNorm(1, 8), nn.PReLU())
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), (normal(2, 3, 8, 8),)


# --- sequences ----------------------------------------------------------------------------------------


class EncoderClassifier(nn.Module):
    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.position = nn.Parameter(torch.zeros(1, 6, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, norm_first=norm_first, batch_first=True)
        # Nested tensors are for padding masks, which the zoo does not pass.
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.embedding(x) + self.position)[:, 0])
        return logits


def transformer_pre_norm() -> Made:
    return EncoderClassifier(norm_first=True), (tokens(2, 6, vocabulary=11),)


def transformer_post_norm() -> Made:
    return EncoderClassifier(norm_first=False), (tokens(2, 6, vocabulary=11),)


class Attention(nn.Module):
    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.project(mixed.transpose(1, 2).flatten(2))
        return x + out


def attention() -> Made:
    return nn.Sequential(Attention(16, heads=4), Attention(16, heads=2), nn.Linear(16, 4)), (normal(2, 6, 16),)


class Recurrent(nn.Module):
    def __init__(self, cell: nn.LSTM | nn.GRU, *, width: int) -> None:
        super().__init__()
        self.cell = cell
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(x)[0][:, -1])
        return logits


def lstm() -> Made:
    return Recurrent(nn.LSTM(5, 8, batch_first=True), width=8), (normal(2, 6, 5),)


def gru() -> Made:
    return Recurrent(nn.GRU(5, 8, batch_first=True), width=8), (normal(2, 6, 5),)


def bidirectional_lstm() -> Made:
    cell = nn.LSTM(5, 8, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True)
    return Recurrent(cell, width=16), (normal(2, 6, 5),)


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.hidden = nn.Linear(8, 8)
        self.output = nn.Linear(8, 11, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.output(F.relu(self.hidden(self.embedding(x))))
        return logits


def tied_language_model() -> Made:
    return TiedLanguageModel(), (tokens(2, 6, vocabulary=11),)


class GatedMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(16, 8)
        self.glu = nn.Linear(8, 16)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.up(x).chunk(2, dim=-1)
        x = x + self.down(value * F.silu(gate))
        logits: Tensor = self.head(x + F.glu(self.glu(x), dim=-1))
        return logits


def gated_mlp() -> Made:
    return GatedMLP(), (normal(2, 8),)


class HandRMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain


def rms_norm() -> Made:
    """Use the norm of torch and one written by hand, as language models have it."""
    first = (nn.Linear(8, 16), nn.RMSNorm(16), nn.ReLU())
    return nn.Sequential(*first, nn.Linear(16, 16), HandRMSNorm(16), nn.ReLU(), nn.Linear(16, 4)), (normal(2, 8),)


class MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 8), nn.GELU(), nn.Linear(8, patches))
        self.channels = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = x + self.channels(self.norm2(x))
        return mixed


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.blocks = nn.Sequential(MixerBlock(4, 8), MixerBlock(4, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.blocks(patches).mean(dim=1))
        return logits


def mixer() -> Made:
    return Mixer(), (normal(2, 3, 8, 8),)


# --- nasty on purpose ---------------------------------------------------------------------------------


class UnusedParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(8, 4)
        self.forgotten = nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        # Runs, but does not reach the output.
        _ = self.forgotten(x)
        logits: Tensor = self.used(x)
        return logits


def unused_parameter() -> Made:
    return UnusedParameter(), (normal(2, 8),)


class FrozenParts(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((8,), 0.5))
        self.register_buffer("projection", normal(8, 8), persistent=False)
        self.features = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).requires_grad_(False)
        self.partly = nn.Linear(8, 8)
        self.partly.weight.requires_grad_(False)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features((x - self.mean) @ self.get_buffer("projection"))
        logits: Tensor = self.head(F.relu(self.partly(x)))
        return logits


def frozen_parts() -> Made:
    return FrozenParts(), (normal(2, 8),)


class RecurrentDepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.shared = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = x + self.shared(F.relu(x))
        logits: Tensor = self.head(x)
        return logits


def recurrent_depth() -> Made:
    return RecurrentDepth(), (normal(2, 8),)


class BilinearNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 6), nn.Linear(8, 5)
        self.bilinear = nn.Bilinear(6, 5, 7)
        self.head = nn.Linear(7, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = self.head(F.relu(self.bilinear(self.left(x), self.right(y))))
        return logits


def bilinear() -> Made:
    return BilinearNet(), (normal(2, 8), normal(2, 8))


class DictOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.classes = nn.Linear(16, 4)
        self.boxes = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x)
        return {"classes": self.classes(features), "boxes": self.boxes(features)}


def dict_output() -> Made:
    return DictOutput(), (normal(2, 8),)


class KeywordInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.condition = nn.Linear(8, 16), nn.Linear(3, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, *, condition: Tensor, scale: float = 1.0) -> Tensor:
        logits: Tensor = self.head(F.relu(self.first(x) + scale * self.condition(condition)))
        return logits


def keyword_input() -> Made:
    return KeywordInput(), (normal(2, 8),)


# --- our own spaces -----------------------------------------------------------------------------------


def dag_mlp() -> Made:
    return DagMLP("2_12_112", width=8, inputs=12, classes=4, norm="layer"), (normal(2, 3, 2, 2),)


def dag_cnn() -> Made:
    return DagCNN("2_22_102", width=8, classes=4, order="post"), (normal(2, 3, 8, 8),)


def nasbench201() -> Made:
    code = "|nor_conv_3x3~0|+|nor_conv_1x1~0|avg_pool_3x3~1|+|skip_connect~0|nor_conv_3x3~1|skip_connect~2|"
    return NasBench201(code, channels=4, cells=1, stages=3, classes=4), (normal(2, 3, 8, 8),)


# --- transformers, with random weights ----------------------------------------------------------------


def hugging_face(kind: str, task: str, **options: Any) -> nn.Module:
    """Build a classifier of `transformers`, which is imported here so that the zoo opens without it."""
    library: Any = importlib.import_module("transformers")
    model: nn.Module = getattr(library, f"{kind}For{task}Classification")(
        getattr(library, f"{kind}Config")(num_labels=4, **options)
    )
    return model


def hf_resnet() -> Made:
    model = hugging_face("ResNet", "Image", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2])
    return model, (normal(2, 3, 32, 32),)


def hf_convnext() -> Made:
    options = {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "drop_path_rate": 0.1}
    return hugging_face("ConvNext", "Image", **options), (normal(2, 3, 32, 32),)


def hf_mobilenet_v2() -> Made:
    model = hugging_face("MobileNetV2", "Image", depth_multiplier=0.25, image_size=32)
    return model, (normal(2, 3, 32, 32),)


TINY_ENCODER = MappingProxyType(
    {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
)


def hf_vit() -> Made:
    model = hugging_face("ViT", "Image", image_size=16, patch_size=8, **TINY_ENCODER)
    return model, (normal(2, 3, 16, 16),)


def hf_gpt2() -> Made:
    sizes = {"vocab_size": 31, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    special = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    model = hugging_face("GPT2", "Sequence", use_cache=False, **sizes, **special)
    return model, (tokens(2, 6, vocabulary=31),)


def hf_bert() -> Made:
    options = {"vocab_size": 31, "max_position_embeddings": 16, "use_cache": False}
    return hugging_face("Bert", "Sequence", **options, **TINY_ENCODER), (tokens(2, 6, vocabulary=31),)


ZOO: tuple[ZooEntry, ...] = (
    *(
        ZooEntry(make.__name__, make)
        for make in (
            plain_mlp,
            lenet,
            basic_resnet,
            grouped_bottleneck_resnet,
            unet,
            densenet,
            inception,
            squeeze_excite,
            mobilenet,
            convnext_blocks,
            conv1d,
            conv3d,
            instance_norm,
            group_norm,
            transformer_pre_norm,
            transformer_post_norm,
            attention,
            lstm,
            gru,
            bidirectional_lstm,
            tied_language_model,
            gated_mlp,
            rms_norm,
            mixer,
            unused_parameter,
            frozen_parts,
            recurrent_depth,
            bilinear,
            dict_output,
            dag_mlp,
            dag_cnn,
            nasbench201,
        )
    ),
    ZooEntry("keyword_input", keyword_input, kwargs=MappingProxyType({"condition": normal(2, 3), "scale": 0.5})),
    *(
        ZooEntry(make.__name__, make, requires=("transformers",))
        for make in (hf_resnet, hf_convnext, hf_mobilenet_v2, hf_vit, hf_gpt2, hf_bert)
    ),
)
