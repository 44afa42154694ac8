"""Check the rates of Muon and Lion on steps that are really taken."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import evenstep as es
from evenstep.graph.matrices import hidden_matrices
from evenstep.graph.roles import roles
from evenstep.rules.rule import steps_by_rate

torch.set_num_threads(1)
X = torch.randn(16, 12, generator=torch.Generator().manual_seed(0))


def chain(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for read, written in zip((12, *widths), (*widths, 10), strict=True):
        layers += [nn.Linear(read, written), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Shapes(nn.Module):
    """Hidden matrices of many shapes: kernels, groups, tall and wide ones, a fused one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 24, 3, padding=1)
        self.kernel = nn.Conv2d(24, 24, 3, padding=1)
        self.groups = nn.Conv2d(24, 48, 3, groups=2)
        self.wide, self.tall = nn.Linear(48 * 16, 32), nn.Linear(32, 200)
        self.fused = nn.Linear(200, 160)
        self.last = nn.Linear(80, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.groups(torch.relu(self.kernel(torch.relu(self.stem(x))))))
        a, b = self.fused(torch.relu(self.tall(torch.relu(self.wide(x.flatten(1)))))).chunk(2, -1)
        logits: Tensor = self.last(torch.relu(a) * b)
        return logits


def test_every_matrix_moves_by_the_same_part_of_its_size_and_of_adams() -> None:
    torch.manual_seed(0)
    model, image = Shapes(), torch.randn(2, 2, 6, 6)
    plan = es.plan(model, image, base=1e-3, base_graph=es.trace(model, image), optimizer="muon")
    es.initialize_(model, plan)
    live = plan.graph.live()
    matrices = hidden_matrices(live, roles(live))
    assert set(matrices) == {f"{name}.weight" for name in ("kernel", "groups", "wide", "tall", "fused")}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = plan.optimizer(model)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    parts = {
        name: float((p.detach() - before[name]).square().mean().sqrt()) / plan[name].std
        for name, p in model.named_parameters()
        if name in matrices
    }
    # The iteration leaves singular values of 0.7 to 1.2, 0.9 in the mean square.
    usual = sum(parts.values()) / len(parts)
    assert list(parts.values()) == pytest.approx([usual] * len(parts), rel=0.1)
    rate, std = 1e-3 * plan["tall.weight"].lr_scale, plan["tall.weight"].std
    assert usual == pytest.approx(0.2 * 0.9 * rate / std, rel=0.06)
    adam = es.plan(Shapes(), image, base_graph=plan.graph, optimizer="adam")
    assert [p.lr_scale for p in plan] == pytest.approx([p.lr_scale for p in adam])


def moved(width: int, optimizer: str) -> float:
    """Return how far a hidden matrix's step moves what it makes, over what it made."""
    torch.manual_seed(width)
    model, labels = chain(width, width), torch.randint(10, (16,))
    base = es.trace(chain(32, 32), X)
    plan = es.plan(model, X, base=0.01, base_graph=base, optimizer=optimizer)  # type: ignore[arg-type]
    es.initialize_(model, plan)
    nn.init.normal_(model[4].weight, std=width**-0.5)  # type: ignore[arg-type]  # hands gradients back
    stepped = plan.optimizer(model)
    functional.cross_entropy(model(X), labels).backward()  # type: ignore[no-untyped-call]
    read = model[:2](X).detach()
    before = model[2](read).detach()
    stepped.step()
    return float((model[2](read).detach() - before).norm() / before.norm())


@pytest.mark.parametrize("optimizer", ["muon", "lion", "adam"])
def test_what_a_hidden_matrix_makes_moves_as_far_at_any_width(optimizer: str) -> None:
    narrow, wide = (sum(moved(width + k, optimizer) for k in range(4)) for width in (32, 512))
    assert wide / narrow == pytest.approx(1.0, rel=0.25)  # other powers of width would be off by four


def test_between_widths_hidden_matrices_fall_with_the_root_and_the_rest_as_adams() -> None:
    base = es.trace(chain(32, 32), X)
    plans = {kind: es.plan(chain(512, 512), X, base_graph=base, optimizer=kind) for kind in ("muon", "lion", "adam")}
    for parameter in plans["adam"]:
        expected = 4.0 if parameter.name == "2.weight" else 1.0
        assert plans["muon"][parameter.name].lr_scale / parameter.lr_scale == pytest.approx(expected)
        assert plans["lion"][parameter.name].factors == parameter.factors
    assert plans["muon"].factors == plans["adam"].factors


def test_spectral_gives_steps_of_muon_the_spectral_norm_root_of_out_over_in() -> None:
    base = es.trace(chain(32, 32), X)
    plan = es.plan(chain(64, 512, 128), X, base_graph=base, optimizer="muon", rule="spectral")
    for name, (read, written) in {"2.weight": (64, 512), "4.weight": (512, 128)}.items():
        norm = plan[name].lr_scale * max(read, written) ** 0.5  # of the step, in units of 0.2 times the base's rate
        assert norm == pytest.approx(32**0.5 * (written / read) ** 0.5)
    adam = es.plan(chain(64, 512, 128), X, base_graph=base, optimizer="adam", rule="spectral")
    assert plan["6.weight"].lr_scale == adam["6.weight"].lr_scale


def test_which_steps_go_by_their_rate() -> None:
    assert [steps_by_rate(kind) for kind in ("sgd", "momentum", "adam", "muon", "lion")] == [False] * 2 + [True] * 3
