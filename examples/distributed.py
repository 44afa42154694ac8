"""DistributedDataParallel: plan and initialise before wrapping; the groups are those of the plain module."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import evenstep as es
from networks import Residual, data


def train(rank: int, world: int, folder: str, steps: int) -> None:
    """Train one replica on its part of every batch, and save its weights."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    inputs, targets = data()
    model = Residual()
    plan = es.plan(model, inputs[:2], base=0.2, optimizer="momentum")
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(plan.param_groups(replica), momentum=0.9, nesterov=True)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(replica(inputs[rank::world]), targets[rank::world])
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def main(world: int = 2, steps: int = 4) -> list[dict[str, torch.Tensor]]:
    """Return the weights of every replica."""
    with TemporaryDirectory() as folder:
        spawn(train, (world, folder, steps), nprocs=world)
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world)]


if __name__ == "__main__":
    print([round(float(weights["readout.weight"].norm()), 6) for weights in main()])
