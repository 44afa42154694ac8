"""Check Muon and Lion against torch's own Muon, against AdamW, and against loops written out in plain torch."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

import evenstep as es
from evenstep.optim import Lion, Muon, orthogonalized

torch.set_num_threads(1)
X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))


def net(width: int = 10) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3)
        )


def loss_of(model: nn.Module) -> Tensor:
    value: Tensor = (model(X) - Y).square().mean()
    return value


def trained(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 6) -> list[Tensor]:
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def slow_orthogonal(matrix: Tensor, *, steps: int = 5) -> Tensor:
    """Orthogonalise one matrix by the quintic iteration, written out for the singular values alone."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.norm()
    for _ in range(steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    made: Tensor = (u * s) @ v
    return made


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("shape", [(9, 9), (4, 13), (13, 4), (2, 30)])
@pytest.mark.parametrize("nesterov", [True, False])
def test_on_matrices_it_steps_as_torchs_muon(shape: tuple[int, int], nesterov: bool) -> None:
    start = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    options: dict[str, Any] = {"lr": 0.03, "weight_decay": 0.2, "momentum": 0.8, "nesterov": nesterov}
    made = Muon([ours], **options)
    expected = torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **options)
    for step in range(6):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(10 + step))
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        made.step()
        expected.step()  # type: ignore[no-untyped-call]
        assert torch.equal(ours, theirs)
    assert not torch.allclose(ours, start, atol=0.01)


@pytest.mark.parametrize("shape", [(8, 8), (5, 20), (20, 5)])
def test_the_step_is_orthogonal_and_of_adamws_size(shape: tuple[int, int]) -> None:
    update = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    made, factor = orthogonalized(update, (1, *shape, 0, ()))
    assert factor == pytest.approx(0.2 * math.sqrt(max(shape)))
    assert torch.allclose(made.double(), slow_orthogonal(update), atol=0.04)  # bfloat16
    assert torch.linalg.svdvals(made.float()).sub(1).abs().max() < 0.45
    size = float((factor * made.float()).square().mean().sqrt())
    assert size == pytest.approx(0.2, rel=0.2)


LAYOUTS: dict[str, tuple[tuple[int, ...], Any, Callable[[Tensor], list[Tensor]]]] = {
    "kernel": ((6, 4, 3, 3), (1, 6, 36, 0, ()), lambda t: [t.reshape(6, 36)]),
    "groups": ((6, 2, 3, 3), (2, 3, 18, 0, ()), lambda t: [t[:3].reshape(3, 18), t[3:].reshape(3, 18)]),
    "fused": ((12, 5), (3, 4, 5, 0, ()), lambda t: [t[:4], t[4:8], t[8:]]),
    "unequal": ((12, 5), (1, 12, 5, 0, (8, 2, 2)), lambda t: [t[:8], t[8:10], t[10:]]),
    "columns": ((5, 12), (1, 5, 12, 1, (4, 8)), lambda t: [t[:, :4], t[:, 4:]]),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_what_holds_several_matrices_steps_as_they_would_alone(name: str, channels_last: bool) -> None:
    shape, layout, parts_of = LAYOUTS[name]
    if channels_last and len(shape) != 4:
        pytest.skip("no image")
    kind = torch.channels_last if channels_last else torch.contiguous_format
    start = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(memory_format=kind)
    whole = nn.Parameter(start.clone())
    alone = [nn.Parameter(part.clone()) for part in parts_of(start)]
    ours = Muon([{"params": [whole], "layouts": [layout]}], lr=0.1, weight_decay=0.3)
    theirs = Muon(alone, lr=0.1, weight_decay=0.3)
    for step in range(4):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(20 + step))
        whole.grad = gradient.to(memory_format=kind)
        for parameter, part in zip(alone, parts_of(gradient), strict=True):
            parameter.grad = part.clone()
        ours.step()
        theirs.step()
    for parameter, part in zip(alone, parts_of(whole.detach()), strict=True):
        torch.testing.assert_close(parameter.detach(), part, rtol=1e-5, atol=1e-6)


def test_the_rest_steps_as_adamw_does() -> None:
    one, two = net(), net()
    options: dict[str, Any] = {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.1}
    ours = Muon([{"params": list(one.parameters()), "muon": False}], **options)
    assert all(map(torch.equal, trained(one, ours), trained(two, torch.optim.AdamW(two.parameters(), **options))))


