"""Check what surrounds the recording of steps, as far as it can be checked without a GPU."""

import contextlib

import pytest
import torch
from torch import nn

from evenstep.search.cuda import put_back


@pytest.mark.parametrize("fails", [False, True])
def test_a_state_is_put_back_even_where_its_tensors_are_others_afterwards(fails: bool) -> None:
    norm = nn.BatchNorm1d(3)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    ends = pytest.raises(RuntimeError, match="no recording") if fails else contextlib.nullcontext()
    with ends, put_back(lambda: list(norm.state_dict().values())):
        norm(torch.randn(5, 3) + 1).sum()
        norm.running_mean = torch.ones(3)
        norm.weight.data.add_(1)
        assert not torch.equal(norm.state_dict()["weight"], before["weight"])
        if fails:
            raise RuntimeError("no recording")
    assert norm.state_dict().keys() == before.keys()
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name]), name
