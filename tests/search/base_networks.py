"""Keep small networks with repeated blocks of many kinds, each with the names of what its base leaves out."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import BasicBlock, MixerBlock, densenet, normal, tokens


@dataclass(frozen=True)
class Case:
    """Name a network with its inputs, and the beginnings of the names of parameters that its base lacks."""

    name: str
    make: Callable[[], tuple[nn.Module, Any]]
    left_out: tuple[str, ...]
    requires: str | None = None


def chain(count: int, *make: Callable[[], nn.Module]) -> list[nn.Module]:
    return [one() for _ in range(count) for one in make]


def sequential_mlp() -> tuple[nn.Module, Any]:
    hidden = chain(4, lambda: nn.Linear(16, 16), nn.ReLU)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *hidden, nn.Linear(16, 3)), normal(4, 8)


def square_mlp() -> tuple[nn.Module, Any]:
    """All matrices alike, so that stem and readout look like blocks."""
    return nn.Sequential(*chain(4, lambda: nn.Linear(8, 8), nn.Tanh), nn.Linear(8, 8)), normal(4, 8)


class ListMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.readout = nn.Linear(8, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.act, self.dropout = nn.ReLU(inplace=True), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.dropout(self.act(norm(layer(x))))
        result: Tensor = self.readout(x)
        return result


class AttributeMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.fc4, self.fc5 = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.fc1, self.fc2, self.fc3, self.fc4):
            x = torch.relu(layer(x))
        result: Tensor = self.fc5(x)
        return result


class LooseResidual(nn.Module):
    """Residual branches of two matrices that stand in two lists."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.readout = nn.Linear(8, 16), nn.Linear(16, 3)
        self.first = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.second = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for one, two in zip(self.first, self.second, strict=True):
            x = x + two(torch.relu(one(x)))
        result: Tensor = self.readout(x)
        return result


def batch_norm_cnn() -> tuple[nn.Module, Any]:
    stem = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    body = chain(3, lambda: nn.Conv2d(8, 8, 3, padding=1), lambda: nn.BatchNorm2d(8), lambda: nn.ReLU(inplace=True))
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)), normal(4, 3, 6, 6)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(*(BasicBlock(8, 8, stride=1) for _ in range(2)))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, stride=2), *(BasicBlock(16, 16, stride=1) for _ in range(2)))
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(F.relu(self.bn(self.conv(x)))))
        result: Tensor = self.fc(x.mean((2, 3)))
        return result


class Attention(nn.Module):
    """Queries, keys, values and the way out are matrices of one kind, of which none can be left out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, *, causal: bool) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (2, -1)).transpose(1, 2) for project in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class Layer(nn.Module):
    def __init__(self, width: int, *, pre_norm: bool, causal: bool = False) -> None:
        super().__init__()
        self.pre_norm, self.causal = pre_norm, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        if self.pre_norm:
            x = x + self.attention(self.norm1(x), causal=self.causal)
            x = x + self.mlp(self.norm2(x))
        else:
            x = self.norm1(x + self.attention(x, causal=self.causal))
            x = self.norm2(x + self.mlp(x))
        return x


class ViT(nn.Module):
    def __init__(self, *, pre_norm: bool = True, layers: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.cls, self.positions = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(0.02 * normal(1, 5, 16))
        self.blocks = nn.ModuleList(Layer(16, pre_norm=pre_norm) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x)[:, 0])
        return result


class Shown(nn.Module):
    """Attention that returns its weights, too; whoever calls it may look at them, or read them."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            normed = self.norm(x)
            added, weights = self.attention(normed, normed, normed)
            return x + added, weights

    def __init__(self, *, read: bool) -> None:
        super().__init__()
        self.read = read
        self.stem, self.head = nn.Linear(5, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(Shown.Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x, weights = block(x)
            if self.read:
                x = x * weights.sum(2)[..., None]
        result: Tensor = self.head(x.mean(1))
        return result


class AsksForGradients(ListMLP):
    """A network that wants the gradient of what it makes of its inputs, as wav2vec2 does."""

    def forward(self, x: Tensor) -> Tensor:
        view = x[:, :]
        view.requires_grad = True
        return super().forward(view)


class TiedGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(31, 16), nn.Embedding(8, 16)
        self.blocks = nn.Sequential(*(Layer(16, pre_norm=True, causal=True) for _ in range(3)))
        self.norm, self.readout = nn.LayerNorm(16), nn.Linear(16, 31, bias=False)
        self.readout.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        result: Tensor = self.readout(self.norm(self.blocks(x)))
        return result


class TorchEncoder(nn.Module):
    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=norm_first)
        self.embedding = nn.Linear(5, 16)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.encoder(self.embedding(x)).mean(1))
        return result


class LSTMLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cells = nn.Embedding(31, 8), nn.LSTM(8, 16, 2, batch_first=True)
        self.readout = nn.Linear(16, 31)

    def forward(self, ids: Tensor) -> Tensor:
        output, _ = self.cells(self.embedding(ids))
        result: Tensor = self.readout(output)
        return result


class GRUClassifier(nn.Module):
    """Reads the last layer's final state; with `states` all of them, which no shorter network returns."""

    def __init__(self, *, states: bool = False) -> None:
        super().__init__()
        self.states, self.cells, self.readout = states, nn.GRU(5, 16, 3, bidirectional=True), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Any:
        _, state = self.cells(x.transpose(0, 1))
        logits = self.readout(torch.cat([state[-2], state[-1]], -1))
        return (logits, state) if self.states else logits


class DeepUNet(nn.Module):
    """Several convolutions at each level; the skips run around those of the level below."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 1)
        self.down = nn.ModuleList(BasicBlock(8, 8, stride=1) for _ in range(2))
        self.shrink = nn.Conv2d(8, 16, 2, stride=2)
        self.middle = nn.ModuleList(BasicBlock(16, 16, stride=1) for _ in range(3))
        self.grow, self.merge = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 8, 3, padding=1)
        self.up = nn.ModuleList(BasicBlock(8, 8, stride=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.down:
            x = block(x)
        skip, x = x, self.shrink(x)
        for block in self.middle:
            x = block(x)
        x = self.merge(torch.cat([self.grow(x), skip], 1))
        for block in self.up:
            x = block(x)
        result: Tensor = self.head(x)
        return result


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8), nn.Linear(8, 3)
        self.blocks = nn.Sequential(*(MixerBlock(4, 8) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.norm(self.blocks(self.stem(x).flatten(2).transpose(1, 2))).mean(1))
        return result


class SharedLayer(nn.Module):
    """One layer called three times, then two layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.shared, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.own = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = torch.tanh(self.shared(x))
        for layer in self.own:
            x = layer(x)
        result: Tensor = self.head(x)
        return result


