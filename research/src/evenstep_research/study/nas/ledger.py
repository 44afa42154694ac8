"""What has been trained so far, one line a run: a sweep that stops goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from evenstep.search import plain_values
from evenstep.search.provenance import provenance
from evenstep_research.study import jsonl
from evenstep_research.study.nas.captured import TrainingResult
from evenstep_research.study.nas.protocols import NetworkShape, TrainingProtocol, Treatment
from evenstep_research.study.nas.training import SweepTraining


@dataclass(frozen=True)
class SweepSetting:
    """Say what all runs of a sweep share: the networks' shape, the training, and the data set."""

    shape: NetworkShape
    training: SweepTraining
    data: str


@dataclass(frozen=True)
class Run:
    """Name one run: a cell by its digits, a protocol and a seed; `tuning` marks those that search a base's rate."""

    code: str
    protocol: TrainingProtocol
    seed: int
    tuning: bool = False


@dataclass(frozen=True)
class LedgerRow:
    """One line of a ledger, as far as it is read."""

    key: str
    code: str
    seed: int
    protocol: Mapping[str, Any]
    tuning: bool
    setting: Mapping[str, Any]
    outcome: TrainingResult  # as the ledger's lines call it
    parameters: int
    note: str
    provenance: Mapping[str, Any]

    @property
    def name(self) -> tuple[str, str, bool]:
        """What tells runs apart that trained alike."""
        return self.key, self.protocol["name"], self.tuning

    def to_dict(self) -> dict[str, Any]:
        """Return the line as plain values; a loss that is not finite is None."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "outcome"}
        outcome = asdict(self.outcome)
        outcome["test_loss"] = plain_values.finite_or_none(self.outcome.test_loss)
        outcome["train_losses"] = [plain_values.finite_or_none(loss) for loss in self.outcome.train_losses]
        return {**values, "outcome": outcome}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LedgerRow:
        """Read a line."""
        given = plain_values.mapping("outcome", values["outcome"])
        losses = tuple(
            plain_values.loss("a loss", loss) for loss in plain_values.sequence("train_losses", given["train_losses"])
        )
        accuracy, seconds = (plain_values.finite(name, given[name]) for name in ("accuracy", "seconds"))
        outcome = TrainingResult(accuracy, plain_values.loss("test_loss", given["test_loss"]), losses, seconds)
        for name in ("key", "code", "note"):
            plain_values.text(name, values[name])
        for name in ("protocol", "setting", "provenance"):
            plain_values.mapping(name, values[name])
        if type(values["tuning"]) is not bool or type(values["seed"]) is not int:
            raise ValueError(f"tuning is {values['tuning']!r} and seed {values['seed']!r}")
        plain_values.text("the protocol's name", values["protocol"]["name"])
        return cls(**{**values, "outcome": outcome})


class RunLedger:
    """Hold finished runs, in a file of JSON lines or in memory only; a last line that was cut off is dropped."""

    def __init__(self, path: Path | None) -> None:
        self.file = jsonl.Lines(path)
        self.entries: dict[tuple[str, str, bool], LedgerRow] = {}
        self.by_key: dict[str, LedgerRow] = {}
        for entry in self.file.read(LedgerRow.from_dict):
            self._keep(entry)

    def known(self, run: Run, setting: SweepSetting) -> LedgerRow | None:
        """Return a run's line; one that another protocol trained alike is written down for this one too."""
        key = key_of(run, setting)
        if entry := self.entries.get((key, run.protocol.name, run.tuning)):
            return entry
        alike = self.by_key.get(key)
        return alike and self._add(self._entry(run, setting, alike.outcome, alike.provenance))

    def note(self, run: Run, setting: SweepSetting, result: TrainingResult, **where: Any) -> LedgerRow:
        """Write a run down."""
        return self._add(self._entry(run, setting, result, provenance() | where))

    def _entry(self, run: Run, setting: SweepSetting, result: TrainingResult, where: Mapping[str, Any]) -> LedgerRow:
        return LedgerRow(
            key=key_of(run, setting),
            code=run.code,
            seed=run.seed,
            protocol=run.protocol.to_dict(),
            tuning=run.tuning,
            setting=asdict(setting),
            outcome=result,
            parameters=setting.shape.parameters(run.code),
            note=treatment_of(run.protocol, run.code, setting.shape).note,
            provenance=where,
        )

    def _keep(self, entry: LedgerRow) -> None:
        self.entries[entry.name] = entry
        self.by_key.setdefault(entry.key, entry)

    def _add(self, entry: LedgerRow) -> LedgerRow:
        self._keep(entry)
        self.file.append(entry.to_dict())
        return entry


def read(path: Path) -> Iterator[LedgerRow]:
    """Yield a ledger's lines."""
    return jsonl.read(path, LedgerRow.from_dict)


def key_of(run: Run, setting: SweepSetting) -> str:
    """Return what a run is found by: all that its result follows from, every parameter's numbers among it."""
    numbers = treatment_of(run.protocol, run.code, setting.shape).numbers()
    known = [run.code, numbers, asdict(setting), run.seed]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:24]


@lru_cache(maxsize=4096)
def treatment_of(protocol: TrainingProtocol, code: str, shape: NetworkShape) -> Treatment:
    """Return a protocol's treatment of a cell, made once."""
    return protocol.treatment(code, shape)
