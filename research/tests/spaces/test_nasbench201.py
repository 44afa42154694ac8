"""Check the NAS-Bench-201 networks: published parameter counts, and a slow functional evaluation."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenstep.errors import EvenstepError, GraphError, InputError
from evenstep_research.spaces import NasBench201

SMALL = "|avg_pool_3x3~0|+|nor_conv_1x1~0|skip_connect~1|+|nor_conv_1x1~0|skip_connect~1|skip_connect~2|"
LARGE = "|nor_conv_3x3~0|+|nor_conv_3x3~0|avg_pool_3x3~1|+|skip_connect~0|nor_conv_3x3~1|skip_connect~2|"
# Vertex 1 is reached but leads nowhere; its 3x3 convolution is dead.
DEAD_END = "|nor_conv_3x3~0|+|nor_conv_1x1~0|none~1|+|none~0|none~1|nor_conv_3x3~2|"
# Nothing reaches vertex 1; both convolutions that leave it are dead.
DEAD_START = "|none~0|+|nor_conv_1x1~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_1x1~1|avg_pool_3x3~2|"
OPS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def rows_of(code: str) -> list[list[str]]:
    return [[op.split("~")[0] for op in row.strip("|").split("|")] for row in code.split("+")]


def slow_block(weights: dict[str, Tensor], name: str, x: Tensor, *, stride: int = 1) -> Tensor:
    kernel = weights[f"{name}.conv.weight"]
    x = F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
    centred = x - x.mean(dim=(0, 2, 3), keepdim=True)
    x = centred / (centred.square().mean(dim=(0, 2, 3), keepdim=True) + 1e-5).sqrt()
    return x * weights[f"{name}.norm.weight"][:, None, None] + weights[f"{name}.norm.bias"][:, None, None]


def slow_pool(x: Tensor) -> Tensor:
    """Average each 3x3 neighbourhood over the pixels that exist."""
    ones = torch.ones(1, 1, 3, 3, dtype=x.dtype)
    total = F.conv2d(x.flatten(0, 1)[:, None], ones, padding=1)
    number = F.conv2d(torch.ones_like(x[:1, :1]), ones, padding=1)
    return (total / number).view_as(x)


def slow_forward(model: nn.Module, x: Tensor, *, code: str, cells: int, stages: int) -> Tensor:
    """Evaluate in training mode, each cell by recursion from its output."""
    weights: dict[str, Tensor] = {name: value.detach() for name, value in model.state_dict().items()}
    rows = rows_of(code)

    def reachable(vertex: int) -> bool:
        return vertex == 0 or any(op != "none" and reachable(s) for s, op in enumerate(rows[vertex - 1]))

    def vertex_of(cell: str, vertex: int, entry: Tensor) -> Tensor:
        if vertex == 0:
            return entry
        total = torch.zeros_like(entry)
        for source, op in enumerate(rows[vertex - 1]):
            if op == "none" or not reachable(source):
                continue
            value = vertex_of(cell, source, entry)
            if op == "avg_pool_3x3":
                value = slow_pool(value)
            elif op != "skip_connect":
                value = slow_block(weights, f"{cell}.edges.{source}_{vertex}", value.clamp(min=0))
            total = total + value
        return total

    x = slow_block(weights, "stem", x)
    index = 0
    for stage in range(stages):
        if stage > 0:
            name = f"cells.{index}"
            inner = slow_block(weights, f"{name}.first", x.clamp(min=0), stride=2)
            inner = slow_block(weights, f"{name}.second", inner.clamp(min=0))
            halves = [x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]
            shortcut = torch.stack(halves).mean(dim=0)
            x = inner + F.conv2d(shortcut, weights[f"{name}.shortcut.conv.weight"])
            index += 1
        for _ in range(cells):
            x = vertex_of(f"cells.{index}", 3, x)
            index += 1
    identity = torch.eye(x.shape[1], dtype=x.dtype)[:, :, None, None]
    last = {
        "last.conv.weight": identity,
        "last.norm.weight": weights["norm.weight"],
        "last.norm.bias": weights["norm.bias"],
    }
    pooled = slow_block(last, "last", x).clamp(min=0).mean(dim=(2, 3))
    return F.linear(pooled, weights["readout.weight"], weights["readout.bias"])


def shake_(model: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) / 2)


# The last two are the smallest and the largest count of the published table.
@pytest.mark.parametrize(
    ("code", "cifar10", "cifar100"),
    [
        (SMALL, 129_306, 135_156),
        (LARGE, 802_426, 808_276),
        ("1_11_111", 73_306, 79_156),
        ("3_33_333", 1_531_546, 1_537_396),
    ],
)
def test_parameter_counts_equal_the_published_ones(code: str, cifar10: int, cifar100: int) -> None:
    assert count(NasBench201(code)) == cifar10
    assert count(NasBench201(code, classes=100)) == cifar100


@pytest.mark.parametrize("code", [SMALL, LARGE, DEAD_END, DEAD_START])
def test_forward_equals_the_slow_evaluation(code: str) -> None:
    generator = torch.Generator().manual_seed(1)
    model = NasBench201(code, channels=4, cells=2, stages=2, classes=3).double()
    shake_(model, generator)
    x = torch.randn(3, 3, 6, 8, generator=generator, dtype=torch.float64)
    expected = slow_forward(model, x, code=code, cells=2, stages=2)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)


def test_digits_and_strings_are_the_same_network() -> None:
    digits = "_".join("".join(str(OPS.index(op)) for op in row) for row in rows_of(LARGE))
    by_name, by_digit = (NasBench201(code, channels=4, cells=1) for code in (LARGE, digits))
    by_digit.load_state_dict(by_name.state_dict())
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(by_name.eval()(x), by_digit.eval()(x))


@pytest.mark.parametrize("mode", [True, False])
def test_output_shape(mode: bool) -> None:
    model = NasBench201(LARGE, channels=4, cells=1, stages=4, classes=7).train(mode)
    assert model(torch.zeros(2, 3, 16, 8)).shape == (2, 7)


def test_names_are_clean() -> None:
    names = {name for name, _ in NasBench201(SMALL, channels=4, cells=1, stages=2).named_parameters()}
    blocks = {"stem", *(f"cells.{cell}.edges.0_{target}" for cell in (0, 2) for target in (2, 3))}
    blocks |= {"cells.1.first", "cells.1.second"}
    expected = {f"{block}.{part}" for block in blocks for part in ("conv.weight", "norm.weight", "norm.bias")}
    expected |= {"cells.1.shortcut.conv.weight", "norm.weight", "norm.bias", "readout.weight", "readout.bias"}
    assert names == expected


@pytest.mark.parametrize(
    ("code", "dead"), [(DEAD_END, ["0_1"]), (DEAD_START, ["1_2", "1_3"]), (LARGE, []), (SMALL, [])]
)
def test_dead_convolutions_are_left_out_or_held_without_effect(code: str, dead: list[str]) -> None:
    lean = NasBench201(code, channels=4, cells=1, stages=1)
    full = NasBench201(code, channels=4, cells=1, stages=1, keep_dead=True)
    extra = {name for name, _ in full.named_parameters()} - {name for name, _ in lean.named_parameters()}
    assert extra == {
        f"cells.0.edges.{edge}.{part}" for edge in dead for part in ("conv.weight", "norm.weight", "norm.bias")
    }
    generator = torch.Generator().manual_seed(3)
    shake_(full, generator)
    lean.load_state_dict(full.state_dict(), strict=False)
    x = torch.randn(2, 3, 8, 8, generator=generator)
    assert torch.equal(lean(x), full(x))


def test_keep_dead_counts_as_the_benchmark_does() -> None:
    # A 3x3 and its norm at 16, 32 and 64 channels, five cells each, dead or not.
    conv = 5 * sum(9 * channels**2 + 2 * channels for channels in (16, 32, 64))
    pointwise = 5 * sum(channels**2 + 2 * channels for channels in (16, 32, 64))
    assert count(NasBench201(DEAD_END, keep_dead=True)) == 73_306 + 2 * conv + pointwise
    assert count(NasBench201(DEAD_END)) == 73_306 + conv + pointwise


@pytest.mark.parametrize("name", ["channels", "cells", "stages", "classes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4"])
def test_bad_options_name_the_thing_the_value_and_the_remedy(name: str, value: object) -> None:
    options = {name: value}
    with pytest.raises(InputError) as caught:
        NasBench201(SMALL, **options)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in (name, repr(value), "at least 1"))


@pytest.mark.parametrize("code", ["", "|conv~0|", "3_24_44", "9_11_111", "|nor_conv_3x3~0|+|skip_connect~0|"])
def test_malformed_codes_raise(code: str) -> None:
    with pytest.raises(EvenstepError):
        NasBench201(code)


@pytest.mark.parametrize("keep_dead", [False, True])
def test_a_cell_without_a_live_path_raises(keep_dead: bool) -> None:
    with pytest.raises(GraphError):
        NasBench201("3_33_000", keep_dead=keep_dead)
