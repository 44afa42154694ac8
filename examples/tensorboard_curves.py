"""TensorBoard: the search's loss over the learning rate, the plan's factors, and the run's hparams."""

from __future__ import annotations

import math
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

import evenstep as es
from networks import Residual, data, small_net


def write_search(writer: SummaryWriter, search: es.LRSearch) -> None:
    """Write one point a rate: the step is the rate's place on the grid, the rate itself stands beside the loss."""
    for step, (rate, loss) in enumerate(zip(search.grid, search.mean_losses, strict=True)):
        writer.add_scalar("search/lr", rate, step)
        if math.isfinite(loss):
            writer.add_scalar("search/loss", loss, step)


def write_plan(writer: SummaryWriter, plan: es.Plan, loss: float) -> None:
    """Write what was chosen, so that runs can be compared and sorted."""
    chosen = {"rule": plan.rule, "init": plan.init, "optimizer": plan.optimizer_name, "base_lr": plan.base or 0.0}
    writer.add_hparams(chosen, {"search/best_loss": loss, "plan/lr_scale": plan.lr_scale}, run_name=".")
    writer.add_text("plan", "\n".join(f"    {line}" for line in str(plan).splitlines()))


def main(folder: Path = Path("runs/evenstep")) -> es.LRSearch:
    """Search, plan, and write both."""
    inputs, targets = data()
    search = es.search_lr(small_net, (inputs, targets), steps=8, seeds=2)
    plan = es.plan(Residual(), inputs[:2], base=search)
    with SummaryWriter(str(folder)) as writer:
        write_search(writer, search)
        write_plan(writer, plan, min(search.mean_losses))
    return search


if __name__ == "__main__":
    print(main().best)
