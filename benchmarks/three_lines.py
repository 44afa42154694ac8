"""Measure the three lines of the README on the development networks, next to what people do instead.

    python benchmarks/three_lines.py --data DIR [--real results/real-cpu/record.json] [--page docs/real.md]
    python benchmarks/three_lines.py --data DIR --scale million --out results/million [--ways tuned,evenstep]
    python benchmarks/three_lines.py --data DIR --scale full --device cuda --workers 14 --minutes 8 --out results/full

From a model and its loader alone: `auto_plan`, `initialize_`, `plan.optimizer`. Against it one rate for all, from
torch's own start: the best in hindsight, the default and Prodigy as `evenstep study real` measured them (its record
says at which scale and for how many steps), the rate that a range test picks, and the best of an Optuna search whose
short runs cost as many steps as `auto_plan` took. At the scales `million` (networks of a million parameters or more)
and `full` (those of `evenstep study real --scale full`, for a GPU) networks train for 1,500 steps with one seed; the
best rate is then found here, octave by octave until it has both neighbours. `multiples` trains at octaves of the
plan in the same way: what the scale costs. Every run is a line of the ledger, so that a measurement that was stopped
continues; `record.json` has the table, of the rows that are complete.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from ledger import Ledger, OutOfTimeError
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import evenstep as es
from evenstep.report.marks import Marks, update_page
from evenstep.report.table import markdown_table
from evenstep.search import LocalEngine, plain_values
from evenstep.search.cuda import free_memory
from evenstep.search.job import Job
from evenstep.search.provenance import provenance
from evenstep.search.recipe import Recipe
from evenstep_research.study.real.answers import DEFAULT_RATES, PRODIGY_RATE
from evenstep_research.study.real.compact import million_set
from evenstep_research.study.real.networks import RealNetwork
from evenstep_research.study.real.scales import CPU, FULL, RealOptimizer, RealScale, Row, real_scale_named, rows_at
from evenstep_research.study.real.training import Batches, train
from evenstep_research.study.transfer.rivals import TEST_STEPS, range_test

WAYS = ("tuned", "default", "range test", "optuna", "prodigy", "evenstep")
LONG_STEPS = 1500
OPTUNA_STEPS = 32  # of a run of its search
# Those whose best rate is found here: networks, and the scale whose data they train on.
LONG: Mapping[str, tuple[Callable[[], tuple[RealNetwork, ...]], RealScale]] = {
    "million": (million_set, CPU),
    "full": (lambda: FULL.networks, FULL),
}
# Where octaves begin, and what is called the default.
FIRST_RATES = {"adam": (0.001, 0.002, 0.004), "momentum": (0.0125, 0.025, 0.05, 0.1)}
WINDOWS = 6000  # of a text, as a data set
RUN = ("network", "optimizer", "steps", "way", "lr", "seed")  # what tells runs apart


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


@dataclass(frozen=True)
class Bench:
    """One network, one optimiser, its data, and where runs are noted."""

    row: Row
    steps: int
    batches: Batches
    device: torch.device
    ledger: Ledger

    def made(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.row.network.make()

    @property
    def fused(self) -> dict[str, Any]:
        """What optimisers are built with where steps are recorded."""
        return {"fused": True} if self.device.type == "cuda" else {}

    def loader(self) -> DataLoader[Any]:
        return _loader(self.batches)

    def loss(self, model: nn.Module, optimizer: Any, seed: int, steps: int | None = None) -> float:
        return train(model, optimizer, self.batches, steps=steps or self.steps, seed=seed)

    def line(self, way: str, lr: float | None, seed: int) -> dict[str, Any]:
        names = {"network": self.row.network.name, "optimizer": self.row.optimizer, "steps": self.steps}
        return names | {"way": way, "lr": lr, "seed": seed}

    def with_one_rate(self, way: str, lr: float, seed: int, steps: int | None = None) -> float:
        def measure() -> dict[str, Any]:
            model = self.made(seed).to(self.device)
            return {"loss": plain_values.finite_or_none(self.loss(model, self.plain(model, lr), seed, steps))}

        if steps is not None:
            return plain_values.loss("the loss", measure()["loss"])
        return plain_values.loss("the loss", self.ledger.measured(self.line(way, lr, seed), measure)["loss"])

    def tuned(self) -> dict[float, float]:
        """Return the losses at one rate for all, an octave apart until the best has both neighbours."""
        return _bracketed(FIRST_RATES[self.row.optimizer], lambda rate: self.with_one_rate("one rate", rate, 0))

    def multiples(self) -> dict[float, float]:
        """Return the losses at octaves of the plan, until the best has both neighbours."""
        plan = es.Plan.from_json(self.planned()["plan"])
        return _bracketed((1.0, 0.5, 2.0), lambda multiple: self.as_planned(plan, multiple, 0))

    def prodigy(self) -> float:
        def measure() -> dict[str, Any]:
            from prodigyopt import Prodigy  # not needed for what is measured without it

            model = self.made(0).to(self.device)
            return {
                "loss": plain_values.finite_or_none(self.loss(model, Prodigy(model.parameters(), lr=PRODIGY_RATE), 0))
            }

        line = self.line("prodigy", PRODIGY_RATE, 0) | {"optimizer": "prodigy"}  # one run for the rows of both
        return plain_values.loss("the loss", self.ledger.measured(line, measure)["loss"])

    def plain(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        if self.row.optimizer == "adam":
            return torch.optim.AdamW(model.parameters(), lr, weight_decay=0.0, **self.fused)
        return torch.optim.SGD(model.parameters(), lr, momentum=0.9, nesterov=True, **self.fused)

    def range_tested(self, seeds: int) -> list[float]:
        def measure() -> dict[str, Any]:
            model, data = self.made(0).to(self.device), self.tensors()
            plan = es.plan(model, data[0][:2], rule="constant", init="keep", optimizer=self.row.optimizer)
            recipe = Recipe(optimizer=self.row.optimizer, batch_size=self.batches.size or 1, loss=loss_of)
            return {"loss": None, "rate": range_test(Job.of(lambda: model, plan, recipe, range(1)), data)}

        picked = self.ledger.measured(self.line("range test's pick", None, 0), measure)["rate"]
        return [self.with_one_rate("range test", picked, seed) for seed in range(seeds)]

    def optuna(self, seeds: int, cost: float) -> list[float]:
        """Search one rate by short runs that cost as many steps of the network as `auto_plan` took."""

        def measure() -> dict[str, Any]:
            import optuna

            optuna.logging.set_verbosity(optuna.logging.ERROR)
            study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))

            def objective(trial: Any) -> float:
                rate = trial.suggest_float("lr", 1e-5, 1.0, log=True)
                return min(self.with_one_rate("", rate, 0, steps=OPTUNA_STEPS), 1e6)

            study.optimize(objective, n_trials=max(round(cost / OPTUNA_STEPS), 1))
            return {"loss": None, "rate": study.best_params["lr"]}

        picked = self.ledger.measured(self.line("optuna's pick", None, 0), measure)["rate"]
        return [self.with_one_rate("optuna", picked, seed) for seed in range(seeds)]

    def planned(self) -> dict[str, Any]:
        """Return what `auto_plan` answers, how long it took, and the steps of the model that this stands for."""

        def measure() -> dict[str, Any]:
            model = self.made(0).to(self.device)
            on_gpu = self.device.type == "cuda"  # where trainings run in bfloat16
            engine = LocalEngine(precision="bfloat16") if on_gpu else LocalEngine(workers=1)
            training = _Stopwatch()
            before = time.perf_counter()
            plan = es.auto_plan(
                model,
                self.loader(),
                optimizer=self.row.optimizer,
                train_steps=self.steps,
                loss=loss_of,
                engine=engine,
                progress=training,
            )
            seconds = time.perf_counter() - before
            share = es.base_of(model, self.tensors()[0][:2].to(self.device)).share
            cost = _cost(plan.history, share) / (self.batches.size or 1)
            words = {"history": list(plan.history), "cost_steps": cost}
            times = {"plan_seconds": seconds, "training_seconds": training.seconds}
            return {"loss": None, "plan": plan.to_json()} | times | words

        return self.ledger.measured(self.line("evenstep's plan", None, 0), measure)

    def as_planned(self, plan: es.Plan, multiple: float, seed: int) -> float:
        """Return the loss of a training by the plan, all rates times a multiple."""

        def measure() -> dict[str, Any]:
            model = self.made(seed)
            es.initialize_(model, plan, generator=torch.Generator().manual_seed(seed))
            model.to(self.device)
            scaled = plan if multiple == 1 else plan.scale("*", multiple)
            return {"loss": plain_values.finite_or_none(self.loss(model, scaled.optimizer(model, **self.fused), seed))}

        line = self.line("evenstep", None if multiple == 1 else multiple, seed)
        return plain_values.loss("the loss", self.ledger.measured(line, measure)["loss"])

    def evenstep(self, seeds: int) -> tuple[list[float], dict[str, Any]]:
        found = self.planned()
        plan = es.Plan.from_json(found["plan"])
        return [self.as_planned(plan, 1.0, seed) for seed in range(seeds)], found

    def tensors(self) -> tuple[Tensor, Tensor]:
        return tensors_of(self.batches)


class _Stopwatch:
    """Add up the time that searches train, as their progress says."""

    def __init__(self) -> None:
        self.seconds, self.stage, self.last = 0.0, "", 0.0

    def __call__(self, progress: Any) -> None:
        now = time.perf_counter()
        if progress.stage == self.stage:
            self.seconds += now - self.last
        self.stage, self.last = progress.stage, now


def _bracketed(first: Sequence[float], loss: Callable[[float], float]) -> dict[float, float]:
    """Return losses an octave apart, until the best has both neighbours."""
    losses: dict[float, float] = {}
    wanted = list(first)
    while wanted:
        losses |= {number: loss(number) for number in wanted}
        best = min(losses, key=lambda number: losses[number])
        wanted = [number for number in (best / 2, best * 2) if number not in losses]
    return losses


def tensors_of(batches: Batches) -> tuple[Tensor, Tensor]:
    if batches.targets is not None:
        return batches.inputs.float(), batches.targets
    device = batches.inputs.device
    generator = torch.Generator(device).manual_seed(0)
    starts = torch.randint(len(batches.inputs) - batches.length, (WINDOWS, 1), generator=generator, device=device)
    windows = batches.inputs[starts + torch.arange(batches.length + 1, device=device)].long()
    return windows[:, :-1], windows[:, 1:]


def _loader(batches: Batches) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors_of(batches)), batch_size=batches.size, shuffle=True)


def _cost(history: Sequence[str], share: float) -> float:
    """Return how many examples the runs took that a plan stands on: those of its base count by their share."""
    searched = re.search(r"by (\d+) runs of (\d+) steps on (\d+) examples", history[0])
    refined = re.search(r"by (\d+) runs of the network itself, (\d+) steps on (\d+) examples", history[-1])
    assert searched is not None
    cost = share * math.prod(map(int, searched.groups()))
    return cost + (math.prod(map(int, refined.groups())) if refined else 0)


def _by_words(losses: Mapping[float, float]) -> dict[str, float | None]:
    return {f"{number:g}": plain_values.finite_or_none(losses[number]) for number in sorted(losses)}


def _mean(losses: list[float]) -> float | None:
    return plain_values.finite_or_none(sum(losses) / len(losses))


def known_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `evenstep study real` knows of a row."""
    names = ("network", "optimizer", "steps")
    return {name: row[name] for name in names} | {
        "seeds": row["seed_count"],
        "tuned": row["cells"]["tuned"]["mean"],
        "tuned_at": row["tuned_lr"],
        "default": row["cells"]["default"]["mean"],
        "prodigy": row["cells"]["prodigy"]["mean"],
    }


