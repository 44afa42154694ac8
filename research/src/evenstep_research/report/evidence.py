"""All that is claimed, on one page: every claim with its figure, interval, n, commit and command, limits next to it.

Figures come from records alone. What is written here is what each of them means and where it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from evenstep.report.marks import Marks
from evenstep.report.table import markdown_table
from evenstep_research.study.figures.catalogue import FIGURES
from evenstep_research.study.statistics import mean_and_p90

Record = Mapping[str, Any]
Records = Mapping[str, Record]  # by the folder in results/ and, for a file of another name, that name
_HEAD = ("claim", "figure", "95% interval", "n", "compare", "measured at commit")


@dataclass(frozen=True)
class Claim:
    """One line of the page: what is claimed, its figure, what to compare it with, and of how many it is."""

    text: str
    value: float | None
    n: int
    interval: tuple[float | None, float | None] = (None, None)
    compare: str = ""
    commits: tuple[str, ...] = ()
    form: str = "{:.3f}"

    def cells(self) -> list[str]:
        """Return the cells of the line."""
        low, high = self.interval
        known = low is not None and high is not None
        return [
            self.text,
            "–" if self.value is None else self.form.format(self.value),
            f"{self.form.format(low)} to {self.form.format(high)}" if known else "–",
            str(self.n),
            self.compare or "–",
            ", ".join(self.commits) or "not known",
        ]


@dataclass(frozen=True)
class Section:
    """Claims of one kind: how to measure them again, and their limits."""

    title: str
    page: str
    command: str
    limits: str
    claims: Callable[[Records], Iterator[Claim]]


def evidence(records: Records) -> str:
    """Return all sections; a record that is not there leaves its claims out, and a section says when it has none."""
    parts = []
    for section in SECTIONS:
        rows = [claim.cells() for claim in section.claims(records)]
        table = markdown_table(list(_HEAD), rows) if rows else "Not measured."
        parts.append(
            f"## {section.title}\n\n{table}\n\n**Limits.** {section.limits} More: [{section.page}]({section.page}).\n\n"
            f"`{section.command}`"
        )
    return "\n\n".join(parts)


MARKS: Marks = {"evidence": evidence}


def _of(figure: Mapping[str, float | None]) -> tuple[float | None, tuple[float | None, float | None]]:
    return figure["value"], (figure["low"], figure["high"])


def _commits(record: Record) -> tuple[str, ...]:
    """Return the commits that a record's figures were measured at, or that of the record itself."""
    places: Sequence[Mapping[str, Any]] = record.get("measured_on") or [record.get("provenance", {})]
    return tuple(dict.fromkeys(place["commit"] for place in places if place.get("commit")))


def _mean(text: str, values: Sequence[float], **more: Any) -> Claim:
    mean, _ = mean_and_p90(values)
    interval = (mean.low, mean.high) if len(values) > 1 else (None, None)
    return Claim(text, mean.value, len(values), interval, **more)


def _real(records: Records) -> Iterator[Claim]:
    kinds = {
        "full": "networks of torchvision and transformers, 1,500 steps",
        "million": "networks of a million parameters, 1,500 steps",
        "three-lines": "small networks, 200 steps, by the three lines",
    }
    for name, kind in kinds.items():
        if name not in records:
            continue
        rows = [row for row in records[name]["rows"] if row["evenstep"] is not None and row["tuned"] is not None]
        above = [row["evenstep"] - row["tuned"] for row in rows]
        commits = _commits(records[name])
        worst = max(zip(above, rows, strict=True), key=lambda pair: pair[0])
        compare = f"worst {worst[0]:+.3f} ({worst[1]['network']}, {worst[1]['optimizer']})"
        text = f"final loss minus that of the best single rate: {kind}"
        yield _mean(text, above, compare=compare, commits=commits, form="{:+.3f}")
        costs = [row["cost_steps"] / row["steps"] for row in rows if row["cost_steps"] is not None]
        yield _mean(f"steps the plan cost, of those of the training: {kind}", costs, commits=commits, form="{:.2f}")
    if "real-cpu" in records:
        results = records["real-cpu"]["results"]
        pairs = [(row["cells"]["plan"], row["cells"]["tuned"]) for row in results["rows"]]
        above = [plan["mean"] - tuned["mean"] for plan, tuned in pairs if plan and tuned]
        text = "final loss minus that of the best single rate: small networks, 200 steps, from a base of one block"
        yield _mean(text, above, commits=_commits(results), form="{:+.3f}")


