"""Measure how the searched rate depends on the number of steps that a trial trains for, on handwritten digits.

    python benchmarks/search_steps.py [results/search-steps/record.json [docs/search.md]]

Digits are 1437 images: 22 steps of 64 are one epoch. The page gets a table of the rate after so many steps, over the
rate after the most.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import evenstep as es
from evenstep.data import digits
from evenstep.report.marks import update_page
from evenstep.report.table import markdown_table
from evenstep.search import LocalEngine
from evenstep_research.study.record import write_record

STEPS = (22, 50, 100, 200, 300, 600, 1200)
SEEDS = 3
OPTIMIZERS = {"sgd": 0.3, "momentum": 0.03, "adam": 0.003}  # and where their searches start


def mlp() -> nn.Module:
    """Return a network of one hidden matrix."""
    hidden = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


def measured(optimizer: str) -> dict[str, Any]:
    """Return what searches of each length found."""
    found = []
    for steps in STEPS:
        search = es.search_lr(
            mlp,
            digits().train,
            optimizer=optimizer,  # type: ignore[arg-type]
            steps=steps,
            seeds=SEEDS,
            start=OPTIMIZERS[optimizer],
            engine=LocalEngine(workers=1),
            on_failure="return",
            progress=False,
        )
        row = {name: search.to_dict()[name] for name in ("steps", "rate", "interval", "best", "status")}
        found.append(row | {"loss": min(search.mean_losses)})
    return {"optimizer": optimizer, "found": found}


def table(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    rows = []
    for row in record["results"]["rows"]:
        rates = [searched["rate"] for searched in row["found"]]
        rows.append([row["optimizer"], *(f"{rate / rates[-1]:.2f}" for rate in rates)])
    return markdown_table(["steps", *map(str, record["config"]["steps"])], rows)


def main(path: Path, page: Path | None) -> None:
    """Measure under every optimiser; write the record, and the table into a page."""
    torch.set_num_threads(1)
    rows = []
    for optimizer in OPTIMIZERS:
        rows.append(measured(optimizer))
        print(optimizer, [searched["rate"] for searched in rows[-1]["found"]], flush=True)
    config = {"data": "digits", "batch_size": 64, "seeds": SEEDS, "steps": STEPS}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, config=config, results={"rows": rows})
    if page is not None:
        update_page(page, {"search steps": table}, json.loads(path.read_text()))


if __name__ == "__main__":
    default = Path("results/search-steps/record.json")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
