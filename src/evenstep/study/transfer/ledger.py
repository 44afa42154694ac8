"""What has been measured so far, one line a measurement: a benchmark that stops goes on where it was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenstep.errors import StoreError
from evenstep.search.provenance import provenance
from evenstep.study.transfer.families import Architecture, Setting
from evenstep.study.transfer.measure import (
    Known,
    Measured,
    Training,
    attempts_from_dict,
    attempts_to_dict,
    curve_from_list,
    curve_to_list,
)


class Ledger:
    """Hold the losses over learning rates of measured architectures, in a file of JSON lines, or in memory only.

    Later lines of an architecture add to earlier ones. A last line that was cut off is dropped.
    """

    def __init__(self, path: Path | None, data: str, training: Training) -> None:
        self.path, self.data, self.training = path, data, training
        self.entries: dict[str, Known] = {}
        if path is not None and path.exists():
            self._read(path)

    def known(self, setting: Setting, architecture: Architecture) -> Known:
        """Return what is known of an architecture."""
        return self.entries.get(self._key(setting, architecture), Known())

    def note(self, setting: Setting, measured: Measured) -> None:
        """Add what a measurement has that was not known."""
        key = self._key(setting, measured.architecture)
        before = self.entries.setdefault(key, Known())
        curve = {lr: losses for lr, losses in measured.curve.items() if lr not in before.curve}
        attempts = {name: one for name, one in measured.attempts.items() if name not in before.attempts}
        before.curve.update(curve)
        before.attempts.update(attempts)
        if self.path is None or not (curve or attempts):
            return
        line = {
            "key": key,
            "setting": asdict(setting),
            "architecture": asdict(measured.architecture),
            "curve": curve_to_list(curve),
            "rivals": attempts_to_dict(attempts),
            "provenance": provenance(),
        }
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise StoreError(f"the ledger '{self.path}' cannot be written ({error}); give another file") from None

    def _key(self, setting: Setting, architecture: Architecture) -> str:
        network: dict[str, Any] = asdict(architecture)
        del network["name"]  # two names of one network are one network
        known = [asdict(setting), network, self.data, asdict(self.training)]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:24]

    def _read(self, path: Path) -> None:
        lines = path.read_text().split("\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                entry = json.loads(line)
                known = self.entries.setdefault(entry["key"], Known())
                known.curve.update(curve_from_list(entry["curve"]))
                known.attempts.update(attempts_from_dict(entry.get("rivals", {})))
            except (ValueError, KeyError, TypeError):
                if number < len(lines):
                    raise StoreError(f"line {number} of the ledger '{path}' cannot be read; remove that line") from None
                path.write_text("\n".join([*lines[:-1], ""]))
