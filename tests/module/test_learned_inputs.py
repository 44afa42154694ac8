"""Layers that read learned queries, constants, or matrices chosen by data are planned like any others."""

import math

import pytest
import torch
from torch import Tensor, nn

import evenstep as es

torch.set_num_threads(1)

WIDTH = 64


class Queries(nn.Module):
    """A decoder whose first attention reads learned queries alone, as that of DETR does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, WIDTH)
        self.queries = nn.Parameter(0.02 * torch.randn(10, WIDTH))
        self.decoder = nn.TransformerDecoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries[None].expand(x.shape[0], -1, -1)
        logits: Tensor = self.head(self.decoder(queries, self.embed(x)))
        return logits


def test_the_first_attention_of_a_decoder_is_drawn_for_its_queries() -> None:
    plan = es.plan(Queries(), torch.zeros(2, 20, 16))
    assert not plan.warnings
    assert not [p.name for p in plan.parameters if p.kept]
    assert plan["queries"].std == pytest.approx(1.0)  # an embedding that every example reads
    assert plan["decoder.self_attn.in_proj_weight"].std == pytest.approx(WIDTH**-0.5)
    # Half of what joins the queries by the skip, over the stream's three additions.
    assert plan["decoder.self_attn.out_proj.weight"].std == pytest.approx((2 * 3 * WIDTH) ** -0.5)


class Constant(nn.Module):
    """Positions that a small network turns into what is added."""

    def __init__(self, positions: Tensor) -> None:
        super().__init__()
        self.register_buffer("positions", positions)
        self.first, self.second = nn.Linear(2, 32), nn.Linear(32, WIDTH)
        self.embed, self.head = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        added = self.second(torch.relu(self.first(self.positions)))
        logits: Tensor = self.head(torch.relu(self.embed(x) + added))
        return logits


@pytest.mark.parametrize("size", [0.25, 1.0, 4.0])
def test_layers_that_read_constants_are_drawn_for_their_size(size: float) -> None:
    positions = size * torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    plan = es.plan(Constant(positions), torch.zeros(2, 20, 16))
    assert not plan.warnings
    root_mean_square = float(positions.square().mean().sqrt())
    assert plan["first.weight"].std == pytest.approx(1 / math.sqrt(2) / root_mean_square)


class Experts(nn.Module):
    """A matrix for every row, chosen by the largest score."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.router, self.head = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 5)
        self.matrices = nn.Parameter(torch.randn(4, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.embed(x))
        chosen = self.matrices[self.router(h).argmax(-1)]
        logits: Tensor = self.head(torch.relu(torch.bmm(h[:, None], chosen)[:, 0]))
        return logits


@pytest.mark.filterwarnings("ignore:.*no output depends on it:evenstep.PlanWarning")
def test_experts_that_data_choose_are_weights() -> None:
    plan = es.plan(Experts(), torch.zeros(8, 16))
    assert plan["matrices"].role == "weight"
    assert not plan["matrices"].kept
    assert plan["matrices"].std == pytest.approx((2 / WIDTH) ** 0.5)  # after a ReLU
    assert not plan.remarks


class Table(nn.Module):
    """A table read by plain indexing, or looked up."""

    def __init__(self, *, looked_up: bool) -> None:
        super().__init__()
        self.table, self.looked_up = nn.Embedding(50, WIDTH), looked_up
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table(ids) if self.looked_up else self.table.weight[ids]
        logits: Tensor = self.head(torch.relu(self.body(rows)))
        return logits


def test_a_table_read_by_plain_indexing_is_an_embedding() -> None:
    one, other = (es.plan(Table(looked_up=looked_up), torch.arange(6).view(2, 3)) for looked_up in (True, False))
    for name in ("table.weight", "body.weight", "head.weight"):
        assert (one[name].std, one[name].lr_scale) == (other[name].std, other[name].lr_scale)
