"""Measure what the size of residual branches and of readouts at the start is worth, and how best rates go with depth.

    python benchmarks/starts.py [--workers 2] [--networks 'residual*'] [--out results/starts] [--page PAGE]

Networks of the demo (digits and text) and residual MLPs without norms train by plans that are their own bases, so that
rates compare. Starts differ in two fields of `Conserve`: by which power of a stream's additions branches shrink, and
whether readouts make up for averages. Rates are an octave apart
until the best has both neighbours. Every run is a line of the ledger, known by its plan's numbers: a measurement that
was stopped continues, and a rule that has changed is measured again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from ledger import Ledger
from torch import Tensor, nn

import evenstep as es
from evenstep.demo.data import digits, text
from evenstep.demo.networks import CLASSES, SIDE, UNITS, LanguageModel, ResNet, ViT
from evenstep.init import Conserve
from evenstep.report.marks import Marks, update_page
from evenstep.report.table import markdown_table
from evenstep.search import plain_values
from evenstep_research.study.real.training import Batches, train
from evenstep_research.study.record import as_record, write

BEFORE, READOUTS, NOW = "neither", "readouts", "both"
STARTS: Mapping[str, Conserve] = {
    BEFORE: Conserve(branch_power=0.0, pooled_variance_floor=1.0),
    READOUTS: Conserve(branch_power=0.0),
    NOW: Conserve(),
    "branches by n": Conserve(branch_power=1.0),
}
OPTIMIZERS = ("adam", "momentum")
FIRST = {"adam": 0.008, "momentum": 0.1}
STEPS, BATCH, SEEDS = 150, 16, 3
RUN = ("network", "optimizer", "start", "plan", "rate", "seed")  # what tells runs apart


class ResidualMLP(nn.Module):
    """A stem, blocks of two layers that are added to their input, and a readout; no norms."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(SIDE * SIDE, UNITS)
        self.ups = nn.ModuleList(nn.Linear(UNITS, UNITS) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(UNITS, UNITS) for _ in range(depth))
        self.readout = nn.Linear(UNITS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        stream = self.stem(images.flatten(1))
        for up, down in zip(self.ups, self.downs, strict=True):
            stream = stream + down(torch.relu(up(torch.relu(stream))))
        logits: Tensor = self.readout(torch.relu(stream))
        return logits


@dataclass(frozen=True)
class Case:
    """A network, and what it trains on."""

    name: str
    make: Callable[[], nn.Module]
    data: str


class Windows(Batches):
    """Hold texts with what follows every byte."""

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        assert self.targets is not None
        chosen = torch.randint(len(self.inputs), (self.size or 1,), generator=generator)
        return self.inputs[chosen], self.targets[chosen]


def cases() -> tuple[Case, ...]:
    kinds: tuple[tuple[str, Callable[[int], nn.Module], str, tuple[int, ...]], ...] = (
        ("residual MLP", ResidualMLP, "digits", (2, 4, 8, 16)),
        ("residual CNN", ResNet, "digits", (2, 6, 12)),
        ("ViT", ViT, "digits", (2, 4, 8)),
        ("tied transformer", LanguageModel, "windows", (2, 4, 8)),
    )
    return tuple(
        Case(f"{kind}, depth {depth}", partial(make, depth), data)
        for kind, make, data, depths in kinds
        for depth in depths
    )


@cache
def batches(data: str) -> Batches:
    inputs, targets = digits() if data == "digits" else text()
    kind = Batches if data == "digits" else Windows
    return kind("images" if data == "digits" else "text", inputs, targets, size=BATCH)


def measured(case: Case, optimizer: str, start: str, ledger: Ledger) -> dict[str, Any]:
    """Return the losses of a network by a start, over rates an octave apart."""
    drawn = batches(case.data)
    example = drawn.draw(torch.Generator().manual_seed(0))[0]
    model = _made(case, 0)
    graph = es.trace(model, example)
    options: dict[str, Any] = {"optimizer": optimizer, "base_graph": graph, "measure": False}
    plan = es.plan(model, example, init=STARTS[start], base=1.0, **options)
    numbers = [[p.name, f"{p.std:.6g}", f"{p.mean:.6g}", f"{p.lr_scale:.6g}"] for p in plan.parameters]
    known = hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:12]

    def loss(rate: float) -> float:
        return sum(_loss(rate, seed) for seed in range(SEEDS)) / SEEDS

    def _loss(rate: float, seed: int) -> float:
        def train_() -> dict[str, Any]:
            network = _made(case, seed)
            es.initialize_(network, plan, generator=torch.Generator().manual_seed(seed))
            given = plan.scale("*", rate).optimizer(network)
            return {"loss": plain_values.finite_or_none(train(network, given, drawn, steps=STEPS, seed=seed))}

        names = {"network": case.name, "optimizer": optimizer, "start": start, "plan": known}
        line: dict[str, Any] = names | {"rate": rate, "seed": seed}
        return plain_values.loss("the loss", ledger.measured(line, train_)["loss"])

    losses: dict[float, float] = {}
    wanted = [FIRST[optimizer]]
    while wanted:
        losses |= {rate: loss(rate) for rate in wanted}
        best = min(losses, key=lambda rate: losses[rate])
        wanted = [rate for rate in (best / 2, best * 2) if rate not in losses]
    return {
        "network": case.name,
        "optimizer": optimizer,
        "start": start,
        "loss": losses[best],
        "rate": _bottom(best, [losses[best * factor] for factor in (0.5, 1, 2)]),
        "losses": {f"{rate:g}": plain_values.finite_or_none(losses[rate]) for rate in sorted(losses)},
    }


