"""Keep small networks whose residual branches are added outside their modules, each of any number of layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import normal, tokens

WIDTH = 16


@dataclass(frozen=True)
class Residual:
    """Name a network by its number of layers, with its inputs, and the lists that hold a module for each layer."""

    name: str
    make: Callable[[int], nn.Module]
    inputs: Any
    lists: tuple[str, ...]


def each(layers: int, make: Callable[[], nn.Module]) -> nn.ModuleList:
    return nn.ModuleList(make() for _ in range(layers))


def norm() -> nn.Module:
    return nn.LayerNorm(WIDTH)


def square() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))


class Stream(nn.Module):
    """A stem, as many steps as there are layers, and a readout."""

    def __init__(self, layers: int, **lists: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers, self.stem, self.readout = layers, nn.Linear(8, WIDTH), nn.Linear(WIDTH, 3)
        for name, make in lists.items():
            setattr(self, name, each(layers, make))

    def forward(self, x: Tensor) -> Tensor:
        stream = self.stem(x)
        for layer in range(self.layers):
            stream = self.step(stream, layer)
        result: Tensor = self.readout(stream)
        return result

    def step(self, h: Tensor, layer: int) -> Tensor:
        raise NotImplementedError

    def part(self, name: str, layer: int) -> Callable[[Tensor], Tensor]:
        held: Any = getattr(self, name)
        module: Callable[[Tensor], Tensor] = held[layer]
        return module


class Plain(Stream):
    def step(self, h: Tensor, layer: int) -> Tensor:
        return h + self.part("blocks", layer)(h)


class InPlace(Stream):
    def step(self, h: Tensor, layer: int) -> Tensor:
        out: Tensor = self.part("blocks", layer)(h)
        out += h
        return out


class Activated(Stream):
    def step(self, h: Tensor, layer: int) -> Tensor:
        return torch.relu(h + F.dropout(0.5 * self.part("blocks", layer)(h), 0.1, self.training))


class Gated(Stream):
    def step(self, h: Tensor, layer: int) -> Tensor:
        return h + torch.sigmoid(self.part("gates", layer)(h)) * self.part("blocks", layer)(h)


class Scaled(Stream):
    """Branches that start closed, by a parameter that holds a number for each layer."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers, blocks=perceptron)
        self.scales = nn.ParameterList(nn.Parameter(torch.full((WIDTH,), 0.1)) for _ in range(layers))

    def step(self, h: Tensor, layer: int) -> Tensor:
        scale: Tensor = self.scales[layer]
        return h + scale * self.part("blocks", layer)(h)


class PostNorm(Stream):
    """Without its branch a norm would meet the stream twice; both go, and the stream passes as it is."""

    def step(self, h: Tensor, layer: int) -> Tensor:
        h = self.part("norms1", layer)(h + self.part("mixers", layer)(h))
        result: Tensor = self.part("norms2", layer)(h + self.part("blocks", layer)(h))
        return result


class Projections(Stream):
    """Queries, keys, values and the way out in lists of their own, and a gated perceptron."""

    def step(self, h: Tensor, layer: int) -> Tensor:
        n = self.part("norms", layer)(h)
        q, k, v = (self.part(name, layer)(n) for name in ("queries", "keys", "values"))
        h = h + self.part("outs", layer)(F.scaled_dot_product_attention(q, k, v))
        return h + self.part("downs", layer)(F.silu(self.part("gates", layer)(h)) * self.part("ups", layer)(h))


class SharedRouter(Stream):
    """Experts in lists of lists, two a layer, and one router for all layers."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.router, self.experts = square_router(), each(layers, lambda: each(2, perceptron))

    def step(self, h: Tensor, layer: int) -> Tensor:
        shares = self.router(h).softmax(-1)
        experts: Any = self.part("experts", layer)
        added: Tensor = sum(shares[..., [number]] * expert(h) for number, expert in enumerate(experts))
        return h + added


def square_router() -> nn.Module:
    return nn.Linear(WIDTH, 2)


class Messages(Stream):
    """Messages over a dense graph, joined with the stream before they are read."""

    graph: Tensor

    def __init__(self, layers: int) -> None:
        super().__init__(layers, messages=square, updates=lambda: nn.Linear(2 * WIDTH, WIDTH))
        self.register_buffer("graph", torch.softmax(normal(5, 5), -1))

    def step(self, h: Tensor, layer: int) -> Tensor:
        received = self.graph @ self.part("messages", layer)(h)
        return h + torch.relu(self.part("updates", layer)(torch.cat([h, received], -1)))


class Reversible(nn.Module):
    """Two streams, of which each is added to by what the other makes."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.stem, self.readout = nn.Linear(8, 2 * WIDTH), nn.Linear(2 * WIDTH, 3)
        self.first, self.second = each(layers, perceptron), each(layers, perceptron)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.stem(x).chunk(2, -1)
        for first, second in zip(self.first, self.second, strict=True):
            a = a + first(b)
            b = b + second(a)
        result: Tensor = self.readout(torch.cat([a, b], -1))
        return result


