"""Compare protocols over the runs of ledgers, with each other and with the published table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import InputError
from evenstep_research.study.nas.algorithms import rerank, run_searches
from evenstep_research.study.nas.analysis import agreement, kendall_tau, mean_gain, pairwise_gaps, tau_curve
from evenstep_research.study.nas.ledger import LedgerRow, read
from evenstep_research.study.nas.table import CLASSES, NasBench201Table
from evenstep_research.study.statistics import Array

REFERENCES = ("benchmark", "constant-tuned", "mup", "paper")
SEARCHES = 50  # seeds of every search algorithm


@dataclass(frozen=True, eq=False)
class Results:
    """Hold one protocol's accuracies in percent by cell, each over the same seeds."""

    label: str
    protocol: Mapping[str, Any]
    accuracies: Mapping[str, tuple[float, ...]]
    diverged: int
    notes: Mapping[str, str]

    @property
    def means(self) -> dict[str, float]:
        """The mean over seeds by cell."""
        return {code: float(np.mean(values)) for code, values in self.accuracies.items()}

    def matrix(self, codes: Sequence[str]) -> Array:
        """Return accuracies [cells, seeds], of the seeds that all these cells have."""
        seeds = min(len(self.accuracies[code]) for code in codes)
        return np.array([self.accuracies[code][:seeds] for code in codes], dtype=float)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Hold the results of all protocols in one setting, the columns of the table that go with it, and its origin."""

    setting: Mapping[str, Any]
    results: Mapping[str, Results]
    published: Mapping[str, float]
    seen: Mapping[str, float]
    counts: Mapping[str, tuple[int, int | None]]
    tuned: Sequence[Mapping[str, Any]]
    origins: Sequence[Mapping[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return every figure as plain values."""
        return {
            "setting": dict(self.setting),
            "protocols": {label: self._summary(results) for label, results in self.results.items()},
            "versus": [self._versus(*pair) for pair in self._pairs()],
            "table": {label: self._against_table(results) for label, results in self.results.items() if self.published},
            "parameters": self._parameters(),
            "tuned": list(self.tuned),
            "measured_on": list(self.origins),
            "runs": [
                {
                    "code": code,
                    "published": self.published.get(code),
                    **{label: list(results.accuracies.get(code, ())) for label, results in self.results.items()},
                }
                for code in self.codes
            ],
        }

    @property
    def codes(self) -> list[str]:
        """All cells, from the lowest accuracy of the table, or of the first protocol, to the highest."""
        every = dict.fromkeys(code for results in self.results.values() for code in results.accuracies)
        means = next(iter(self.results.values())).means
        return sorted(every, key=lambda code: (self.published.get(code, means.get(code, 0.0)), code))

    def shared(self, *tables: Mapping[str, Any]) -> list[str]:
        """Return the cells that all tables have."""
        return [code for code in self.codes if all(code in table for table in tables)]

    def _pairs(self) -> list[tuple[str, str]]:
        """Return every reference with those that come after it: the benchmark with all, others with fewer."""
        pairs, done = [], set()
        for name in REFERENCES:
            references = [label for label, results in self.results.items() if results.protocol["name"] == name]
            done.update(references)
            pairs += [(reference, label) for reference in references for label in self.results if label not in done]
        return pairs

    def _summary(self, results: Results) -> dict[str, Any]:
        values = list(results.means.values())
        return {
            "protocol": dict(results.protocol),
            "n": len(values),
            "seeds": sorted({len(runs) for runs in results.accuracies.values()}),
            "mean": float(np.mean(values)),
            "diverged": results.diverged,
            "notes": dict(results.notes),
        }

    def _versus(self, reference: str, label: str) -> dict[str, Any]:
        """Compare a protocol with a reference on the cells that both trained."""
        theirs, ours = self.results[reference], self.results[label]
        codes = self.shared(theirs.means, ours.means)
        figures: dict[str, Any] = {"reference": reference, "protocol": label, "n": len(codes)}
        if not codes:
            return figures
        x, y = ([results.means[code] for code in codes] for results in (theirs, ours))
        figures["gain"] = mean_gain(y, x).to_dict()
        if len(codes) < 2:
            return figures
        # The top of the table's ranking where all have a place there: what is compared must not choose its own top.
        ranking = [self.published.get(code) for code in codes]
        order = x if None in ranking else [value for value in ranking if value is not None]
        figures["ranked_by"] = "the reference" if None in ranking else "the table"
        figures["tau"] = [point.to_dict() for point in tau_curve(x, y, ranking=order)]
        figures["gaps"] = {reference: pairwise_gaps(x).to_dict(), label: pairwise_gaps(y).to_dict()}
        runs = {results.label: results.matrix(codes) for results in (theirs, ours)}
        figures["agreement"] = [point.to_dict() for point in agreement(runs, ranking=order)]
        return figures

    def _against_table(self, results: Results) -> dict[str, Any]:
        """Compare a protocol with the published figures: differences, ranking, and what searches would make of it."""
        codes = self.shared(results.means, self.published)
        if not codes:
            return {"n": 0}
        ours, theirs = (np.array([values[code] for code in codes]) for values in (results.means, self.published))
        figures: dict[str, Any] = {
            "n": len(codes),
            "mean_absolute_difference": float(np.abs(ours - theirs).mean()),
            "mean_difference": float((ours - theirs).mean()),
            "kendall": kendall_tau(ours, theirs),
            "tau": [point.to_dict() for point in tau_curve(theirs, ours)] if len(codes) > 1 else [],
            "gain": mean_gain(ours, theirs).to_dict(),
        }
        if len(codes) > 2:
            seen = {code: self.seen.get(code, self.published[code]) for code in codes}
            searches = run_searches(seen, budget=max(len(codes) // 2, 2), seeds=range(SEARCHES))
            before = {code: self.published[code] for code in codes}
            after = {code: results.means[code] for code in codes}
            ranked = rerank(searches, before, after)
            figures["searches"] = {
                "tau": ranked.tau,
                "distinct": ranked.distinct,
                "standings": [standing.to_dict() for standing in ranked.standings],
                "best_before": max(before, key=before.__getitem__),
                "best_after": max(after, key=after.__getitem__),
            }
        return figures

    def _parameters(self) -> dict[str, Any]:
        """Count the cells whose network has as many parameters as the table says."""
        known = {code: pair for code, pair in self.counts.items() if pair[1] is not None}
        wrong = {code: list(pair) for code, pair in known.items() if pair[0] != pair[1]}
        return {"n": len(known), "equal": len(known) - len(wrong), "different": wrong}


def compare(entries: Iterable[LedgerRow], table: NasBench201Table | None = None) -> list[Comparison]:
    """Return a comparison for every setting that the runs were trained in, those of more cells first.

    A protocol that was run at several rates stands once for each. Runs that searched a base's rate do not count.
    """
    settings: dict[str, list[LedgerRow]] = {}
    tuning: dict[str, list[LedgerRow]] = {}
    for entry in entries:
        group = tuning if entry.tuning else settings
        group.setdefault(json.dumps(entry.setting, sort_keys=True), []).append(entry)
    if not settings:
        raise InputError("the ledgers hold no run to compare; train some with evenstep nas train")
    comparisons = [_compared(group, table, _tuned(tuning)) for group in settings.values()]
    return sorted(comparisons, key=lambda comparison: -len(comparison.codes))


def entries_in(folder: Path) -> list[LedgerRow]:
    """Return the runs of all ledgers in a folder and those below it, each once."""
    paths = sorted(folder.rglob("*.jsonl")) if folder.is_dir() else [folder]
    if not paths:
        raise InputError(f"there is no ledger in '{folder}'; give the folder that evenstep nas train wrote to")
    return list({entry.name: entry for path in paths for entry in read(path)}.values())


def _compared(
    entries: Sequence[LedgerRow], table: NasBench201Table | None, tuned: Sequence[Mapping[str, Any]]
) -> Comparison:
    setting = entries[0].setting
    dataset, epochs = setting["data"].replace("-", "_"), setting["training"]["epochs"]
    published: Mapping[str, float] = {}
    seen: Mapping[str, float] = {}
    counts: dict[str, int] = {}
    whole = (setting["shape"]["channels"], setting["shape"]["cells"]) == (16, 5)
    if table is not None and dataset in CLASSES and whole:
        published, seen = (_column(table, dataset, epochs, split) for split in ("test", "valid"))
        counts = {c: int(n) for c, n in zip(table.codes, table.parameters.get(dataset, ()), strict=False)}
    labels = _labels(entries)
    by_label: dict[str, list[LedgerRow]] = {}
    for entry in entries:
        by_label.setdefault(labels[_protocol(entry)], []).append(entry)
    origins = {_origin(entry): None for entry in entries}
    return Comparison(
        setting=setting,
        results={label: _results(label, rows) for label, rows in sorted(by_label.items(), key=_place)},
        published=published,
        seen=seen,
        counts={entry.code: (entry.parameters, counts.get(entry.code)) for entry in entries},
        tuned=[search for search in tuned if search["data"] == setting["data"] and search["shape"] == setting["shape"]],
        origins=[json.loads(origin) for origin in sorted(origins)],
    )


def _column(table: NasBench201Table, dataset: str, epochs: int, split: str) -> Mapping[str, float]:
    try:
        return table.by_code(dataset, epochs=epochs, split=split)
    except InputError:
        return {}


def _results(label: str, entries: Sequence[LedgerRow]) -> Results:
    by_code: dict[str, dict[int, LedgerRow]] = {}
    for entry in entries:
        by_code.setdefault(entry.code, {})[entry.seed] = entry
    return Results(
        label,
        entries[0].protocol,
        {code: tuple(by_seed[seed].outcome.accuracy for seed in sorted(by_seed)) for code, by_seed in by_code.items()},
        sum(entry.outcome.diverged for entry in entries),
        {entry.code: entry.note for entry in entries},
    )


def _labels(entries: Sequence[LedgerRow]) -> dict[str, str]:
    """Return a name for every protocol: its own, with the rate behind it where there are several of that name."""
    of: dict[str, dict[str, float]] = {}
    for entry in entries:
        of.setdefault(entry.protocol["name"], {})[_protocol(entry)] = entry.protocol["lr"]
    return {
        text: name if len(rates) == 1 else f"{name} {lr:.4g}"
        for name, rates in of.items()
        for text, lr in rates.items()
    }


def _protocol(entry: LedgerRow) -> str:
    return json.dumps(entry.protocol, sort_keys=True)


def _place(labelled: tuple[str, Sequence[LedgerRow]]) -> tuple[int, str]:
    order = ("benchmark", "constant-tuned", "paper", "mup", "weighted")
    name = labelled[1][0].protocol["name"]
    return (order.index(name) if name in order else len(order)), labelled[0]


def _origin(entry: LedgerRow) -> str:
    where = entry.provenance
    known = {
        "device": where.get("device"),
        "torch": where.get("versions", {}).get("torch"),
        "commit": where.get("commit"),
        "precision": where.get("precision"),
    }
    return json.dumps(known, sort_keys=True)


def _tuned(tuning: Mapping[str, Sequence[LedgerRow]]) -> list[dict[str, Any]]:
    """Return the losses at every rate that was tried on a base cell, by protocol and setting."""
    searches = []
    for entries in tuning.values():
        for name in dict.fromkeys(entry.protocol["name"] for entry in entries):
            losses: dict[float, list[float]] = {}
            for entry in entries:
                if entry.protocol["name"] == name:
                    losses.setdefault(entry.protocol["lr"], []).append(entry.outcome.train_losses[-1])
            setting = entries[0].setting
            tried = [
                [lr, float(np.mean(seed_losses)) if np.isfinite(seed_losses).all() else None]
                for lr, seed_losses in sorted(losses.items())
            ]
            searches.append(
                {
                    "protocol": name,
                    "base": next(entry.code for entry in entries if entry.protocol["name"] == name),
                    "epochs": setting["training"]["epochs"],
                    "data": setting["data"],
                    "shape": setting["shape"],
                    "losses": tried,
                }
            )
    return searches
