"""The kernels against the plain network: on a GPU where there is one, else by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evenstep_research.spaces import NasBench201
from evenstep_research.study.nas.fused import fused_for

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plain network, which kernels are held against, be exact on a GPU too."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


# Every kind of edge alone and beside the others, one to three edges into a vertex, one to three out of it.
CELLS = ["303101", "343332", "444444", "111111", "224043", "313323", "000300", "000400", "012340", "100214"]


def pair(code: str) -> tuple[NasBench201, NasBench201]:
    """Return a network twice, its gains and biases moved off their start."""
    torch.manual_seed(0)
    models = [NasBench201(code, cells=1, stages=2) for _ in range(2)]
    with torch.no_grad():
        for parameter in models[0].parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        model.to(DEVICE, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    return models[0], models[1]


def batch(images: int = 5, side: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(images, 3, side, side, generator=generator).to(DEVICE)
    return inputs.contiguous(memory_format=torch.channels_last), torch.arange(images, device=DEVICE) % 10


@pytest.mark.parametrize("code", CELLS)
def test_loss_gradients_and_running_statistics_are_those_of_the_plain_network(code: str) -> None:
    plain, fast = pair(code)
    inputs, labels = batch()
    forward = fused_for(fast, DEVICE)
    assert forward is not None
    loss = functional.cross_entropy(plain(inputs), labels)
    same = functional.cross_entropy(forward(inputs), labels)
    torch.testing.assert_close(same, loss, rtol=1e-5, atol=1e-6)
    wanted = torch.autograd.grad(loss, list(plain.parameters()))
    found = torch.autograd.grad(same, list(fast.parameters()))
    for (name, _), one, other in zip(plain.named_parameters(), wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5, msg=name)
    for (name, one), other in zip(plain.named_buffers(), fast.buffers(), strict=True):
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="no GPU; the interpreter has no bfloat16")
def test_in_bfloat16_gradients_are_as_near_to_the_exact_ones_as_the_plain_networks() -> None:
    plain, fast = pair("313323")
    inputs, labels = batch(images=16)
    forward = fused_for(fast, DEVICE)
    assert forward is not None
    exact = torch.autograd.grad(functional.cross_entropy(plain(inputs), labels), list(plain.parameters()))
    errors = []
    for network, model in ((plain, plain), (forward, fast)):
        with torch.autocast(DEVICE.type, torch.bfloat16, cache_enabled=False):
            loss = functional.cross_entropy(network(inputs), labels)
        found = torch.autograd.grad(loss, list(model.parameters()))
        off = sum(float((one - other).square().sum()) for one, other in zip(exact, found, strict=True))
        errors.append(off / sum(float(one.square().sum()) for one in exact))
    assert 0 < errors[0] < 0.05
    assert errors[1] < 2 * errors[0]


def test_networks_that_the_kernels_cannot_run_are_left_to_torch() -> None:
    assert fused_for(NasBench201("303101", channels=8, cells=1), DEVICE) is None
    assert fused_for(NasBench201("303101", channels=32, cells=1), DEVICE) is None, "its last stage has 128 channels"
    assert fused_for(torch.nn.Linear(2, 2), DEVICE) is None