class Siamese(nn.Module):
    """One network run twice."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.net = Plain(layers, blocks=perceptron)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        difference: Tensor = self.net(one) - self.net(other)
        return difference.square().sum(-1)


class Hypernetwork(nn.Module):
    """Matrices that are made of a learned code."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.stem, self.readout, self.code = nn.Linear(8, 8), nn.Linear(8, 3), nn.Parameter(normal(4))
        self.makers = each(layers, lambda: nn.Linear(4, 64))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for make in self.makers:
            h = h + torch.tanh(h @ make(self.code).view(8, 8))
        result: Tensor = self.readout(h)
        return result


class LoopGPT(nn.Module):
    """Norms, attention and perceptrons in lists of their own, a last norm of the layers' kind, and tied tables."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens, self.readout = nn.Embedding(31, WIDTH), nn.Linear(WIDTH, 31, bias=False)
        self.readout.weight = self.tokens.weight
        lists = {"ln1": norm, "attn": lambda: nn.MultiheadAttention(WIDTH, 2, batch_first=True), "ln2": norm}
        self.body = nn.ModuleDict({name: each(layers, make) for name, make in lists.items()})
        self.body["mlp"] = each(layers, lambda: nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)))
        self.last = norm()

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids)
        lists: list[Any] = [self.body[name] for name in ("ln1", "attn", "ln2", "mlp")]
        for ln1, attn, ln2, mlp in zip(*lists, strict=True):
            n = ln1(h)
            h = h + attn(n, n, n)[0]
            h = h + mlp(ln2(h))
        result: Tensor = self.readout(self.last(h))
        return result


class LoopResNeXt(nn.Module):
    """Convolutions and batch norms in lists, one activation for all, and a shortcut added in place."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.stem, self.readout, self.act = nn.Conv2d(3, WIDTH, 3), nn.Linear(WIDTH, 3), nn.ReLU(inplace=True)
        self.shrink, self.bn1 = each(layers, lambda: nn.Conv2d(WIDTH, 8, 1)), each(layers, lambda: nn.BatchNorm2d(8))
        self.mix = each(layers, lambda: nn.Conv2d(8, 8, 3, padding=1, groups=4))
        self.grow, self.bn2 = each(layers, lambda: nn.Conv2d(8, WIDTH, 1)), each(layers, lambda: nn.BatchNorm2d(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for shrink, bn1, mix, grow, bn2 in zip(self.shrink, self.bn1, self.mix, self.grow, self.bn2, strict=True):
            out = bn2(grow(self.act(mix(self.act(bn1(shrink(h)))))))
            out += h
            h = self.act(out)
        result: Tensor = self.readout(h.mean((2, 3)))
        return result


_ATTENTION = {"norms": norm, "queries": square, "keys": square, "values": square, "outs": square}
_GATED = {"gates": lambda: nn.Linear(WIDTH, 32), "ups": lambda: nn.Linear(WIDTH, 32)}
_GATED["downs"] = lambda: nn.Linear(32, WIDTH)
_POST = {"mixers": square, "norms1": norm, "blocks": perceptron, "norms2": norm}

RESIDUALS = (
    Residual("plain", lambda n: Plain(n, blocks=perceptron), normal(4, 8), ("blocks",)),
    Residual("in_place", lambda n: InPlace(n, blocks=perceptron), normal(4, 8), ("blocks",)),
    Residual("activated", lambda n: Activated(n, blocks=perceptron), normal(4, 8), ("blocks",)),
    Residual("gated", lambda n: Gated(n, blocks=perceptron, gates=square), normal(4, 8), ("blocks", "gates")),
    Residual("scaled", Scaled, normal(4, 8), ("blocks",)),
    Residual("post_norm", lambda n: PostNorm(n, **_POST), normal(4, 8), tuple(_POST)),
    Residual("projections", lambda n: Projections(n, **_ATTENTION, **_GATED), normal(4, 5, 8), (*_ATTENTION, *_GATED)),
    Residual("shared_router", SharedRouter, normal(4, 8), ("experts",)),
    Residual("messages", Messages, normal(4, 5, 8), ("messages", "updates")),
    Residual("reversible", Reversible, normal(4, 8), ("first", "second")),
    Residual("siamese", Siamese, (normal(4, 8), normal(5, 8)[1:]), ("net.blocks",)),
    Residual("hypernetwork", Hypernetwork, normal(4, 8), ("makers",)),
    Residual(
        "loop_gpt", LoopGPT, tokens(4, 6, vocabulary=31), tuple(f"body.{n}" for n in ("ln1", "attn", "ln2", "mlp"))
    ),
    Residual("loop_resnext", LoopResNeXt, normal(4, 3, 8, 8), ("shrink", "bn1", "mix", "grow", "bn2")),
)
