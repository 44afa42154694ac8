"""Check which matrices Muon steps: the parts of fused weights, and positions in the graph, against lists by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenstep as es
from evenstep.graph import Graph
from evenstep.graph.matrices import hidden_matrices
from evenstep.graph.roles import roles

torch.set_num_threads(1)
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class Around(nn.Module):
    """A fused weight between an input layer and a readout; `cut` is what is made of its output."""

    def __init__(self, width: int, cut: Callable[[Tensor], Tensor], *, by_columns: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.fused = nn.Linear(8, width)
        self.columns = nn.Parameter(0.3 * torch.randn(8, width)) if by_columns else None
        self.last = nn.LazyLinear(3)
        self.cut = cut
        self(X)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        fused = self.fused(x) if self.columns is None else x @ self.columns
        logits: Tensor = self.last(self.cut(fused))
        return logits


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def unbound(x: Tensor) -> Tensor:
    q, k, v = x.reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    return attended(q, k, v).transpose(1, 2).reshape(2, 5, 8)


def interleaved(x: Tensor) -> Tensor:  # every head's query, key and value beside each other
    q, k, v = x.view(2, 5, 2, 12).chunk(3, -1)
    return attended(q, k, v).reshape(2, 5, 8)


def grouped(x: Tensor) -> Tensor:
    q, k, v = torch.split(x, [8, 4, 4], -1)
    return attended(q, torch.cat([k, k], -1), torch.cat([v, v], -1))


CUT: dict[str, tuple[int, Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "chunk": (24, lambda x: attended(*x.chunk(3, -1)), (8, 8, 8)),
    "reshaped": (24, unbound, (8, 8, 8)),
    "unequal": (16, grouped, (8, 4, 4)),
    "slices": (16, lambda x: torch.relu(x[..., :8]) * x[..., 8:], (8, 8)),
    "square": (8, lambda x: torch.relu(x[..., :4]) * x[..., 4:], (4, 4)),
    "interleaved": (24, interleaved, ()),
    "positions": (8, lambda x: x[:, :2].mean(1) * x[:, 2:].mean(1), ()),
    "used whole too": (16, lambda x: torch.relu(x[..., :8]) * x[..., 8:] + x.mean(-1, keepdim=True), ()),
    "overlapping": (12, lambda x: torch.relu(x[..., :8]) * x[..., 4:], ()),
    "holes": (16, lambda x: x[..., 0:8:7].sum(-1, keepdim=True) * torch.relu(x[..., 8:]), ()),
    "not all of it": (16, lambda x: torch.relu(x[..., :8]) * x[..., 4:12], ()),
    "whole": (8, torch.relu, ()),
}


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("by_columns", [False, True])
def test_the_parts_of_a_fused_weight_are_known_where_they_stand_side_by_side(name: str, by_columns: bool) -> None:
    width, cut, parts = CUT[name]
    model = Around(width, cut, by_columns=by_columns)
    graph = es.trace(model, X)
    found = {p.name: p.parts for p in graph.parameters}
    weight = "columns" if by_columns else "fused.weight"
    if by_columns and width == 8:
        parts = ()  # rows and columns cannot be told apart
    assert found.pop(weight) == parts
    assert set(found.values()) == {()}
    assert Graph.from_dict(graph.to_dict()) == graph
    live = graph.live()
    matrices = hidden_matrices(live, roles(live))[weight]
    sides = [tuple(reversed(shape)) for shape in matrices.shapes] if by_columns else list(matrices.shapes)
    expected = [(part, 8) for part in parts or (width,)]
    assert sides == (expected if len(set(parts)) > 1 or (by_columns and parts) else expected[:1])
    assert matrices.stacked == (len(parts) if parts and len(set(parts)) == 1 and not by_columns else 1)


def test_torchs_attention_holds_three() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 3))
    live = es.trace(model, X).live()
    assert {name: tuple(m) for name, m in hidden_matrices(live, roles(live)).items()} == {
        "1.self_attn.in_proj_weight": (3, 8, 8, 0, ()),
        "1.self_attn.out_proj.weight": (1, 8, 8, 0, ()),
        "1.linear1.weight": (1, 16, 8, 0, ()),
        "1.linear2.weight": (1, 8, 16, 0, ()),
    }


def test_hidden_kernels_are_flattened_and_what_is_no_hidden_matrix_is_left_to_adamw() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.hidden = nn.Conv2d(8, 8, 3, padding=1)
            self.groups = nn.Conv2d(8, 12, 3, groups=4)
            self.depthwise = nn.Conv2d(12, 12, 3, groups=12)
            self.norm = nn.BatchNorm2d(12)
            self.up = nn.ConvTranspose2d(12, 6, 2)
            self.rnn = nn.GRU(6, 5, batch_first=True)
            self.gate = nn.Parameter(torch.ones(5))
            self.table = nn.Embedding(7, 5)
            self.hand = nn.Linear(5, 1)
            self.last = nn.Linear(5, 4)

        def forward(self, image: Tensor, ids: Tensor) -> Tensor:
            x = torch.relu(self.hidden(torch.relu(self.stem(image))))
            x = self.up(torch.relu(self.norm(self.depthwise(torch.relu(self.groups(x))))))
            x = self.rnn(x.flatten(2).transpose(1, 2))[0].mean(1) * self.gate
            x = x + self.table(ids) + torch.sigmoid(self.hand(torch.relu(x)))
            logits: Tensor = self.last(torch.relu(x))
            return logits

    model = Mixed()
    plan = es.plan(model, (torch.randn(2, 3, 8, 8), torch.tensor([1, 2])), base=0.01, optimizer="muon")
    live = plan.graph.live()
    assert {name: tuple(m) for name, m in hidden_matrices(live, roles(live)).items()} == {
        "hidden.weight": (1, 8, 72, 0, ()),
        "groups.weight": (4, 3, 18, 0, ()),
        "up.weight": (1, 12, 24, 0, ()),
        "rnn.weight_ih_l0": (3, 5, 6, 0, ()),
        "rnn.weight_hh_l0": (3, 5, 5, 0, ()),
    }
    optimizer = plan.optimizer(model)
    names = {id(p): name for name, p in model.named_parameters()}
    stepped = {names[id(p)] for group in optimizer.param_groups if group["muon"] for p in group["params"]}
    assert stepped == set(hidden_matrices(live, roles(live)))
    held = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(names.values())


def test_damaged_parts_are_refused() -> None:
    values = es.trace(Around(*CUT["chunk"][:2]), X).to_dict()
    place = next(p for p in values["parameters"] if "parts" in p)
    for parts, words in (([8, 8, 9], "add up"), ([8, -8, 24], "whole numbers"), (["8"], "whole numbers")):
        place["parts"] = parts
        with pytest.raises(es.GraphError, match=words):
            Graph.from_dict(values)