def _transfer(records: Records) -> Iterator[Claim]:
    for name, where in (("transfer", "one epoch"), ("transfer-10-epochs", "ten epochs")):
        families = records[name]["results"]["families"] if name in records else []
        for one in families:
            if one["calibrates"] or one["setting"]["init"] != "conserve" or not one["n"]:
                continue
            value, interval = _of(one["methods"]["weighted"]["mean_regret"])
            constant = one["methods"]["constant"]["mean_regret"]["value"]
            searched = one["methods"]["searched"]["mean_regret"]["value"]
            text = f"mean regret, nats, {where}: {one['title'].removesuffix(', conserve')}"
            compare = f"the base's rate {constant:.3f}, its own rate searched {searched:.3f}"
            yield Claim(text, value, one["n"], interval, compare, _commits(one))


def _figures(records: Records) -> Iterator[Claim]:
    for figure in FIGURES:
        if record := records.get(figure.name):
            methods = record["results"]["methods"]
            value, interval = _of(methods["weighted"]["pearson"])
            paths, authors = (methods[name]["pearson"]["value"] for name in ("paths", "paths+2"))
            compare = (
                f"printed {figure.paper_r:.3f}; the paper's rates {paths:.3f}, with the authors' depth {authors:.3f}"
            )
            text = f"r of estimated and searched rates: {figure.titled(figure.data)}"
            yield Claim(text, value, record["results"]["n"], interval, compare, _commits(record["results"]))


def _one_rate(records: Records) -> Iterator[Claim]:
    for figure in FIGURES:
        if record := records.get(f"{figure.name}-one-rate"):
            methods = record["results"]["methods"]
            value, interval = _of(methods["weighted"]["mean_regret"])
            others = {
                "the base's rate": "constant",
                "the paper's method": "paths",
                "with the authors' depth": "paths+2",
            }
            compare = ", ".join(f"{say} {methods[name]['mean_regret']['value']:.3f}" for say, name in others.items())
            text = f"mean regret of our topology factor alone, nats: {figure.titled(figure.data)}"
            yield Claim(text, value, record["results"]["n"], interval, compare, _commits(record["results"]))


def _nas(records: Records) -> Iterator[Claim]:
    for one in records["nas"]["results"]["comparisons"] if "nas" in records else ():
        for versus in one["versus"]:
            if versus["protocol"] != "weighted" or "gain" not in versus:
                continue
            gain = versus["gain"]
            value, interval = _of(gain["gain"])
            epochs = one["setting"]["training"]["epochs"]
            compare = (
                f"median {gain['median']:+.2f}, largest of one cell {gain['largest']:+.2f}; better in {gain['better']}"
            )
            text = f"mean gain in points over `{versus['reference']}`, CIFAR-10, {epochs} epochs"
            yield Claim(text, value, versus["n"], interval, compare, _commits(one), "{:+.2f}")


def _external(records: Records) -> Iterator[Claim]:
    for one in records["external"]["results"]["targets"] if "external" in records else ():
        cells = next(
            (
                table["cells"]
                for table in records["external"]["results"]["tables"]
                if _is_of(table["name"], one["what"])
            ),
            0,
        )
        yield _claim(one, cells, _commits(records["external"]))


def _axes(records: Records) -> Iterator[Claim]:
    if "axes" not in records:
        return
    results = records["axes"]["results"]
    counted = {(line["axis"], line["optimizer"], line["rule"]): line["n"] for line in results["regrets"]}
    for one in results["targets"]:
        axis, _, optimizer = one["what"].partition(":")[0].partition(", ")
        rule = one["what"].split("`")[1]
        n = counted[axis, {"AdamW": "adam", "Muon": "muon"}.get(optimizer, "all"), rule]
        if one["measured"] is not None and one["limit"] is not None:
            yield _claim(one, n, _commits(results))


def _claim(target: Mapping[str, Any], n: int, commits: tuple[str, ...]) -> Claim:
    """Return what was asked, as a claim."""
    reached = "reached" if target["reached"] else "not reached"
    compare = f"target: {'below' if target['below'] else 'at most'} {target['limit']:.4f}, {reached}"
    return Claim(target["what"], target["measured"], n, (None, None), compare, commits, "{:.4f}")


def _is_of(table: str, what: str) -> bool:
    """Say whether a target is one of a table: both begin with its name."""
    return what.lower().startswith(table.lower()) or what.partition(":")[0].lower() == table.lower()