def tuned_row(bench: Bench, ways: Sequence[str]) -> dict[str, Any]:
    """Return what whole trainings at one rate, and Prodigy, give with one seed."""
    losses = bench.tuned()
    best = min(losses, key=lambda rate: losses[rate])
    default = DEFAULT_RATES[bench.row.optimizer]
    return {"network": bench.row.network.name, "optimizer": bench.row.optimizer, "steps": bench.steps} | {
        "seeds": 1,
        "tuned": losses[best],
        "tuned_at": best,
        "one rate": _by_words(losses),
        "default": losses.get(default) or bench.with_one_rate("one rate", default, 0) if "default" in ways else None,
        "prodigy": bench.prodigy() if "prodigy" in ways else None,
    }


def measured_row(bench: Bench, known: dict[str, Any], ways: Sequence[str] = WAYS) -> dict[str, Any]:
    """Return one line of the table."""
    seeds = known["seeds"]
    ours, found = bench.evenstep(seeds)
    names = ("network", "optimizer", "steps")
    same = [line for line in bench.ledger.known.values() if all(line[name] == known[name] for name in names)]
    whole = [line["seconds"] for line in same if line["loss"] is not None and line["seconds"] is not None]
    return known | {
        "parameters": sum(p.numel() for p in bench.made(0).parameters()),
        "range test": _mean(bench.range_tested(seeds)) if "range test" in ways else None,
        "optuna": _mean(bench.optuna(seeds, found["cost_steps"])) if "optuna" in ways else None,
        "evenstep": _mean(ours),
        "spread": max(ours) - min(ours),
        "multiples": _by_words(bench.multiples()) if "multiples" in ways else None,
        "cost_steps": found["cost_steps"],
        "cost": found["plan_seconds"] / statistics.median(whole),
        "history": found["history"],
    }


