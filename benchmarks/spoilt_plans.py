"""Measure whether `refine` finds the way back: plans whose rates were spoilt by factors of 1/8 to 8.

    python benchmarks/spoilt_plans.py --data DIR [--networks 'gpt2*'] [--out results/spoilt-plans]

The networks are those of `evenstep study real --scale cpu`. The best multiple of a plan is the minimum of a parabola
through the losses of whole trainings, an octave apart until the best has both neighbours. `refine` sees the spoilt plan
and the data. Plans are spoilt by powers of two, so refinements of one network try the same rates: each short run is
trained once. Every result is a line of the ledger, so that a measurement that was stopped continues.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ledger import Ledger
from short_runs import FIRST, missing
from three_lines import loss_of, tensors_of

import evenstep as es
from evenstep.search import LocalEngine, plain_values
from evenstep.search.engines.batching import Batching
from evenstep.search.fields import Data
from evenstep.search.grid import OCTAVE, parabola_minimum
from evenstep.search.job import Job, Trial
from evenstep.search.replicas import TrialResult
from evenstep_research.study.real.scales import CPU, Row, rows_at
from evenstep_research.study.real.training import Batches, train
from evenstep_research.study.record import write_record

SPOILT = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)
NEAR = 0.5  # octaves
CENTRES = {"adam": 0.004, "momentum": 0.05}  # where octaves begin, in rates of one-block bases
SEEDS = 2
RUN = ("network", "optimizer", "steps", "octave", "seed", "spoilt")  # what tells runs apart


@dataclass(frozen=True)
class SharedRuns:
    """Train on one core what no refinement of the same network has trained at the same rates, `spoilt` included."""

    spoilt: float
    known: dict[tuple[float, int], TrialResult]
    engine: LocalEngine = field(default_factory=lambda: LocalEngine(workers=1))

    def choose(self, job: Job, data: Data, trials: Sequence[Trial]) -> Batching:
        return self.engine.choose(job, data, trials)

    def run(
        self, job: Job, data: Data, trials: Sequence[Trial], batching: Batching | None = None
    ) -> Iterator[TrialResult]:
        wanted = [trial for trial in trials if self.key(trial) not in self.known]
        for result in self.engine.run(job, data, wanted, batching) if wanted else ():
            self.known[self.key(result.trial)] = result
        for trial in trials:
            yield replace(self.known[self.key(trial)], trial=trial)

    def key(self, trial: Trial) -> tuple[float, int]:
        return trial.lr * self.spoilt, trial.seed

    def close(self) -> None:
        self.engine.close()


@dataclass(frozen=True)
class Spoilt:
    """One network and optimiser, its data, and where runs are noted."""

    row: Row
    batches: Batches
    ledger: Ledger
    known: dict[tuple[float, int], TrialResult] = field(default_factory=dict)

    @property
    def names(self) -> dict[str, Any]:
        return {"network": self.row.network.name, "optimizer": self.row.optimizer, "steps": self.row.steps}

    def made(self, seed: int) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.row.network.make()

    @cached_property
    def plan(self) -> es.Plan:
        network = self.row.network
        base = es.trace(CPU.bases[network.kind].make(), network.example())
        options: dict[str, Any] = {"base_graph": base, "optimizer": self.row.optimizer}
        return es.plan(self.made(0), network.example(), base=CENTRES[self.row.optimizer], **options)

    def loss(self, octave: int) -> float:
        """Return the mean loss of whole trainings at a multiple of the plan."""
        losses = []
        for seed in range(SEEDS):

            def measure(seed: int = seed) -> dict[str, Any]:
                model = self.made(seed)
                es.initialize_(model, self.plan, generator=torch.Generator().manual_seed(seed))
                optimizer = self.plan.scale("*", 2.0**octave).optimizer(model)
                loss = train(model, optimizer, self.batches, steps=self.row.steps, seed=seed)
                return {"loss": plain_values.finite_or_none(loss)}

            loss = self.ledger.measured(self.names | {"octave": octave, "seed": seed}, measure)["loss"]
            losses.append(plain_values.loss("the loss", loss))
        return sum(losses) / SEEDS

    def best_octave(self) -> tuple[float, dict[int, float]]:
        losses: dict[int, float] = {}
        while wanted := missing(losses):
            losses |= {octave: self.loss(octave) for octave in wanted}
        minimum = parabola_minimum({OCTAVE * octave: loss for octave, loss in losses.items()})
        assert minimum is not None
        return minimum / OCTAVE, losses

    def refined(self, spoilt: float) -> dict[str, Any]:
        """Return what a refinement makes of a spoilt plan, as the octave of the plan as it was."""

        def measure() -> dict[str, Any]:
            found = es.refine(
                self.made(0),
                self.plan.scale("*", spoilt),
                tensors_of(self.batches),
                train_steps=self.row.steps,
                batch_size=self.batches.size,
                loss=loss_of,
                engine=SharedRuns(spoilt, self.known),
                progress=False,
            )
            octaves = [math.log2(multiple * spoilt) for multiple in (found.multiple, *found.interval)]
            rates = [math.log2(rate / self.plan.base) for rate in found.search.grid if self.plan.base]
            runs = {"octaves": rates, "losses": list(found.search.mean_losses), "untrained": found.search.untrained}
            return {"came_to": octaves[0], "interval": octaves[1:], "words": str(found), "runs": runs}

        return self.ledger.measured(self.names | {"spoilt": spoilt}, measure)


def row_of(bench: Spoilt) -> dict[str, Any]:
    """Return the best octave of a network's plan, and where refinements of its spoilt plans came out."""
    best, losses = bench.best_octave()
    found = {spoilt: bench.refined(spoilt) for spoilt in SPOILT}
    tried = sorted(losses)
    lost = {s: float(np.interp(line["came_to"], tried, [losses[o] for o in tried])) for s, line in found.items()}
    return bench.names | {
        "best_octave": round(best, 3),
        "losses": {str(octave): losses[octave] for octave in sorted(losses)},
        "away": {f"{spoilt:g}": round(line["came_to"] - best, 3) for spoilt, line in found.items()},
        "lost": {f"{spoilt:g}": round(loss - min(losses.values()), 4) for spoilt, loss in lost.items()},
        "holds_best": {f"{s:g}": line["interval"][0] <= best <= line["interval"][1] for s, line in found.items()},
    }


def main() -> None:
    """Measure what is asked for, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--networks", default="*")
    parser.add_argument("--out", type=Path, default=Path("results/spoilt-plans"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    ledger = Ledger(given.out / "ledger.jsonl", RUN)
    loaded = {kind: source.load(torch.device("cpu"), given.data) for kind, source in CPU.sources.items()}
    rows = []
    for row in rows_at(CPU, networks=given.networks.split(",")):
        rows.append(row_of(Spoilt(row, loaded[row.network.data], ledger)))
        away = [abs(octaves) for row in rows for octaves in row["away"].values()]
        print(f"{sum(octaves <= NEAR for octaves in away)} of {len(away)} within half an octave", flush=True)
    config = {"scale": CPU.name, "spoilt": SPOILT, "seeds": SEEDS, "first_octaves": list(FIRST)}
    away = [abs(octaves) for row in rows for octaves in row["away"].values()]
    near = {"refinements": len(away), "within_half_an_octave": sum(octaves <= NEAR for octaves in away)}
    write_record(given.out / "record.json", config=config, results=near | {"rows": rows})


if __name__ == "__main__":
    main()
