"""What an average over all positions leaves of the variance of normalised feature maps, before training.

    python benchmarks/average_variance.py --data FOLDER [--record results/averages/record.json]

Of every channel behind the last norm and ReLU: the variance over images of its mean over positions, divided by its
variance over images and positions; averaged over channels. Networks start as planned. The field
`pooled_variance_floor` of the rule `weighted` stands for these numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import evenstep as es
from evenstep_research.data import digits, load_folder
from evenstep_research.spaces import DagCNN, NasBench201
from evenstep_research.study.record import write_record

IMAGES, SEEDS = 512, 3
CHAIN = "2_02_002_0002"
CELLS = ("303101", "333333", "122333", "031101", "410441")  # the residual cell first, one of pools and skips alone last


def networks() -> dict[str, tuple[int, Callable[[], nn.Module]]]:
    """Return networks by name, each with the side of the images that it is shown."""
    found: dict[str, tuple[int, Callable[[], nn.Module]]] = {
        f"chain of 4 convolutions, images of {side}": (side, partial(DagCNN, CHAIN, norm="batch", channels=3, width=64))
        for side in (16, 32)
    }
    cells = {f"NAS-Bench-201 {code}": (32, partial(NasBench201, code)) for code in CELLS}
    return found | cells


def left(make: Callable[[], nn.Module], images: Tensor, seed: int) -> tuple[float, int]:
    """Return the part of the variance that is left, and the number of positions."""
    torch.manual_seed(seed)
    model = make()
    es.initialize_(model, es.plan(model, images[:2]), generator=torch.Generator().manual_seed(seed))
    maps: list[Tensor] = []
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    handles = [norm.register_forward_hook(lambda _m, _i, made: maps.append(made)) for norm in norms]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    last = functional.relu(maps[-1])  # norms run in the order of the network
    return float(last.mean((2, 3)).var(dim=0).mean() / last.var(dim=(0, 2, 3)).mean()), last[0, 0].numel()


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of CIFAR-10, else scikit-learn's digits")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    split = load_folder(options.data) if options.data else digits()
    whole = split.train[0][:IMAGES].expand(-1, 3, -1, -1)
    rows = []
    for name, (side, make) in networks().items():
        images = functional.interpolate(whole, size=(side, side), mode="area")
        found = [left(make, images, seed) for seed in range(SEEDS)]
        parts = [part for part, _ in found]
        rows.append({"network": name, "positions": found[0][1], "left": parts, "mean": sum(parts) / SEEDS})
        print(f"{name}: {found[0][1]} positions, {min(parts):.3f} to {max(parts):.3f} of the variance is left")
    if options.record:
        config = {"data": "cifar10" if options.data else "digits", "images": IMAGES, "seeds": SEEDS}
        write_record(options.record, config=config, results={"n": SEEDS, "networks": rows})


if __name__ == "__main__":
    main()
