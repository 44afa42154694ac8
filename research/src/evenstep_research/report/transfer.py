"""The transfer benchmark shown: pictures of predicted against searched rates, and tables in Markdown and CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from evenstep.report.marks import Marks
from evenstep.report.page.parts import StudyPart
from evenstep.report.table import markdown_table
from evenstep_research.study.transfer.benchmark import FamilyResult

COLOURS = {"constant": "#8a8a8a", "paths": "#c9702b", "paths+2": "#5f8f3e", "weighted": "#1b6ca8"}
MARKERS = {"constant": "s", "paths": "^", "paths+2": "v", "weighted": "o"}


def study_part(result: FamilyResult) -> StudyPart:
    """Return a family's result as `es.write_report` shows it, every network's rates with it."""
    return StudyPart("", (result.to_dict(),), rows=tuple(result.rows()))


def draw_transfer(result: FamilyResult, path: Path) -> None:
    """Write the picture of a family: every method's rate over the searched one; on the line they are equal."""
    figure = Figure(figsize=(5.6, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    true = [one.true_lr for one in result.known if one.true_lr is not None]
    shown = {name: [one.choices[name].lr for one in result.known] for name in COLOURS if result.known}
    every = [*true, *(rate for rates in shown.values() for rate in rates)]
    for name, rates in shown.items():
        axes.plot(
            true,
            rates,
            MARKERS[name],
            color=COLOURS[name],
            markersize=5,
            alpha=0.75,
            markeredgewidth=0,
            label=name,
        )
    if every:
        ends = min(every) / 1.3, max(every) * 1.3
        axes.plot(ends, ends, "-", color="#444444", linewidth=0.8, zorder=0)
        axes.fill_between(
            ends, [end / 2 for end in ends], [end * 2 for end in ends], color="#444444", alpha=0.07, linewidth=0
        )
        axes.set(xlim=(min(true) / 1.3, max(true) * 1.3), ylim=ends)
        axes.legend(frameon=False, fontsize=8)
    log_axes(axes)
    axes.set(xlabel="searched learning rate", ylabel="learning rate from the base alone")
    axes.set_title(f"{result.family.title} (n = {len(true)}; band: a factor of 2)", fontsize=9, loc="left")
    figure.savefig(path, dpi=130)


def log_axes(axes: Axes) -> None:
    """Show rates on both axes: logarithms, labelled with plain numbers."""
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write every architecture of all families as one row of a CSV file."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def markdown(record: Mapping[str, Any]) -> str:
    """Return a record's tables: mean regrets at a glance, all figures, rivals, drift over width, what has no truth."""
    families: list[dict[str, Any]] = record["results"]["families"]
    judged = [one for one in families if not one["calibrates"]]
    fitted = [one for one in families if one["calibrates"]]
    parts = [_certificate(record)]
    for title, some in (("Mean regret, nats", judged), ("Mean regret on the families rules were fitted on", fitted)):
        if some:
            parts.append(f"### {title}\n\n" + _at_a_glance(some))
    if twins := _twins(families):
        parts.append("### Init `degree` against `conserve`\n\n" + twins)
    parts.append("### All figures\n\n" + _all_figures(families))
    if rivals := [one for one in families if one["rivals"]]:
        parts.append("### Rivals, on the target itself\n\n" + _rivals(rivals))
    if widths := [one for one in families if one["drift"]]:
        rows = [[one["family"], shape, f"{octaves:.2f}"] for one in widths for shape, octaves in one["drift"].items()]
        parts.append(
            "### Drift of the searched rate over width\n\n" + markdown_table(["family", "shape", "octaves"], rows)
        )
    if lost := [(one["family"], name, status) for one in families for name, status in one["without_truth"].items()]:
        parts.append("### Without a truth, and not counted\n\n" + markdown_table(["family", "network", "search"], lost))
    if left_out := record["results"]["left_out"]:
        parts.append("Left out, the search of their base having no answer: " + ", ".join(left_out) + ".")
    return "\n\n".join(parts)


def glance(record: Mapping[str, Any]) -> str:
    """Return the table of mean regrets alone, of families that rules were not fitted on."""
    return _at_a_glance([one for one in record["results"]["families"] if not one["calibrates"]])


_PAPER = "the paper's rates and initialisation, our layer factors"
_ALTERNATIVES = {
    "mup": "one rate for all, muP's factors by width",
    "paths": _PAPER,
    "paths+2": f"{_PAPER}, authors' depth",
    "range test": "range test",
    "prodigy": "Prodigy",
    "adamw": "AdamW, 0.001",
    "weighted": "evenstep",
    "searched": "tuned itself",
}


def alternatives(record: Mapping[str, Any]) -> str:
    """Return mean regrets of what one might do instead, of families as they are initialised without further asking.

    The paper's rates belong to its own initialisation: their figures are of the same networks under `degree`, above
    the best of that family, and missing where that was not measured.
    """
    by_name = {one["family"]: one for one in record["results"]["families"]}
    rows = []
    for one in by_name.values():
        if one["calibrates"] or one["setting"]["init"] != "conserve":
            continue
        twin = by_name.get(one["family"].removesuffix("-conserve"), one)
        its_own = twin["methods"] if twin["setting"]["init"] == "degree" else {}
        paper = {name: its_own[name] for name in ("paths", "paths+2") if name in its_own}
        others = {name: figures for name, figures in one["methods"].items() if name not in ("paths", "paths+2")}
        tried = others | paper | one["rivals"]
        found = [
            shown(tried[name]["mean_regret"]) + _lost(tried[name]["diverged"]) if name in tried else ""
            for name in _ALTERNATIVES
        ]
        rows.append([one["title"].removesuffix(", conserve"), str(one["n"]), *found])
    return markdown_table(["networks", "n", *_ALTERNATIVES.values()], rows)


def longer(record: Mapping[str, Any]) -> str:
    """Return the tables of a run beyond the first epoch: where it was made, mean regrets, rivals."""
    families: list[dict[str, Any]] = record["results"]["families"]
    parts = [_certificate(record), _at_a_glance(families)]
    if rivals := [one for one in families if one["rivals"]]:
        parts.append(_rivals(rivals))
    return "\n\n".join(parts)


# What a page may ask for, by the data that was trained on.
_MARKS: Mapping[str, Marks] = {
    "cifar10": {"transfer table": markdown, "transfer glance": glance, "transfer alternatives": alternatives},
    "digits": {"digits glance": glance},
}
_LONGER: Marks = {"epochs table": longer}  # whatever the data, where it is passed over more than once


def marks_of(data: str, epochs: int) -> Marks:
    """Return the tables that a run has for pages, by the names they are asked for with."""
    return _MARKS[data] if epochs == 1 else _LONGER


def shown(figure: Mapping[str, float | None], digits: int = 3, *, interval: bool = False) -> str:
    """Return a figure as text, with its interval if asked for; a dash where it is not defined."""
    value, low, high = figure["value"], figure["low"], figure["high"]
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    if not interval or low is None or high is None:
        return text
    return f"{text} ({low:.{digits}f} to {high:.{digits}f})"


def _certificate(record: Mapping[str, Any]) -> str:
    config = record["config"]
    training = config["training"]
    epochs = "1 epoch" if training["epochs"] == 1 else f"{training['epochs']} epochs"
    decay = ", cosine decay" if training["cosine"] else ""
    places = {tuple(one.values()) for family in record["results"]["families"] for one in family["measured_on"]}
    where = (
        f"{device}, torch {torch}, commit {commit or 'unknown'}, {precision or 'precision not noted'}"
        for device, torch, commit, precision in sorted(places)
    )
    return (
        f"Scale `{config['scale']}` on {config['data']}: {epochs}{decay}, batch {training['batch_size']}, "
        f"{training['seeds']} seeds. Measured on: {'; '.join(where)}.{_earlier(record)}"
    )


def _earlier(record: Mapping[str, Any]) -> str:
    """Say which families are of another commit than the record: their rates are of the rule as it was then."""
    own = record["provenance"].get("commit")
    others: dict[str, list[str]] = {}
    for one in record["results"]["families"]:
        if one.get("commit", own) != own:
            others.setdefault(one["commit"] or "unknown", []).append(f"`{one['family']}`")
    said = (f"{', '.join(names)} by the rules as of commit {commit}" for commit, names in others.items())
    return f" Rates are by the rules as of commit {own or 'unknown'}; of {'; of '.join(said)}." if others else ""


def _at_a_glance(families: Sequence[Mapping[str, Any]]) -> str:
    methods = _methods(families)
    rows = []
    for one in families:
        row = [f"{one['title']} (`{one['family']}`)", str(one["n"])]
        for method in methods:
            figures = one["methods"].get(method)
            row.append("–" if figures is None else shown(figures["mean_regret"]) + _lost(figures["diverged"]))
        row.append(shown({"value": (one["best_constant"] or {}).get("mean_regret"), "low": None, "high": None}))
        rows.append(row)
    return markdown_table(["family", "n", *methods, "best constant, in hindsight"], rows)


def _twins(families: Sequence[Mapping[str, Any]]) -> str:
    """Return best losses and regrets of families that were measured under both initialisations."""
    by_name = {one["family"]: one for one in families}
    rows = []
    for name, other in by_name.items():
        one = by_name.get(name.removesuffix("-conserve"))
        if one is None or one is other or not one["n"] or not other["n"]:
            continue
        row = [one["family"]]
        row += [f"{both['best_loss']:.3f}" for both in (one, other)]
        row += [shown(both["methods"]["weighted"]["mean_regret"], interval=True) for both in (one, other)]
        rows.append(row)
    head = ["family", "mean best loss, degree", "conserve", "mean regret of weighted, degree", "conserve"]
    return markdown_table(head, rows) if rows else ""


def _lost(diverged: int) -> str:
    return f" [{diverged}]" if diverged else ""


def _all_figures(families: Sequence[Mapping[str, Any]]) -> str:
    head = ["family", "method", "n", "mean regret (95%)", "p90 regret", "r", "r of logs", "Kendall's tau"]
    head += ["median error, octaves", "p90 error", "diverged", "target steps"]
    rows = []
    for one in families:
        for method, figures in one["methods"].items():
            row = [one["family"], method, str(one["n"]), shown(figures["mean_regret"], interval=True)]
            row += [shown(figures["p90_regret"])]
            row += [shown(figures[name], 2) for name in ("pearson", "pearson_log", "kendall")]
            row += [shown(figures[name], 2) for name in ("median_error", "p90_error")]
            rows.append([*row, str(figures["diverged"]), f"{figures['target_steps']:.0f}"])
    return markdown_table(head, rows)


def _rivals(families: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for one in families:
        beside = {name: one["methods"][name] for name in ("weighted", "searched") if name in one["methods"]}
        for name, figures in (*one["rivals"].items(), *beside.items()):
            row = [one["family"], name, shown(figures["mean_regret"], interval=True), shown(figures["p90_regret"])]
            no_worse = f"{figures['weighted_no_worse']} of {one['n']}" if "weighted_no_worse" in figures else ""
            rows.append([*row, str(figures["diverged"]), no_worse, f"{figures['target_steps']:.0f}"])
    head = ["family", "rival", "mean loss above the best (95%)", "p90", "diverged", "`weighted` no worse"]
    return markdown_table([*head, "cost in target steps"], rows)


def _methods(families: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(method for one in families for method in one["methods"]))
