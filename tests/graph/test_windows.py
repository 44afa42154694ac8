"""Check what padding takes away against convolutions of torch itself."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.graph.windows import tap_coverage


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