class TwoStreams(nn.Module):
    """Blocks that take and return a pair, one half of it unchanged, with a flag besides."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(16, 16)

        def forward(self, *, context: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, None]:
            return hidden + torch.relu(self.mix(hidden * context)), context, None

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.context, self.head = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(TwoStreams.Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden, context = self.stem(x), torch.sigmoid(self.context(x))
        for block in self.blocks:
            hidden, context, _ = block(context=context, hidden=hidden)
        result: Tensor = self.head(hidden)
        return result


def plain() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)), normal(4, 8)


def vgg() -> tuple[nn.Module, Any]:
    layers: list[nn.Module] = []
    for before, after in ((3, 4), (4, 8), (8, 16)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3)), normal(4, 3, 8, 8)


def of_transformers(name: str, **options: Any) -> nn.Module:
    library: Any = importlib.import_module("transformers")
    config = getattr(library, f"{name.split('For')[0].removesuffix('LMHeadModel')}Config")
    model: nn.Module = getattr(library, name)(config(**options)).train()
    return model


WORDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "vocab_size": 31, "use_cache": False}
ENCODER = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}


def language_inputs(*, labels: bool = True) -> dict[str, Tensor]:
    ids = tokens(2, 6, vocabulary=31)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)} | ({"labels": ids} if labels else {})


def gpt2() -> tuple[nn.Module, Any]:
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 3, "n_head": 2}
    return of_transformers("GPT2LMHeadModel", **sizes, **WORDS), language_inputs()


def llama() -> tuple[nn.Module, Any]:
    return of_transformers("LlamaForCausalLM", **ENCODER, **WORDS), language_inputs()


def bert() -> tuple[nn.Module, Any]:
    options = {"vocab_size": 31, "max_position_embeddings": 16, **ENCODER}
    return of_transformers("BertForMaskedLM", **options), language_inputs()


def hf_vit() -> tuple[nn.Module, Any]:
    model = of_transformers("ViTForImageClassification", num_labels=3, image_size=16, patch_size=8, **ENCODER)
    return model, normal(2, 3, 16, 16)


def convnext() -> tuple[nn.Module, Any]:
    options = {"hidden_sizes": [8, 16], "depths": [2, 3], "num_stages": 2, "drop_path_rate": 0.1, "num_labels": 3}
    return of_transformers("ConvNextForImageClassification", **options), normal(2, 3, 32, 32)


CASES = (
    Case("sequential_mlp", sequential_mlp, ("4.", "6.", "8.")),
    Case("square_mlp", square_mlp, ("4.", "6.")),
    Case("list_mlp", lambda: (ListMLP(), normal(4, 8)), tuple(f"{k}.{i}." for k in ("layers", "norms") for i in "123")),
    Case("attribute_mlp", lambda: (AttributeMLP(), normal(4, 8)), ("fc3.", "fc4.")),
    Case("loose_residual", lambda: (LooseResidual(), normal(4, 8)), ("first.[12].", "second.[12].")),
    Case("batch_norm_cnn", batch_norm_cnn, tuple(f"{i}." for i in (6, 7, 9, 10))),
    Case("resnet", lambda: (ResNet(), normal(4, 3, 8, 8)), ("layer1.1.", "layer2.1.", "layer2.2.")),
    Case("torch_encoder", lambda: (TorchEncoder(norm_first=False), normal(4, 6, 5)), ("encoder.layers.[12].",)),
    Case("torch_pre_norm", lambda: (TorchEncoder(norm_first=True), normal(4, 6, 5)), ("encoder.layers.[12].",)),
    Case("vit", lambda: (ViT(), normal(4, 3, 8, 8)), ("blocks.[12].",)),
    Case("post_norm", lambda: (ViT(pre_norm=False), normal(4, 3, 8, 8)), ("blocks.[12].",)),
    Case("one_layer", lambda: (ViT(layers=1), normal(4, 3, 8, 8)), ()),
    Case("shown", lambda: (Shown(read=False), normal(4, 6, 5)), ("blocks.[12].",)),
    Case("read", lambda: (Shown(read=True), normal(4, 6, 5)), ()),
    Case(
        "asks_for_gradients",
        lambda: (AsksForGradients(), normal(4, 8)),
        tuple(f"{k}.{i}." for k in ("layers", "norms") for i in "123"),
    ),
    Case("tied_gpt", lambda: (TiedGPT(), tokens(4, 8, vocabulary=31)), ("blocks.[12].",)),
    Case("lstm", lambda: (LSTMLanguageModel(), tokens(4, 6, vocabulary=31)), ("cells.*_l1",)),
    Case("gru", lambda: (GRUClassifier(), normal(4, 6, 5)), ("cells.*_l[12]",)),
    Case("gru_states", lambda: (GRUClassifier(states=True), normal(4, 6, 5)), ()),
    Case("unet", lambda: (DeepUNet(), normal(4, 3, 8, 8)), ("down.1.", "middle.[12].", "up.1.")),
    Case("mixer", lambda: (Mixer(), normal(4, 3, 8, 8)), ("blocks.[12].",)),
    Case("shared_layer", lambda: (SharedLayer(), normal(4, 8)), ("own.1.",)),
    Case("two_streams", lambda: (TwoStreams(), normal(4, 8)), ("blocks.[12].",)),
    Case("plain", plain, ()),
    Case("vgg", vgg, ()),
    Case("densenet", lambda: (densenet()[0], normal(4, 3, 8, 8)), ()),
    Case("gpt2", gpt2, ("transformer.h.[12].",), "transformers"),
    Case("llama", llama, ("model.layers.[12].",), "transformers"),
    Case("bert", bert, ("bert.encoder.layer.[12].",), "transformers"),
    Case("hf_vit", hf_vit, ("vit.layers.[12].",), "transformers"),
    Case(
        "convnext",
        convnext,
        ("convnext.encoder.stages.0.layers.1.", "convnext.encoder.stages.1.layers.[12]."),
        "transformers",
    ),
)