def test_lion_is_its_formula() -> None:
    one, two = net(), net()
    ours = Lion(one.parameters(), lr=0.003, betas=(0.8, 0.95), weight_decay=0.4)
    found = trained(one, ours)
    momenta = [torch.zeros_like(p) for p in two.parameters()]
    for _ in range(6):
        gradients = torch.autograd.grad(loss_of(two), list(two.parameters()))
        with torch.no_grad():
            for p, g, m in zip(two.parameters(), gradients, momenta, strict=True):
                p.copy_(p * (1 - 0.003 * 0.4) - 0.003 * torch.sign(0.8 * m + 0.2 * g))
                m.copy_(0.95 * m + 0.05 * g)
    for a, b in zip(found, two.parameters(), strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-6)


# As torch's optimisers: plans, schedulers, closures, copies, saving


def planned(kind: str) -> tuple[nn.Module, es.Plan, Any]:
    model = net()
    plan = es.plan(model, X, base=0.01, optimizer=kind)  # type: ignore[arg-type]
    return model, plan, plan.optimizer(model, weight_decay=0.1)


SCHEDULERS: dict[str, Callable[[Any], LRScheduler]] = {
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, T_max=12),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4) * 0.9**step),
}


@pytest.mark.parametrize("kind", ["muon", "lion"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_work_and_a_saved_run_goes_on_to_the_same_bits(kind: str, name: str) -> None:
    def run(model: nn.Module, optimizer: Any, scheduler: LRScheduler, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()

    model, plan, optimizer = planned(kind)
    first = [group["lr"] for group in optimizer.param_groups]
    scheduler = SCHEDULERS[name](optimizer)
    run(model, optimizer, scheduler, 5)
    ratios = [group["lr"] / rate for group, rate in zip(optimizer.param_groups, first, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * len(first))
    assert ratios[0] < 0.99
    assert es.check_groups(model, plan, optimizer) == pytest.approx(0.01 * ratios[0])
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()], file)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    again, _, other = planned(kind)
    following = SCHEDULERS[name](other)
    for part, state in zip((again, other, following), states, strict=True):
        part.load_state_dict(state)
    run(model, optimizer, scheduler, 5)
    run(again, other, following, 5)
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    fresh, _, empty = planned(kind)
    fresh.load_state_dict(states[0])
    run(fresh, empty, SCHEDULERS[name](empty), 5)  # without the optimiser's state it goes elsewhere
    assert not all(map(torch.equal, model.parameters(), fresh.parameters()))


@pytest.mark.parametrize("kind", ["muon", "lion"])
def test_a_copy_steps_on_its_own(kind: str) -> None:
    model, _, optimizer = planned(kind)
    trained(model, optimizer, steps=2)
    both = copy.deepcopy((model, optimizer))
    assert all(map(torch.equal, trained(model, optimizer, steps=3), trained(*both, steps=3)))


@pytest.mark.parametrize("kind", ["muon", "lion"])
def test_a_closure_computes_the_loss_with_gradients(kind: str) -> None:
    one, _, first = planned(kind)
    two, _, second = planned(kind)

    def closure() -> Tensor:
        first.zero_grad()
        value = loss_of(one)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    expected = loss_of(one).detach()
    assert torch.equal(first.step(closure).detach(), expected)
    assert all(map(torch.equal, one.parameters(), trained(two, second, steps=1)))
    first.zero_grad()
    assert all(p.grad is None for p in one.parameters())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Muon([nn.Parameter(torch.ones(3))]), ("shape (3,)", "muon=False", "plan.optimizer(model)")),
        (lambda: Muon([nn.Parameter(torch.ones(3, 3))], momentum=1.0), ("momentum is 1.0",)),
        (lambda: Muon([nn.Parameter(torch.ones(3, 3))], ns_coefficients=(1.0,)), ("ns_coefficients",)),  # type: ignore[arg-type]
        (lambda: Lion([nn.Parameter(torch.ones(3))], betas=(1.0, 0.9)), ("betas is 1.0",)),
        (lambda: Lion([nn.Parameter(torch.ones(3))], lr=-1.0), ("lr is -1.0",)),
    ],
)
def test_wrong_settings_are_said(make: Callable[[], Any], words: tuple[str, ...]) -> None:
    with pytest.raises(es.InputError) as caught:
        make()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
