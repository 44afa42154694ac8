"""The whole recipe on handwritten digits: search two small bases, plan networks of other shapes, train them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evenstep.data import Split, digits
from evenstep.module import plan
from evenstep.planning import Plan
from evenstep.search import LRSearch, mean_loss, search_lr, train_
from evenstep_research.spaces import DagCNN, DagMLP
from evenstep_research.study.codes import chain_code, dense_code, residual_code
from evenstep_research.study.record import finite
from evenstep_research.study.transfer.measure import LAYERS

DemoNotify = Callable[[str], None]
MLP_WIDTH = 64
CNN_WIDTH = 16
BATCH_SIZE = 32


class Branches(nn.Module):
    """A small multi-branch CNN: two blocks of 1x1, 3x3 and 5x5 convolutions side by side, each block normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, CNN_WIDTH, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(into, CNN_WIDTH, side, padding=side // 2) for side in (1, 3, 5))
            for into in (CNN_WIDTH, 3 * CNN_WIDTH)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(3 * CNN_WIDTH) for _ in self.blocks)
        self.readout = nn.Linear(3 * CNN_WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits [n, 10] of images [n, 1, 8, 8]."""
        fields = torch.relu(self.stem(images))
        for block, norm in zip(self.blocks, self.norms, strict=True):
            assert isinstance(block, nn.ModuleList)
            fields = torch.relu(norm(torch.cat([branch(fields) for branch in block], dim=1)))
        logits: Tensor = self.readout(fields.mean(dim=(2, 3)))
        return logits


def _mlp(code: str) -> Callable[[], nn.Module]:
    return lambda: DagMLP(code, width=MLP_WIDTH, inputs=64)


def _cnn(code: str) -> Callable[[], nn.Module]:
    return lambda: DagCNN(code, width=CNN_WIDTH, channels=1, norm="batch")


NETWORKS: tuple[tuple[str, str, Callable[[], nn.Module]], ...] = (
    ("deep chain, 16 weights", "MLP", _mlp(chain_code(16))),
    ("residual, 16 weights", "MLP", _mlp(residual_code(16))),
    ("dense, 8 layers", "MLP", _mlp(dense_code(8))),
    ("multi-branch CNN", "CNN", Branches),
    ("deep CNN, 8 layers", "CNN", _cnn(chain_code(8))),
)
BASES: dict[str, Callable[[], nn.Module]] = {"MLP": _mlp("2"), "CNN": _cnn("2")}


@dataclass(frozen=True)
class DemoRow:
    """One network trained at the transferred rate and at the base's own, means over seeds."""

    network: str
    base: str
    lr_scale: float
    transferred_lr: float
    base_lr: float
    transferred_loss: float
    base_loss: float
    transferred_accuracy: float
    base_accuracy: float


@dataclass(frozen=True)
class Demo:
    """Hold the searches, by kind of base, the trained networks, and their plans by name."""

    bases: dict[str, LRSearch]
    rows: tuple[DemoRow, ...]
    plans: dict[str, Plan]

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values; a diverged loss is None."""
        bases = {
            kind: {
                "grid": s.grid,
                "losses": [[finite(x) for x in seeds] for seeds in s.losses],
                "best": s.best,
                "estimate": s.estimate,
            }
            for kind, s in self.bases.items()
        }
        rows = [{k: finite(v) if isinstance(v, float) else v for k, v in asdict(row).items()} for row in self.rows]
        return {"bases": bases, "networks": rows}


def run_demo(*, seeds: int = 2, epochs: int = 5, notify: DemoNotify = lambda _: None) -> Demo:
    """Run the recipe: search each base for one epoch, plan each network, train it for a few epochs at both rates."""
    data = digits()
    bases = {}
    for kind, make in BASES.items():
        notify(f"searching the base learning rate of a one-hidden-layer {kind}")
        bases[kind] = search_lr(make, data.train, epochs=1, seeds=seeds, batch_size=BATCH_SIZE, progress=False)
    rows, plans = [], {}
    for name, kind, make in NETWORKS:
        notify(f"planning and training: {name}")
        plans[name] = plan(make(), data.train[0][:2], base=bases[kind])
        rows.append(_train_both(name, kind, make, plans[name], bases[kind], data, seeds, epochs))
    return Demo(bases, tuple(rows), plans)


def _train_both(
    name: str,
    kind: str,
    make: Callable[[], nn.Module],
    planned: Plan,
    base: LRSearch,
    data: Split,
    seeds: int,
    epochs: int,
) -> DemoRow:
    unscaled = plan(make(), data.train[0][:2], base=base, rule=LAYERS)  # the base's rate: no factor of topology
    rate = planned.base
    assert rate is not None
    measured = {}
    for label, chosen in (("transferred", planned), ("base", unscaled)):
        losses, accuracies = [], []
        for seed in range(seeds):
            model = make()
            train_(model, data.train, chosen, lr=rate, seed=seed, epochs=epochs, batch_size=BATCH_SIZE, cosine=True)
            losses.append(mean_loss(model, data.train))
            accuracies.append(_accuracy(model, data.test))
        measured[label] = (sum(losses) / seeds, sum(accuracies) / seeds)
    return DemoRow(
        name,
        kind,
        planned.lr_scale,
        rate * planned.lr_scale,
        rate,
        measured["transferred"][0],
        measured["base"][0],
        measured["transferred"][1],
        measured["base"][1],
    )


def _accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Return the share of right answers; a network whose outputs are not finite has none."""
    model.eval()
    with torch.no_grad():
        logits = model(data[0])
    right = (logits.argmax(1) == data[1]) & logits.isfinite().all(1)
    return float(right.float().mean())
