"""What has been measured so far, one line a measurement: a benchmark that stops goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from evenstep.search import plain_values
from evenstep.search.provenance import provenance
from evenstep_research.study import jsonl
from evenstep_research.study.record import Origin
from evenstep_research.study.transfer.families import Architecture, FamilySetting
from evenstep_research.study.transfer.measure import (
    Curve,
    Known,
    Measured,
    TransferTraining,
    attempts_from_dict,
    attempts_to_dict,
    curve_from_list,
    curve_to_list,
    layered,
)
from evenstep_research.study.transfer.rivals import Attempt


class MeasurementLedger:
    """Hold the losses over learning rates of measured architectures, in a file of JSON lines, or in memory only.

    Later lines of an architecture add to earlier ones: rates, and seeds at a rate. A last line that was cut off is
    dropped. `precision` is written beside new measurements.
    """

    def __init__(self, path: Path | None, data: str, precision: str | None = None) -> None:
        self.file, self.data, self.precision = jsonl.Lines(path), data, precision
        self.entries: dict[str, Known] = {}
        self.origins: dict[str, set[Origin]] = {}
        for key, curve, attempts, origin in self.file.read(_parsed):
            self._add(key, curve, attempts, origin)

    def known(self, setting: FamilySetting, architecture: Architecture, training: TransferTraining) -> Known:
        """Return what is known of an architecture, trained in one way, with so many seeds or fewer."""
        known = self.entries.get(self.key(setting, architecture, training), Known())
        return Known({lr: losses[: training.seeds] for lr, losses in known.curve.items()}, dict(known.attempts))

    def origin(self, setting: FamilySetting, architecture: Architecture, training: TransferTraining) -> set[Origin]:
        """Return where an architecture was measured."""
        return self.origins.get(self.key(setting, architecture, training), set())

    def note(self, setting: FamilySetting, measured: Measured, training: TransferTraining) -> None:
        """Add what a measurement has that was not known."""
        key = self.key(setting, measured.architecture, training)
        before = self.entries.setdefault(key, Known())
        curve = _longer(measured.curve, before.curve)
        attempts = {name: attempt for name, attempt in measured.attempts.items() if name not in before.attempts}
        if not (curve or attempts):
            return
        where = provenance() | {"precision": self.precision}
        self._add(key, curve, attempts, Origin.of(where))
        line = {
            "key": key,
            "setting": asdict(setting),
            "architecture": asdict(measured.architecture),
            "curve": curve_to_list(curve),
            "rivals": attempts_to_dict(attempts),
            "provenance": where,
        }
        self.file.append(line)

    def key(self, setting: FamilySetting, architecture: Architecture, training: TransferTraining) -> str:
        """Return what a measurement is found by: all that its losses follow from, the plan's numbers among them."""
        known = [_network(setting, architecture), self.data, _way(training)]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:24]

    def _add(self, key: str, curve: Curve, attempts: Mapping[str, Attempt], origin: Origin) -> None:
        known = self.entries.setdefault(key, Known())
        known.curve.update(_longer(curve, known.curve))
        known.attempts.update(attempts)
        self.origins.setdefault(key, set()).add(origin)


def _longer(curve: Curve, known: Curve) -> Curve:
    """Return the rates of a curve that have more seeds there than in one that is known."""
    return {lr: losses for lr, losses in curve.items() if len(losses) > len(known.get(lr, ()))}


def _parsed(entry: Any) -> tuple[str, Curve, dict[str, Attempt], Origin]:
    curve, attempts = curve_from_list(entry["curve"]), attempts_from_dict(entry.get("rivals", {}))
    return plain_values.text("key", entry["key"]), curve, attempts, Origin.of(entry["provenance"])


def _way(training: TransferTraining) -> dict[str, Any]:
    """Return what a training is, however many seeds get it: the losses of one do not depend on the others."""
    way = asdict(training)
    del way["seeds"], way["base_seeds"]
    return way


@lru_cache(maxsize=4096)
def _network(setting: FamilySetting, architecture: Architecture) -> list[Any]:
    """Return what a network starts and trains as; two names of one network are one network."""
    named: dict[str, Any] = asdict(architecture)
    del named["name"]
    usual = asdict(FamilySetting())
    added = ("classes", "rates")  # since the first lines were written: those have them as they are usually
    shared = {name: value for name, value in asdict(setting).items() if name not in added or value != usual[name]}
    plan = layered(setting, architecture)
    numbers = [[p.name, *(f"{number:.9g}" for number in (p.mean, p.std, p.lr_scale))] for p in plan.parameters]
    return [shared, named, numbers]