def table(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown; times only where trainings did not share the machine."""
    ways = [way for way in WAYS if any(row.get(way) is not None for row in record["rows"])]
    alone = record.get("workers", 1) == 1
    share = "its share of the time" if alone else "their share"
    head = ["network", "optimizer", *ways, "evenstep minus tuned", "steps the plan cost", share]
    rows = []
    for row in record["rows"]:
        cells = [_shown(row[way]) for way in ways]
        cost = [f"{row['cost_steps']:.0f}", f"{row['cost'] if alone else row['cost_steps'] / row['steps']:.0%}"]
        rows.append([row["network"], row["optimizer"], *cells, _gain(row), *cost])
    gains = [row["evenstep"] - row["tuned"] for row in record["rows"] if None not in (row["evenstep"], row["tuned"])]
    words = f"{origin(record)} Evenstep minus tuned: mean {statistics.fmean(gains):+.3f}, worst {max(gains):+.3f}."
    return f"{words}\n\n{markdown_table(head, rows)}"


def origin(record: Mapping[str, Any]) -> str:
    """Say how a record was measured, and on what."""
    first, measured = record["rows"][0], record["provenance"]
    return (
        f"{first['steps']} steps, {first['seeds']} seed(s), {measured['device']}, torch "
        f"{measured['versions']['torch']}, commit {measured['commit']}."
    )


def front_table(record: Mapping[str, Any]) -> str:
    """Return the table of a front page: one rate tuned, its default, Prodigy, and evenstep."""
    ways = ("tuned", "default", "prodigy", "evenstep")
    rows = [
        [row["network"].removeprefix("compact "), row["optimizer"], *(_shown(row[way]) for way in ways), _gain(row)]
        for row in record["rows"]
    ]
    return f"{markdown_table(('network', 'optimizer', *ways, 'evenstep minus tuned'), rows)}\n\n{origin(record)}"


def front_words(record: Mapping[str, Any]) -> str:
    """Return a record in a sentence for a front page: how much is gained, and where it loses."""
    rows = [row for row in record["rows"] if None not in (row["evenstep"], row["tuned"])]
    gains = {f"{row['network']} by {row['optimizer']}": row["evenstep"] - row["tuned"] for row in rows}
    lost = ", ".join(f"{name} ({gain:+.3f})" for name, gain in gains.items() if gain > LOST)
    device, steps = record["provenance"]["device"], rows[0]["steps"]
    return (
        f"At full size (networks of torchvision and transformers, {device}, {steps:,} steps) evenstep "
        f"ends {-statistics.fmean(gains.values()):.3f} nats below the tuned rate on average over {len(rows)} "
        f"rows and more than {LOST} above it on {sum(gain > LOST for gain in gains.values())}: {lost}."
    )


def _shown(loss: float | None) -> str:
    return "diverged" if loss is None else f"{loss:.3f}"


def _gain(row: Mapping[str, Any]) -> str:
    return "" if None in (row["evenstep"], row["tuned"]) else f"{row['evenstep'] - row['tuned']:+.3f}"


LOST = 0.03  # nats above the tuned rate
# What a page may show of a record, by the scale it was measured at.
MARKS: Mapping[str, Marks] = {
    "cpu": {"three lines": table, "three lines front": front_table},
    "million": {"million": table},
    "full": {"full": table, "full front": front_words},
}


@cache
def _batches(scale: str, data: str, device: str, folder: str) -> Batches:
    source = real_scale_named(scale).sources[cast(Any, data)]
    return source.load(torch.device(device), folder)


def benches(given: argparse.Namespace) -> Iterator[tuple[Bench, dict[str, Any] | None]]:
    """Yield what is asked for, each with what is known of it from elsewhere."""
    deadline = None if given.minutes is None else given.begun + 60 * given.minutes
    ledger, device = Ledger(given.out / "ledger.jsonl", RUN, deadline), torch.device(given.device)
    if given.scale in LONG:
        networks, scale = LONG[given.scale]
        for network in networks():
            if any(fnmatchcase(network.name, pattern) for pattern in given.networks):
                batches = _batches(scale.name, network.data, given.device, given.data)
                for optimizer in given.optimizers:
                    row = Row(network, cast(RealOptimizer, optimizer), LONG_STEPS)
                    yield Bench(row, row.steps, batches, device, ledger), None
        return
    real = json.loads(given.real.read_text())
    scale = real_scale_named(real["config"]["scale"])
    measured = {(row["network"], row["optimizer"], row["steps"]): row for row in real["results"]["rows"]}
    for row in rows_at(scale, networks=given.networks, optimizers=given.optimizers):
        known = measured.get((row.network.name, row.optimizer, row.steps))
        if known is not None:
            batches = _batches(scale.name, row.network.data, given.device, given.data)
            yield Bench(row, row.steps, batches, device, ledger), known_row(known)


def rows_of(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield rows as they are measured; those that there is no time for are left out."""
    for bench, known in benches(given):
        try:
            yield measured_row(bench, known or tuned_row(bench, given.ways), given.ways)
        except OutOfTimeError:
            print(f"not complete: {bench.row.words}", flush=True)


def _measured_apart(given: argparse.Namespace, network: str, optimizer: str, way: str) -> None:
    """Measure one way of one row, in a process of its own; the ledger holds what came out."""
    torch.set_num_threads(1)
    given = argparse.Namespace(**vars(given) | {"networks": [network], "optimizers": [optimizer]})
    ((bench, known),) = benches(given)
    seeds = known["seeds"] if known else 1
    ways: dict[str, Callable[[], object]] = {
        "tuned": bench.tuned,
        "default": lambda: bench.with_one_rate("one rate", DEFAULT_RATES[bench.row.optimizer], 0),
        "prodigy": bench.prodigy,
        "range test": lambda: bench.range_tested(seeds),
        "optuna": lambda: bench.optuna(seeds, bench.planned()["cost_steps"]),
        "evenstep": lambda: bench.evenstep(seeds),
        "multiples": bench.multiples,
    }
    try:
        ways[way]()
    except OutOfTimeError:
        pass
    finally:
        free_memory(bench.device)  # others share it


def measure_apart(given: argparse.Namespace) -> None:
    """Measure all ways of all rows in processes side by side, what matters most first."""
    rows = [bench.row for bench, _ in benches(given)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, mp_context=context) as pool:
        tasks = {
            pool.submit(_measured_apart, given, row.network.name, row.optimizer, way): f"{row.words}: {way}"
            for way in sorted(given.ways, key=(*given.first, *given.ways).index)
            for row in rows
        }
        for task, words in tasks.items():
            if error := task.exception():
                print(f"{words}: {type(error).__name__}: {error}", flush=True)


def listed(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    """Measure what is asked for and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--real", type=Path, default=Path("results/real-cpu/record.json"))
    parser.add_argument("--scale", choices=tuple(MARKS), default="cpu")
    parser.add_argument("--ways", type=listed, default=list(WAYS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="begin nothing after so many")
    parser.add_argument("--networks", type=listed, default=["*"])
    parser.add_argument("--optimizers", type=listed, default=["adam", "momentum"])
    parser.add_argument("--out", type=Path, default=Path("results/three-lines"))
    parser.add_argument("--page", type=Path, action="append", default=[])
    given = parser.parse_args()
    given.begun, given.first = time.time(), ("evenstep", "tuned")
    if given.device == "cpu":
        torch.set_num_threads(1)
    if given.workers > 1:
        measure_apart(given)
        given.minutes = 0.0
    rows: list[dict[str, Any]] = []
    for row in rows_of(given):
        rows.append(row)
        record = {"rows": rows, "scale": given.scale, "range_test_steps": TEST_STEPS, "workers": given.workers}
        record |= {"provenance": provenance()}
        (given.out / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    for page in given.page:
        update_page(page, MARKS[given.scale], record)


if __name__ == "__main__":
    main()
