"""Operators by their second names, and functions: held against torch's first names, and against real runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenstep as es
from evenstep.graph.operators import Measured

torch.set_num_threads(1)
X = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))


class Between(nn.Module):
    """Apply a function between two layers."""

    def __init__(self, act: Callable[[Tensor], Any], width: int = 256) -> None:
        super().__init__()
        self.act = act
        self.first, self.last = nn.Linear(32, 256), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.act(self.first(x)))


@pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")
@pytest.mark.parametrize(
    ("alias", "original"),
    [
        (lambda x: torch.multiply(x, 3.0), lambda x: torch.mul(x, 3.0)),
        (lambda x: torch.divide(x, 1 + x.abs()), lambda x: torch.div(x, 1 + x.abs())),
        (lambda x: torch.subtract(x, 2.0), lambda x: torch.sub(x, 2.0)),
        (torch.negative, torch.neg),
        (torch.absolute, torch.abs),
        (torch.special.expit, torch.sigmoid),
        (lambda x: torch.special.softmax(x, -1), lambda x: torch.softmax(x, -1)),
        (lambda x: x[:, None].broadcast_to(64, 1, 256)[:, 0], lambda x: x[:, None].expand(64, 1, 256)[:, 0]),
        (lambda x: x / torch.linalg.norm(x, dim=-1, keepdim=True), lambda x: x / x.norm(dim=-1, keepdim=True)),
        (lambda x: torch.concat([x, x], -1)[:, :256], lambda x: torch.cat([x, x], -1)[:, :256]),
        (lambda x: x.multiply_(2.0).negative_(), lambda x: x.mul_(2.0).neg_()),
    ],
)
def test_a_second_name_is_read_as_the_first(alias: Any, original: Any) -> None:
    one, other = es.plan(Between(alias), X), es.plan(Between(original), X)
    assert [(p.name, p.std, p.lr_scale) for p in one.parameters] == [
        (p.name, p.std, p.lr_scale) for p in other.parameters
    ]


def lower(x: Tensor) -> Tensor:
    return torch.eye(256) + 0.01 * torch.tril(x.T @ x / 64, -1)


@pytest.mark.parametrize(
    ("act", "width"),
    [
        (torch.expm1, 256),
        (torch.exp2, 256),
        (torch.erfc, 256),
        (torch.sinh, 256),
        (torch.cosh, 256),
        (torch.sign, 256),
        (nn.functional.tanhshrink, 256),
        (lambda x: torch.log2(1 + x.square()), 256),
        (lambda x: torch.log10(1 + x.square()), 256),
        (lambda x: torch.logsumexp(x.view(64, 16, 16), -1), 16),
        (lambda x: torch.fft.fft(x, norm="ortho").real * 2**0.5, 256),
        (lambda x: torch.fft.ifft(torch.fft.fft(x)).real, 256),
        (lambda x: torch.linalg.solve_triangular(lower(x), x.T, upper=False).T, 256),
    ],
)
@pytest.mark.filterwarnings("ignore:.*starts at a huge second moment:evenstep.PlanWarning")
def test_functions_carry_what_a_run_shows(act: Any, width: int) -> None:
    plan = es.plan(Between(act, width), X)
    assert plan.remarks == ()
    assert not any(isinstance(o, Measured) for edge in plan.graph.edges for o in edge.operators)
    # The last layer's weights are drawn for what is computed before it.
    measured = {vertex.name: vertex.measured for vertex in plan.vertices}
    assert measured["last"] == pytest.approx(1.0, rel=0.5)


def test_products_over_named_axes_are_weights_and_contractions() -> None:
    class Dots(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(256, 8, 4))
            self.first, self.last = nn.Linear(32, 256), nn.Linear(32, 5)

        def forward(self, x: Tensor) -> Any:
            y = torch.tensordot(torch.relu(self.first(x)), self.weight, dims=([1], [0]))
            return self.last(y.flatten(1))

    plan = es.plan(Dots(), X)
    assert plan["weight"].role == "weight"
    assert plan["weight"].std ** 2 * 256 == pytest.approx(2.0, rel=0.1)
    assert plan.remarks == ()


class OwnLoss(nn.Module):
    """An autoencoder that computes its own loss, as models do that are handed to a trainer."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        super().__init__()
        self.down, self.up, self.loss = nn.Linear(8, 32), nn.Linear(32, 8), loss

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.up(F.relu(self.down(x)))
        return {"out": out} | ({} if self.loss is None else {"loss": self.loss(out, x)})


@pytest.mark.parametrize(
    "loss",
    [
        F.mse_loss,
        F.l1_loss,
        F.huber_loss,
        F.smooth_l1_loss,
        lambda out, x: F.mse_loss(out, x, reduction="none").mean(),
        lambda out, x: F.soft_margin_loss(out, x.sign()),
        lambda out, x: F.hinge_embedding_loss(out, x.sign()),
        lambda out, x: F.cosine_embedding_loss(out, x, torch.ones(len(out))),
        lambda out, x: F.margin_ranking_loss(out, x, torch.ones_like(out)),
        lambda out, x: F.multi_margin_loss(out, x.argmax(-1)),
        lambda out, x: F.triplet_margin_loss(out, x, x.flip(0)),
        lambda out, x: F.kl_div(F.log_softmax(out, -1), x.softmax(-1), reduction="batchmean"),
        torch.dist,
    ],
)
def test_a_loss_in_the_forward_changes_no_plan(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(4, 8)
    with_loss, without = (es.plan(OwnLoss(one), inputs, base=0.01, optimizer="adam") for one in (loss, None))
    assert [(p.name, p.std, p.lr_scale) for p in with_loss] == [(p.name, p.std, p.lr_scale) for p in without]