def _made(case: Case, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return case.make()


def _bottom(rate: float, losses: list[float]) -> float:
    """Return the rate at the bottom of the parabola through three losses an octave apart."""
    low, middle, high = losses
    bend = low - 2 * middle + high
    return rate * 2.0 ** (0.5 * (low - high) / bend) if math.isfinite(bend) and bend > 0 else rate


def _task(task: tuple[str, str, str, Path]) -> dict[str, Any]:
    name, optimizer, start, out = task
    torch.set_num_threads(1)
    case = next(case for case in cases() if case.name == name)
    return measured(case, optimizer, start, Ledger(out / "ledger.jsonl", RUN))


def table(record: Mapping[str, Any]) -> str:
    """Return the losses and best rates of all networks by start, in Markdown."""
    config, origin = record["config"], record["provenance"]
    words = (
        f"{config['steps']} steps, means over {config['seeds']} seeds; {origin['device']}, "
        f"torch {origin['versions']['torch']}, commit {origin['commit']}."
    )
    found = {(row["network"], row["optimizer"], row["start"]): row for row in record["results"]["rows"]}
    networks = list(dict.fromkeys(row["network"] for row in record["results"]["rows"]))
    parts = [words]
    for optimizer in OPTIMIZERS:
        rows = []
        for network in networks:
            cells = [found.get((network, optimizer, start)) for start in STARTS]
            rows.append([network, *("–" if c is None else f"{c['loss']:.3f} ({c['rate']:.2g})" for c in cells)])
        parts += [f"**{optimizer}**", markdown_table(["network", *STARTS], rows)]
    return "\n\n".join(parts)


def marks() -> Marks:
    return {"starts": table}


def _tasks(args: argparse.Namespace) -> Iterator[tuple[str, str, str, Path]]:
    for case in cases():
        if any(fnmatchcase(case.name, pattern) for pattern in args.networks.split(";")):
            for optimizer in OPTIMIZERS:
                for start in STARTS:
                    yield case.name, optimizer, start, args.out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", default="*")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/starts"))
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        results = list(pool.map(_task, _tasks(args)))
    config = {"seeds": SEEDS, "steps": STEPS, "batch_size": BATCH}
    record = as_record(config=config, results={"rows": results})
    write(args.out / "record.json", record)
    if args.page is not None:
        update_page(args.page, marks(), record)


if __name__ == "__main__":
    main()
