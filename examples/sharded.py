"""FSDP2: plan the plain module, shard it, then initialise and build the optimiser over the shards."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

import evenstep as es
from networks import Residual, data


def train(rank: int, world: int, folder: str, steps: int) -> None:
    """Train one shard on its part of every batch, and save the whole weights."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    inputs, targets = data()
    model = Residual()
    # Before sharding: a sharded module cannot be read.
    plan = es.plan(model, inputs[:2], base=0.2, optimizer="momentum")
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))  # the same weights as unsharded
    optimizer = torch.optim.SGD(plan.param_groups(model), momentum=0.9, nesterov=True)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs[rank::world]), targets[rank::world])
        loss.backward()
        optimizer.step()
    whole = {name: p.full_tensor() for name, p in model.state_dict().items() if isinstance(p, DTensor)}
    if rank == 0:
        torch.save(whole, Path(folder) / "whole.pt")
    dist.destroy_process_group()


def main(world: int = 2, steps: int = 4) -> dict[str, torch.Tensor]:
    """Return the weights after training."""
    with TemporaryDirectory() as folder:
        spawn(train, (world, folder, steps), nprocs=world)
        weights: dict[str, torch.Tensor] = torch.load(Path(folder) / "whole.pt")
        return weights


if __name__ == "__main__":
    print({name: tuple(weight.shape) for name, weight in main().items()})
