"""Measure what short runs say of a training: the best rate of runs of several kinds, next to that of 1,500 steps.

    python benchmarks/short_runs.py --data DIR --scale full --device cuda --workers 14 --minutes 9
    python benchmarks/short_runs.py --page docs/real.md  # make the record and the table of the ledger again

A kind of run has so many steps, on a part of the batch, with a share of them for the warm-up, of the network itself or
of its base (`base_of`); the networks are those of `three_lines.py --scale`. Every rate is a multiple of the same plan;
octaves are tried until the best has both neighbours. Every run is a line of the ledger, so that a measurement that was
stopped continues; `record.json` has, for each kind, by how many octaves its best rate is off that of the training.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from ledger import Ledger, OutOfTimeError
from three_lines import Bench, benches, listed

import evenstep as es
from evenstep.report.marks import update_page
from evenstep.report.table import markdown_table
from evenstep.search import plain_values
from evenstep.search.cuda import free_memory
from evenstep.search.short_runs import COUNTED
from evenstep_research.study.real import training
from evenstep_research.study.record import write_record

TRAINING_STEPS, TRAINING_COUNTED = 1500, 1 / 8
FIRST = range(-1, 2)
# Where octaves begin, in rates of the one-block base; nothing depends on them.
STARTS = {"adam": 0.001, "momentum": 0.05}
RUN = ("network", "optimizer", "of", "steps", "part", "warm_up", "lr")


class Kind(NamedTuple):
    """Say what runs: the network or its base, so many steps, a part of the batch, a share of the steps to warm up."""

    of: str
    steps: int
    part: float = 1.0
    warm_up: float = 0.08


TRAINING = Kind("network", TRAINING_STEPS)
KINDS = (
    TRAINING,
    *(Kind("network", steps) for steps in (32, 64, 128)),
    Kind("network", 32, warm_up=0.5),
    Kind("network", 64, 1 / 2),
    Kind("network", 128, 1 / 4),
    Kind("network", 128, 1 / 4, 0.3),
    Kind("network", 256, 1 / 8),
    *(Kind("base", steps) for steps in (32, 128, 400)),
    Kind("base", 128, 1 / 4),
)


def missing(losses: Mapping[int, float]) -> list[int]:
    """Return the octaves to try next: the first ones, then the neighbours of the best."""
    if first := [octave for octave in FIRST if octave not in losses]:
        return first
    best = min(losses, key=lambda octave: losses[octave])
    return [octave for octave in (best - 1, best + 1) if octave not in losses]


def loss_of_run(bench: Bench, plan: es.Plan, kind: Kind, lr: float) -> float:
    """Train a network, or its base, by a plan at a rate; return the mean loss of the last steps."""
    model = bench.made(0)
    if kind.of == "base":
        model = es.base_of(model, bench.row.network.example())()
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    optimizer = plan.optimizer(model.to(bench.device), lr=lr, **bench.fused)
    batches = replace(bench.batches, size=max(round((bench.batches.size or 1) * kind.part), 1))
    training.WARM_UP = kind.warm_up
    training.COUNTED = TRAINING_COUNTED if kind == TRAINING else COUNTED
    return training.train(model, optimizer, batches, steps=kind.steps, seed=0)


def measure(given: argparse.Namespace, network: str, optimizer: str, kind: Kind) -> None:
    """Measure the curve of one kind of run of one network, in a process of its own."""
    torch.set_num_threads(1)
    given = argparse.Namespace(**vars(given) | {"networks": [network], "optimizers": [optimizer]})
    ((bench, _),) = benches(given)
    ledger = Ledger(given.out / "ledger.jsonl", RUN, bench.ledger.deadline)
    names = {"network": network, "optimizer": optimizer, **kind._asdict()}
    try:
        model, example = bench.made(0), bench.row.network.example()
        base = es.base_of(model, example)
        graph = es.trace(base(), example)
        planned = base() if kind.of == "base" else model
        plan = es.plan(planned, example, base=1.0, base_graph=graph, optimizer=optimizer)  # type: ignore[arg-type]
        losses: dict[int, float] = {}
        while wanted := missing(losses):
            for octave in wanted:
                lr = STARTS[optimizer] * 2.0**octave

                def run(lr: float = lr) -> dict[str, Any]:
                    loss = loss_of_run(bench, plan, kind, lr)
                    return {"loss": plain_values.finite_or_none(loss)}

                loss = ledger.measured(names | {"lr": lr}, run)["loss"]
                losses[octave] = plain_values.loss("the loss", loss)
    except OutOfTimeError:
        pass
    finally:
        free_memory(bench.device)  # others share it


def best_octave(losses: Mapping[float, float]) -> float:
    """Return where the parabola through the smallest loss and its neighbours is lowest.

    A neighbour that diverged, or ended far above, counts as a nat above the smallest.
    """
    octaves = sorted(losses)
    best = min(octaves, key=lambda octave: losses[octave])
    if best in (octaves[0], octaves[-1]):
        return best
    place = octaves.index(best)
    left, middle, right = (min(losses[octave], losses[best] + 1) for octave in octaves[place - 1 : place + 2])
    return best + 0.5 * (left - right) / (left - 2 * middle + right)


def summary(known: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> dict[str, Any]:
    """Return by how many octaves the best rate of each kind is off that of the training, by network and on average."""
    curves: dict[tuple[str, str], dict[Kind, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in known.values():
        loss = plain_values.loss("the loss", line["loss"])
        kind = Kind(*(line[name] for name in Kind._fields))
        curves[line["network"], line["optimizer"]][kind][math.log2(line["lr"])] = loss
    best = {row: {kind: best_octave(curve) for kind, curve in kinds.items()} for row, kinds in curves.items()}
    kinds = []
    for kind in KINDS[1:]:
        for optimizer in STARTS:
            off = {
                network: round(found[kind] - found[TRAINING], 2)
                for (network, trained_by), found in sorted(best.items())
                if trained_by == optimizer and kind in found and TRAINING in found
            }
            values = list(off.values())
            if len(values) > 1:
                mean, deviation = round(statistics.fmean(values), 2), round(statistics.stdev(values), 2)
                about = {"n": len(values), "mean": mean, "deviation": deviation, "octaves_off": off}
                kinds.append({**kind._asdict(), "optimizer": optimizer, **about})
    return {"kinds": kinds}


def table(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    cells: dict[Kind, dict[str, str]] = defaultdict(dict)
    for found in record["results"]["kinds"]:
        kind = Kind(*(found[name] for name in Kind._fields))
        cells[kind][found["optimizer"]] = f"{found['mean']:+.2f} ± {found['deviation']:.2f}"
    counts = {found["n"] for found in record["results"]["kinds"]}
    head = ["runs of", "steps", "of the batch", "warm-up", *STARTS, "its cost in steps on whole batches"]
    rows = [
        [k.of, str(k.steps), f"{k.part:g}", f"{k.warm_up:g}", *(cells[k][o] for o in STARTS), f"{k.steps * k.part:g}"]
        for k in sorted(cells, key=lambda kind: (kind.of == "base", kind.steps * kind.part, kind.steps, kind.warm_up))
    ]
    origins = "; ".join(
        f"{o['device']}, torch {o['torch']}, commit {o['commit']}" for o in record["results"]["measured_on"]
    )
    networks = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    return f"{networks} networks, one seed, {origins}.\n\n{markdown_table(head, rows)}"


def main() -> None:
    """Measure what is asked for, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data")
    parser.add_argument("--scale", choices=("million", "full"), default="full")
    parser.add_argument("--networks", type=listed, default=["*"])
    parser.add_argument("--optimizers", type=listed, default=list(STARTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="begin nothing after so many")
    parser.add_argument("--out", type=Path, default=Path("results/short-runs"))
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    given.begun = time.time()
    if given.data:
        rows = [bench.row for bench, _ in benches(given)]
        with ProcessPoolExecutor(given.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            tasks = [
                pool.submit(measure, given, row.network.name, row.optimizer, kind) for kind in KINDS for row in rows
            ]
            for task in tasks:
                if error := task.exception():
                    print(f"{type(error).__name__}: {error}", flush=True)
    ledger = Ledger(given.out / "ledger.jsonl", RUN)
    config = {"kinds": [kind._asdict() for kind in KINDS], "counted": COUNTED, "training_counted": TRAINING_COUNTED}
    lines = ledger.known.values()
    origins = sorted({(o["device"], o["versions"]["torch"], o["commit"]) for o in (x["provenance"] for x in lines)})
    measured_on = [dict(zip(("device", "torch", "commit"), origin, strict=True)) for origin in origins]
    results = summary(ledger.known) | {"measured_on": measured_on}
    write_record(given.out / "record.json", config=config, results=results)
    if given.page:
        update_page(given.page, {"short runs": table}, json.loads((given.out / "record.json").read_text()))


if __name__ == "__main__":
    main()
