"""Take a step with a group of trials: operator by operator, or recorded once and replayed on CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evenstep.search.cuda import Precision, autocast, put_back, recorded, warm_up
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
        with put_back(group.state):  # a group that cannot be recorded continues step by step from its old state
            warm_up(lambda: eager.step_(self.index), device)
            if group.drew():
                raise RuntimeError("a recording replays one trial's random numbers for all")
            with group.unseeded():  # CUDA forbids seeding while it records
                self.replay_, self.losses = recorded(lambda: eager.step_(self.index))

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
        self.replay_()
        return self.losses.clone()
