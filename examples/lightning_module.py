"""PyTorch Lightning: groups in `configure_optimizers`, and a callback that guards and logs them."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import evenstep as es
from networks import Residual, data


class EvenSteps(lightning.Callback):
    """Check at every epoch that the optimiser still steps as planned, and log the base's learning rate."""

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Raise where a scheduler or another callback has changed the ratios of the rates."""
        rate = es.check_groups(pl_module.model, pl_module.plan, trainer.optimizers[0])  # type: ignore[arg-type]
        pl_module.log("base_lr", rate)


class Classifier(lightning.LightningModule):
    """Train a planned network."""

    def __init__(self, example_inputs: Tensor, base: float) -> None:
        super().__init__()
        self.model = Residual()
        self.plan = es.plan(self.model, example_inputs, base=base, optimizer="momentum")
        es.initialize_(self.model, self.plan)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a batch."""
        loss = functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        """Give the groups of the plan to an ordinary optimiser; the scheduler scales them all."""
        optimizer = torch.optim.SGD(self.plan.param_groups(self.model), momentum=0.9, nesterov=True)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)]


def main(epochs: int = 3) -> dict[str, float]:
    """Train, and return what was logged last."""
    inputs, targets = data()
    model = Classifier(inputs[:2], base=0.2)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[EvenSteps()],
    )
    trainer.fit(model, DataLoader(TensorDataset(inputs, targets), batch_size=32))
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    print(main())
