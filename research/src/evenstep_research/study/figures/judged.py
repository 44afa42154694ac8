"""A recorded figure judged again: the paper's depths, and its rates in every reading, from the losses that were kept.

Nothing is trained. The searched rates, and the losses at rates that were trained, are the record's; the loss at any
other rate lies between the measured losses next to it.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.errors import InputError
from evenstep_research.study import jsonl, statistics
from evenstep_research.study.transfer.measure import Curve, Measured, curve_from_list, loss_between

BASE_CODE = "2"  # one hidden layer between the layers of input and output: the paper's L = 3
# The authors' code adds 3 to the weights between input and output layer on every path, but takes 3 for the base, which
# has one such weight: the target that is the base itself would get another rate than the base.
AUTHORS = "authors"
AUTHORS_OVER_OFFSET = math.sqrt(3**3 / 4**3)
JUDGED = ("constant", "paths", "paths+2", AUTHORS, "weighted")


@dataclass(frozen=True)
class JudgedNetwork:
    """One network of a record: its searched rate, and rate and loss of every method."""

    name: str
    true_lr: float
    picks: Mapping[str, tuple[float, float]]
    measured: Measured

    def regret(self, method: str) -> float:
        """Return how much a method's rate loses to the best, in nats."""
        return self.measured.regret(self.picks[method][1])


def judged(folder: Path) -> dict[str, Any]:
    """Return the record of a figure's folder with the methods of `JUDGED`, chains by the paper's count of layers.

    Records made before chains were counted by layers lack the shortest chain, which is the base, and have one that is
    longer than the paper's longest: the base is added, from its own search, and the longest left out.
    """
    try:
        record: dict[str, Any] = json.loads((folder / "record.json").read_text())
        networks = _networks(folder, record["results"], record["config"]["training"]["seeds"])
    except FileNotFoundError as error:
        raise InputError(f"the record in '{folder}' has no file '{Path(error.filename).name}'; run it anew") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the record in '{folder}' cannot be read ({error}); remove it, or run it anew") from None
    true = [network.true_lr for network in networks]
    methods = {
        name: statistics.to_dict(
            statistics.summary(
                true,
                [network.picks[name][0] for network in networks],
                [network.regret(name) for network in networks],
            )
        )
        for name in JUDGED
    }
    return {**record, "results": {**record["results"], "n": len(networks), "methods": methods}}


def _networks(folder: Path, results: Mapping[str, Any], seeds: int) -> list[JudgedNetwork]:
    curves = _curves(folder / "ledger.jsonl")
    classes = results["setting"]["classes"]
    with (folder / "table.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["true_lr"]]
    networks = [_of_row(row, curves[row["code"], int(row["kernel_size"])], classes) for row in rows]
    if results["study"].endswith("-depth") and all(row["code"] != BASE_CODE for row in rows):
        kept = {lr: losses[:seeds] for lr, losses in curves[BASE_CODE, 3].items()}
        networks = [_base(results["base_lr"], kept, classes), *networks[:-1]]
    return networks


def _of_row(row: Mapping[str, str], curve: Curve, classes: int) -> JudgedNetwork:
    measured = _measured(curve, classes)
    picks = {
        name: (float(row[f"{name} lr"]), float(row[f"{name} loss"] or math.inf)) for name in JUDGED if name != AUTHORS
    }
    rate = AUTHORS_OVER_OFFSET * picks["paths+2"][0]
    picks[AUTHORS] = rate, loss_between(curve, rate)
    return JudgedNetwork(row["name"], float(row["true_lr"]), picks, measured)


def _base(rate: float, curve: Curve, classes: int) -> JudgedNetwork:
    """Return the base as a network of its own: its searched rate is what every method but the authors' code picks."""
    picks = dict.fromkeys(JUDGED, (rate, loss_between(curve, rate)))
    lower = AUTHORS_OVER_OFFSET * rate
    picks[AUTHORS] = lower, loss_between(curve, lower)
    return JudgedNetwork("L = 3", rate, picks, _measured(curve, classes))


def _measured(curve: Curve, classes: int) -> Measured:
    from evenstep_research.study.transfer.families import Architecture

    return Measured(Architecture("", BASE_CODE), "ok", None, curve, {}, {}, classes)


def _curves(path: Path) -> dict[tuple[str, int], Curve]:
    """Return the losses over rates by code and kernel; later lines add rates, and seeds at a rate."""
    curves: dict[tuple[str, int], Curve] = {}
    for (code, kernel), curve in jsonl.read(path, _parsed):
        known = curves.setdefault((code, kernel), {})
        known.update({lr: losses for lr, losses in curve.items() if len(losses) > len(known.get(lr, ()))})
    return curves


def _parsed(entry: Any) -> tuple[tuple[str, int], Curve]:
    network = entry["architecture"]
    return (network["code"], network["kernel_size"]), curve_from_list(entry["curve"])