def _reading(records: Records) -> Iterator[Claim]:
    if sweep := records.get("sweep"):
        commits = tuple(sweep["commits"])
        n = sweep["n"]
        yield Claim(
            "kinds of transformers' models that are planned", sweep["planned"], n, commits=commits, form="{:.0f}"
        )
        text = "of these, with a healthy signal at the start"
        compare = f"without an allowance for tied tables: {sweep['healthy_unscaled']}"
        yield Claim(text, sweep["healthy"], sweep["planned"], compare=compare, commits=commits, form="{:.0f}")
    if fuzz := records.get("fuzz"):
        tried = sum(one["tried"] for one in fuzz["results"].values())
        internal = sum(one["internal"] for one in fuzz["results"].values())
        yield Claim(
            "errors that name no remedy, of random input", internal, tried, commits=_commits(fuzz), form="{:.0f}"
        )


def _speed(records: Records) -> Iterator[Claim]:
    for name, device in (("bench_search/h200", "a GPU"), ("bench_search/cpu", "a CPU")):
        if record := records.get(name):
            for case, values in record["results"].items():
                text = f"a loop's time over that of the search's engine, {device}: {case}"
                yield Claim(text, values["loop_over_engine"], 1, commits=_commits(record), form="{:.1f}")
    if record := records.get("bench_check"):
        values = list(record["results"]["check_over_read"].values())
        text = "time of `check` over that of reading the network, median"
        compare = f"largest {max(values):.2f}"
        yield Claim(text, median(values), len(values), compare=compare, commits=_commits(record), form="{:.2f}")


SECTIONS = (
    Section(
        "Networks that people train",
        "real.md",
        "python benchmarks/three_lines.py --data DIR --scale full --device cuda --ways tuned,evenstep",
        "Training loss, not test accuracy; below zero a plan is better, and the worst network is next to the mean. The "
        "best single rate is known in hindsight only, from rates an octave apart, at torch's own start. One seed at "
        "1,500 steps, and no blind test: short runs were settled on curves of these networks.",
        _real,
    ),
    Section(
        "A rate searched on a base, transferred",
        "transfer.md",
        "evenstep study transfer --scale full --data DIR --out results/transfer",
        "Records of earlier rules than today's. One epoch unless said; ten epochs on shallow networks only. Widths and "
        "depths of studies, not of products. Intervals are over the networks of a family.",
        _transfer,
    ),
    Section(
        "The paper's figures",
        "reproduction.md",
        "evenstep study NAME --scale paper --data DIR --out results/NAME",
        "Estimates of one rate, under the paper's initialisation and our layer factors for every method. Below the "
        "printed r on random ReLU MLPs and on both kinds of CNNs, with wide intervals. ImageNet was not run.",
        _figures,
    ),
    Section(
        "At one rate for all layers",
        "reproduction.md",
        "evenstep study NAME --scale paper --data DIR --rates one --out results/NAME-one-rate",
        "The paper's way of training. Our topology factor is not meant to be used without layer factors: on GELU "
        "chains it loses to keeping the base's rate, on random DAGs to the paper's method.",
        _one_rate,
    ),
    Section(
        "NAS-Bench-201",
        "nasbench201.md",
        "evenstep nas train --data DIR --codes codes.txt --out results/nas; evenstep nas compare results/nas",
        "Means are those of a few cells: read the median next to each. The cells were looked at while the plan was "
        "mended. At 200 epochs few cells and one seed; comparisons that are not listed were not run, the paper's "
        "protocol at 200 epochs among them. CIFAR-10 only.",
        _nas,
    ),
    Section(
        "Width, depth, batch and length",
        "axes.md",
        "evenstep study axes --scale cpu --data DIR --out results/axes",
        "Networks of 32 to 128 units and trainings of 100 to 1,200 steps, one or two seeds, rates an octave apart: a "
        "regret of zero is one that this cannot show. The rules for batch and length were settled on these lines. The "
        "scale `full`, for a GPU, was not run.",
        _axes,
    ),
    Section(
        "Tables that others measured",
        "external.md",
        "evenstep study external --data DIR --out results/external",
        "n is the number of cells in the table. Targets were set before the study was written.",
        _external,
    ),
    Section(
        "Reading networks",
        "traced.md",
        "python benchmarks/sweep_transformers.py --out results/sweep; python benchmarks/fuzz.py",
        "Tiny sizes; a healthy signal at the start says nothing about training.",
        _reading,
    ),
    Section(
        "Speed",
        "search.md",
        "python benchmarks/bench_search.py; python benchmarks/bench_check.py",
        "One machine each, medians over a few repeats, an earlier engine than today's.",
        _speed,
    ),
)
