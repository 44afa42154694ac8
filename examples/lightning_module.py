"""PyTorch Lightning: a callback plans and initialises the module, and guards the groups that it trains with."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import evenstep as es
from evenstep.integrations.lightning import EvenSteps
from networks import Residual, data


class Classifier(lightning.LightningModule):
    """Train a network; nothing here knows what the plan says."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Residual()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a batch."""
        loss = functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        """Return the plan's optimiser, and a scheduler that scales all its groups."""
        optimizer = EvenSteps.optimizer(self)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)]


def main(epochs: int = 3) -> dict[str, float]:
    """Train, and return what was logged last."""
    inputs, targets = data()
    steps = EvenSteps(lambda module: es.plan(module.model, inputs[:2], base=0.2, optimizer="momentum"))
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[steps],
    )
    trainer.fit(Classifier(), DataLoader(TensorDataset(inputs, targets), batch_size=32))
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    print(main())
