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
from evenstep.study.transfer.measure import Curve, Training, curve_from_list, curve_to_list


class Ledger:
    """Hold the losses over learning rates of measured architectures, in a file of JSON lines, or in memory only.

    Later lines of an architecture add to earlier ones. A last line that was cut off is dropped.
    """

    def __init__(self, path: Path | None, data: str, training: Training) -> None:
        self.path, self.data, self.training = path, data, training
        self.curves: dict[str, Curve] = {}
        if path is not None and path.exists():
            self._read(path)

    def known(self, setting: Setting, architecture: Architecture) -> Curve:
        """Return what is known of an architecture."""
        return dict(self.curves.get(self._key(setting, architecture), {}))

    def note(self, setting: Setting, architecture: Architecture, curve: Curve) -> None:
        """Add what is new of a curve."""
        key = self._key(setting, architecture)
        before = self.curves.setdefault(key, {})
        new = {lr: losses for lr, losses in curve.items() if lr not in before}
        before |= new
        if not new or self.path is None:
            return
        line = {
            "key": key,
            "setting": asdict(setting),
            "architecture": asdict(architecture),
            "curve": curve_to_list(new),
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
                curve = curve_from_list(entry["curve"])
                self.curves.setdefault(entry["key"], {}).update(curve)
            except (ValueError, KeyError, TypeError):
                if number < len(lines):
                    raise StoreError(f"line {number} of the ledger '{path}' cannot be read; remove that line") from None
                path.write_text("\n".join([*lines[:-1], ""]))
