"""Check the networks that people train and how they are trained, on a CPU and at small size."""

from __future__ import annotations

import importlib.util
import math
import warnings

import pytest
import torch
from torch import nn

import evenstep as es
from evenstep.data.text import standard_library
from evenstep_research.study.real.networks import bases, development_set
from evenstep_research.study.real.training import Batches, schedule, train


def torchvision_loads() -> bool:
    if importlib.util.find_spec("torchvision") is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchvision  # noqa: F401
        except Exception:
            return False
    return True


def test_every_network_has_a_base_of_its_kind() -> None:
    networks = development_set()
    assert len({network.name for network in networks}) == len(networks) == 11
    for network in networks:
        assert bases()[network.kind].data == network.data


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_language_model_is_planned_whole(kind: str) -> None:
    network = bases()[kind]
    model = network.make()
    plan = es.plan(model, network.example(), optimizer="adam")
    assert {p.name for p in plan} == {name for name, p in model.named_parameters() if p.requires_grad}
    tied = kind == "gpt2"
    assert ("model.lm_head.weight" not in plan) == tied


@pytest.mark.skipif(torchvision_loads(), reason="torchvision is here")
def test_a_missing_package_is_named_with_its_remedy() -> None:
    with pytest.raises(es.InputError, match=r"need 'torchvision\.models\.resnet'.*evenstep-research\[real\]"):
        bases()["resnet"].make()


def test_the_rate_warms_up_and_falls_to_zero() -> None:
    factors = [schedule(step, 300) for step in range(300)]
    top = factors.index(max(factors))
    assert max(factors) == 1.0
    assert top == 23  # 8% of the steps
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    assert factors[-1] == pytest.approx(0.0, abs=1e-12)


def test_windows_of_a_text_predict_the_next_byte() -> None:
    text = torch.arange(200, dtype=torch.uint8)
    inputs, targets = Batches("text", text, size=5, length=7).draw(torch.Generator().manual_seed(0))
    assert inputs.shape == targets.shape == (5, 7)
    assert torch.equal(inputs + 1, targets)


def test_training_equals_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(40, 3, generator=generator), torch.randint(0, 4, (40,), generator=generator)
    batches = Batches("images", images, labels, size=8)

    def made() -> nn.Module:
        torch.manual_seed(2)
        return nn.Linear(3, 4)

    model = made()
    loss = train(model, torch.optim.SGD(model.parameters(), lr=0.5), batches, steps=16, seed=3)
    plain, own = made(), torch.Generator().manual_seed(3)
    losses = []
    for step in range(16):
        x, y = batches.draw(own)
        value = nn.functional.cross_entropy(plain(x), y)
        gradients = torch.autograd.grad(value, list(plain.parameters()))
        with torch.no_grad():
            for p, g in zip(plain.parameters(), gradients, strict=True):
                p.sub_(g, alpha=0.5 * schedule(step, 16))
        losses.append(value.item())
    assert loss == pytest.approx(sum(losses[-2:]) / 2, rel=1e-5)  # an eighth of sixteen
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_run_that_diverges_ends_infinite() -> None:
    model = nn.Linear(3, 4)
    batches = Batches("images", torch.full((40, 3), 1e30), torch.zeros(40, dtype=torch.long), size=8)
    assert train(model, torch.optim.SGD(model.parameters(), lr=1e30), batches, steps=60, seed=0) == math.inf


def test_a_small_language_model_learns_bytes() -> None:
    network = bases()["gpt2"]
    torch.manual_seed(0)
    model = network.make()
    batches = Batches("text", standard_library(limit=100_000), size=8, length=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert train(model, optimizer, batches, steps=24, seed=0) < 4.5  # an untrained one has log(256) = 5.5
