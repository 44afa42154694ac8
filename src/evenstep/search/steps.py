"""Take a step with a group of trials: operator by operator, or recorded once and replayed on CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evenstep.search.cuda import Precision, autocast
from evenstep.search.fields import Data
from evenstep.search.recipe import Recipe

if TYPE_CHECKING:
    from evenstep.search.replicas import ReplicaGroup


class EagerStep:
    """Steps taken one operator at a time."""

    shrinks = True

    def __init__(self, group: ReplicaGroup, data: Data, precision: Precision) -> None:
        self.group, self.data, self.precision = group, data, precision

    def step_(self, index: Tensor) -> Tensor:
        """Take one step on the examples at `index`."""
        index = index.to(self.group.factor.device)
        with autocast(self.precision, self.group.factor.device):
            return self.group.step_(self.data[0][index], self.data[1][index])


class CapturedReplicaStep:
    """A CUDA step recorded once and replayed, without launch costs. The group keeps diverged trials and so its size."""

    shrinks = False

    def __init__(self, group: ReplicaGroup, data: Data, recipe: Recipe, precision: Precision) -> None:
        device = group.factor.device
        self.index = torch.zeros(min(recipe.batch_size, len(data[0])), dtype=torch.int64, device=device)
        eager = EagerStep(group, data, precision)
        before = [tensor.clone() for tensor in group.state()]
        try:
            self._record(eager, device)
        finally:  # a group that cannot be recorded continues step by step from its old state
            for tensor, value in zip(group.state(), before, strict=True):
                tensor.copy_(value)

    def _record(self, eager: EagerStep, device: torch.device) -> None:
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries choose their kernels before the recording
                eager.step_(self.index)
        torch.cuda.current_stream().wait_stream(side)
        if eager.group.drew():
            raise RuntimeError("a recording replays one trial's random numbers for all")
        self.graph = torch.cuda.CUDAGraph()
        with eager.group.unseeded(), torch.cuda.graph(self.graph):  # CUDA forbids seeding while it records
            self.losses = eager.step_(self.index)

    @classmethod
    def of(cls, group: ReplicaGroup, data: Data, recipe: Recipe, precision: Precision) -> CapturedReplicaStep | None:
        """Record a group's step; None without CUDA, or if the step cannot be recorded."""
        if group.factor.device.type != "cuda":
            return None
        try:
            return cls(group, data, recipe, precision)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:
            return None

    def step_(self, index: Tensor) -> Tensor:
        """Replay the step on the examples at `index`."""
        self.index.copy_(index, non_blocking=True)
        self.graph.replay()
        return self.losses.clone()
