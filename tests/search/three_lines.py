"""The three lines on a tiny model of transformers, what training with them came to, and the record of that."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Mapping
from importlib import metadata
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import evenstep as es
from evenstep.report.marks import update_page
from evenstep.report.table import markdown_table
from evenstep.search import LocalEngine
from evenstep.search.provenance import commit
from evenstep_research.study.record import as_record, write
from tests.search.transformers_kinds import BATCH, KINDS, Example, Kind

STEPS = 60
SHARE = 0.7  # of the untrained loss, and of guessing: a training must end below both
ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "three-lines" / "transformers.json"
PAGE = ROOT / "docs" / "traced.md"
MARK = "three lines"


def trained(kind: Kind) -> dict[str, Any]:
    """Put a kind through the three lines, train it, and return its loss on a batch that it never saw."""
    begin = time.perf_counter()
    with torch.random.fork_rng():
        torch.manual_seed(0)  # transformers draws its weights and what it drops from the global state
        model, loader, unseen = kind.build(), kind.loader(), kind.unseen()

        plan = es.auto_plan(
            model, loader, optimizer=torch.optim.AdamW, train_steps=STEPS, engine=LocalEngine(workers=1)
        )
        es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
        optimizer = plan.optimizer(model)

        before = loss_on(model, unseen)
        schedule = CosineAnnealingLR(optimizer, STEPS)
        for batch in islice(chain.from_iterable(repeat(loader)), STEPS):
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
            schedule.step()
    return {
        "model": kind.model,
        "parameters": sum(tensor.numel() for tensor in model.parameters()),
        "before": before,
        "after": loss_on(model, unseen),
        "guessing": kind.guessing,
        "steps": STEPS,
        "seconds": round(time.perf_counter() - begin, 1),
        "history": list(plan.history),
    }


def loss_on(model: nn.Module, batch: Example) -> float:
    """Return a model's own loss, with nothing dropped."""
    model.eval()
    with torch.no_grad():
        loss = float(model(**batch)["loss"])
    model.train()
    return loss


def add_to_record(name: str, line: Mapping[str, Any]) -> None:
    """Put the line of one kind in the record and the record's table in the page; several processes may at once."""
    made_by = commit()  # before anything is written: what is then differs from what is committed
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    with RECORD.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = RECORD.read_text()
        lines: dict[str, Any] = json.loads(text)["results"] if text else {}
        lines[name] = {**line, "commit": made_by}
        config = {"optimizer": "AdamW", "train_steps": STEPS, "batch_size": BATCH, "share": SHARE, "seed": 0}
        ordered = {kind.name: lines[kind.name] for kind in KINDS if kind.name in lines}
        record = as_record(config=config, results=ordered)
        record["provenance"]["versions"]["transformers"] = metadata.version("transformers")
        write(RECORD, record)
        update_page(PAGE, {MARK: table}, record)


def table(record: Mapping[str, Any]) -> str:
    """Return a record as a table, a row for each kind."""
    rows = [
        [name, f"`{line['model']}`", f"{line['parameters']:,}", f"{line['before']:.2f}", f"{line['after']:.2f}"]
        + [f"{line['guessing']:.2f}"]
        for name, line in record["results"].items()
    ]
    return markdown_table(["kind", "model", "parameters", "untrained", "trained", "guessing"], rows)
