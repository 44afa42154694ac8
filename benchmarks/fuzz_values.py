"""Random values for the fuzz run: values of no use, damage to plain values and files, small networks and data."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import evenstep as es
from evenstep.graph import Graph, dag_mlp_graph
from evenstep.planning import plan_graph
from evenstep.rules import Weighted

JUNK: tuple[Callable[[], Any], ...] = (
    *(lambda value=value: value for value in (None, True, False, 0, 1, -1, 3, 0.1, -0.5, 1e-320, 1e308)),
    *(lambda value=value: value for value in (math.nan, math.inf, -math.inf, 10**400, 2**70, 1j)),
    *(lambda value=value: value for value in ("", "x", "0.1", "sgd", "keep", "a\0b", "\ud800", "x" * 5000)),
    *(lambda value=value: value for value in (b"x", (), (1, 2), Ellipsis, int, len, Path("x"))),
    list,
    dict,
    set,
    object,
    lambda: [1, "x"],
    lambda: {"a": 1},
    lambda: (n for n in (0.1, 0.2)),
    lambda: lambda *_: None,
    lambda: Fraction(1, 3),
    lambda: np.float32(0.1),
    lambda: np.array([0.1, math.nan]),
    lambda: np.int64(2),
    lambda: torch.zeros(2, 8),
    lambda: torch.tensor(0.1),
    lambda: torch.zeros(2, 8).to_sparse(),
    lambda: torch.zeros(2, 8, device="meta"),
    lambda: nn.Linear(8, 2),
    lambda: torch.Generator(),
    lambda: Weighted(),
    lambda: Weighted,
    lambda: dag_mlp_graph("2", width=4),
    lambda: plan_graph(dag_mlp_graph("2", width=4)),
)


class Unusual(nn.Module):
    """A network that does one of many unusual things."""

    KINDS = ("idle", "detached", "tuple", "none", "raises", "nan", "branch", "integer", "dict", "inplace")

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last, self.idle = kind, nn.Linear(8, 4), nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        """Return nearly anything."""
        if self.kind == "raises":
            raise RuntimeError("a forward\nthat raises")
        if self.kind == "branch" and float(x.sum()) > 0:
            return self.last(self.first(x))
        out = self.last(torch.relu(self.first(x)))
        if self.kind == "inplace":
            out.add_(1)
        kinds: dict[str, Any] = {"tuple": (out, out), "none": None, "dict": {"out": out}, "nan": out * math.nan}
        kinds |= {"integer": out.argmax(1), "detached": out.detach()}
        return kinds.get(self.kind, out)


def junk(draw: random.Random) -> Any:
    """Return a value that hardly any argument wants."""
    return draw.choice(JUNK)()


def network(draw: random.Random) -> Any:
    """Return a network: usual, unusual, or none."""
    chance = draw.random()
    if chance < 0.6:
        return small()
    return Unusual(draw.choice(Unusual.KINDS)) if chance < 0.85 else junk(draw)


def small() -> nn.Module:
    """Return a usual network."""
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))


def data(draw: random.Random) -> Any:
    """Return data: usual, odd or none."""
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(draw.randrange(5)))
    labels = (inputs[:, 0] > 0).long()
    odd: list[Any] = [
        (inputs, labels + 7),
        (inputs, labels.float()),
        (inputs, labels[:, None]),
        (inputs[:1], labels[:1]),
        (inputs.double(), labels),
        (inputs.long(), labels),
        (inputs.to(torch.complex64), labels),
        (inputs.half(), labels),
        (inputs, labels.bool()),
        (inputs[:, :3], labels),
        (inputs.reshape(32, 2, 4), labels),
        (inputs[:0], labels[:0]),
        (inputs * 1e30, labels),
        (inputs, torch.full_like(labels, -100)),
        torch.utils.data.TensorDataset(inputs, labels),
    ]
    chance = draw.random()
    return (inputs, labels) if chance < 0.6 else draw.choice(odd) if chance < 0.9 else junk(draw)


def arguments(draw: random.Random, usual: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return some of the named arguments: mostly usual values, one or two of no use."""
    chosen = {name: draw.choice(values) for name, values in usual.items() if draw.random() < 0.4}
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        chosen[draw.choice(list(usual))] = junk(draw)
    return chosen


def damaged(draw: random.Random, values: Any) -> Any:
    """Return plain values with up to three places changed, dropped or made deep."""
    values = copy.deepcopy(values)
    for _ in range(draw.randrange(1, 4)):
        _damage(draw, values)
    return values


def _damage(draw: random.Random, values: Any) -> None:
    place = values
    for _ in range(draw.randrange(1, 7)):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(place[key], dict | list) and draw.random() < 0.8:
            place = place[key]
            continue
        wrong: tuple[Any, ...] = (
            None,
            True,
            -1,
            0,
            5,
            0.5,
            math.nan,
            math.inf,
            10**400,
            "",
            "word",
            "2",
            [],
            {},
            ["x"],
            {"a": 1},
            1e300,
        )
        if draw.random() < 0.15:
            del place[key]
        elif draw.random() < 0.1:
            place[key] = deep(draw)
        else:
            place[key] = draw.choice(wrong)
        return


def deep(draw: random.Random) -> Any:
    """Return lists or mappings in one another."""
    value: Any = 1
    for _ in range(draw.choice((5, 500))):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def damaged_text(draw: random.Random, text: str) -> str:
    """Return a text that was cut, overwritten, repeated or replaced."""
    place = draw.randrange(len(text) + 1)
    return draw.choice(
        (
            text[:place],
            text[:place] + draw.choice(('"', "{", "}", "NaN", "\0", "\n", "[" * 3000, "9" * 5000)) + text[place:],
            text + text,
            text.replace("1", "Infinity"),
            "",
            "[" * 100_000,
            '{"a":' * 100_000,
            text[place:],
        )
    )


def damaged_bytes(draw: random.Random, content: bytes) -> bytes:
    """Return bytes of which some were overwritten, or the end is gone."""
    changed = bytearray(content)
    if draw.random() < 0.3:
        return bytes(changed[: draw.randrange(len(changed) + 1)])
    for _ in range(draw.randrange(1, 30)):
        place = draw.randrange(len(changed))
        length = draw.choice((1, 1, 4, 100))
        changed[place : place + length] = bytes(
            draw.randrange(256) for _ in range(len(changed[place : place + length]))
        )
    return bytes(changed)


def found(draw: random.Random) -> es.LRSearch:
    """Return a search's result, as if it had been searched."""
    from evenstep.search.result import chosen

    grid = (0.1, 0.2, 0.4)
    losses = tuple(tuple(draw.choice((1.0, 0.5, 2.0, math.inf)) for _ in range(2)) for _ in grid)
    return chosen(grid, losses, graph(draw), (2.0, 2.0))


def graph(draw: random.Random) -> Graph:
    """Return a small graph."""
    return dag_mlp_graph(draw.choice(("2", "2_12", "2_22")), width=4, inputs=8, classes=2)


def plain(value: Any) -> Any:
    """Return what JSON makes of plain values."""
    return json.loads(json.dumps(value))
