"""Check what padding takes away against convolutions and pools of torch itself."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.graph.windows import average_share, tap_coverage


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    """Draw (size, kernel, stride, padding, dilation) of one axis that has at least one output position."""
    kernel, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    padding = draw(st.integers(0, 6))
    least = max(1, dilation * (kernel - 1) + 1 - 2 * padding)
    return draw(st.integers(least, least + 8)), kernel, draw(st.integers(1, 3)), padding, dilation


@settings(deadline=None)
@given(st.lists(axes(), min_size=1, max_size=2))
def test_coverage_is_the_mean_of_a_convolution_of_ones(drawn: list[tuple[int, int, int, int, int]]) -> None:
    size, kernel, stride, padding, dilation = (list(column) for column in zip(*drawn, strict=True))
    convolve = F.conv1d if len(drawn) == 1 else F.conv2d
    image = torch.ones(1, 1, *size, dtype=torch.float64)
    taps = torch.ones(1, 1, *kernel, dtype=torch.float64)
    inside = convolve(image, taps, stride=stride, padding=padding, dilation=dilation)
    expected = (inside / taps.numel()).mean().item()
    found = tap_coverage(size, kernel, stride=stride, padding=padding, dilation=dilation)
    assert found == pytest.approx(expected, rel=1e-12)


@settings(deadline=None)
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.booleans(),
    st.booleans(),
)
def test_an_average_keeps_the_sum_of_its_squared_taps(
    size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], padded: bool, count_padding: bool
) -> None:
    padding = (kernel[0] // 2, kernel[1] // 2) if padded else (0, 0)
    size = (max(size[0], kernel[0] - 2 * padding[0]), max(size[1], kernel[1] - 2 * padding[1]))
    pixels = size[0] * size[1]
    # One image for every pixel, which alone is lit: the pool's taps, one by one.
    lit = torch.eye(pixels, dtype=torch.float64).view(pixels, 1, *size)
    taps = F.avg_pool2d(lit, kernel, stride=stride, padding=padding, count_include_pad=count_padding)
    expected = taps.square().sum(dim=0).mean().item()
    found = average_share(size, kernel, stride=stride, padding=padding, count_padding=count_padding)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_share_is_what_a_pool_leaves_of_white_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, 8, 6, 6, generator=generator, dtype=torch.float64)
    pooled = F.avg_pool2d(noise, 3, stride=1, padding=1, count_include_pad=False)
    share = average_share((6, 6), (3, 3), stride=(1, 1), padding=(1, 1), count_padding=False)
    assert pooled.square().mean().item() == pytest.approx(share, rel=0.02)
