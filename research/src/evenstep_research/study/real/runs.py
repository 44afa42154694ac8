"""Runs, named by all that their losses follow from, and the ledger of those that are measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from evenstep.search import plain_values
from evenstep.search.provenance import provenance
from evenstep_research.study import jsonl
from evenstep_research.study.record import Origin


@dataclass(frozen=True)
class Run:
    """Name one training run.

    `treatment` is `own` for torch's own start with one rate for all, `prodigy`, or the rule of a plan; `lr` is then the
    base's rate times a multiple and `plan` the plan's fingerprint, else empty. `setting` says what it trains on, and
    in what precision.
    """

    network: str
    optimizer: str
    steps: int
    seed: int
    treatment: str
    lr: float
    setting: str
    plan: str = ""

    @property
    def words(self) -> str:
        """The run's name, for people."""
        return (
            f"{self.network}, {self.optimizer}, {self.steps} steps, {self.treatment}, rate {self.lr:.4g}, "
            f"seed {self.seed}"
        )


class RealLedger:
    """Hold the losses of finished runs, in a file of JSON lines or in memory only.

    A loss is infinite where the run diverged. A last line that was cut off is dropped. Lines of other plans, settings
    or scales stay in the file and are asked for by nobody.
    """

    def __init__(self, path: Path | None) -> None:
        self.file, self.where = jsonl.Lines(path), provenance()
        self.losses: dict[Run, float] = {}
        self._origins: dict[Run, Origin] = {}
        for run, loss, origin in self.file.read(_parsed):
            self.losses[run], self._origins[run] = loss, origin

    def note(self, run: Run, loss: float, seconds: float) -> None:
        """Write a run down at once."""
        self.losses[run], self._origins[run] = loss, Origin.of(self.where)
        line = {**asdict(run), "loss": plain_values.finite_or_none(loss), "seconds": round(seconds, 3)}
        self.file.append(line | {"provenance": self.where})

    def origins(self, runs: Iterable[Run]) -> list[Origin]:
        """Return where runs were measured."""
        return sorted({self._origins[run] for run in runs})


def _parsed(line: Any) -> tuple[Run, float, Origin]:
    values = {field.name: line[field.name] for field in fields(Run)}
    values["lr"] = plain_values.finite("lr", values["lr"])
    for name in ("network", "optimizer", "treatment", "setting", "plan"):
        plain_values.text(name, values[name])
    for name in ("steps", "seed"):
        if type(values[name]) is not int:
            raise ValueError(f"{name} is {values[name]!r}, not a whole number")
    loss = plain_values.loss("loss", line["loss"])
    return Run(**values), loss, Origin.of(line["provenance"])
