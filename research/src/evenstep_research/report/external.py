"""The tables of other people, shown: what was asked, the leaderboard at a glance, and whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.report.marks import Marks
from evenstep.report.table import markdown_table

_WAYS = {"by_bases": "every cell once the base", "by_offset": "one offset"}


def targets(record: Mapping[str, Any]) -> str:
    """Return what was asked of our rule, and whether it is so."""
    rows = [
        [line["what"], _number(line["limit"]), _number(line["measured"]), _verdict(line["reached"]), line["note"]]
        for line in record["results"]["targets"]
    ]
    return markdown_table(["what", "at most", "measured", "", ""], rows)


def glance(record: Mapping[str, Any]) -> str:
    """Return every rule with each batch rule and no length rule: mean regrets alone, or octaves without a batch."""
    return "\n\n".join(f"### {table['name']}\n\n{_glance(table)}" for table in record["results"]["tables"])


def markdown(record: Mapping[str, Any]) -> str:
    """Return every row of every table, and where it was made."""
    parts = [_certificate(record)]
    for table in record["results"]["tables"]:
        head = ["rule", "batch rule", "length rule"]
        for words in _WAYS.values():
            head += [f"{words}: mean regret", "worst", "mean octaves", "worst", "outside"]
        rows = [[row["rule"], row["batch"], row["length"], *_cells(row)] for row in table["rows"]]
        rows += [[f"*{row['name']}*", "", "", *_cells(row)] for row in table["references"]]
        parts.append(f"### {_heading(table)}\n\n{markdown_table([*head, 'mean offset: mean regret'], rows)}")
        if table["left_out"]:
            reasons: dict[str, list[str]] = {}
            for rule, why in table["left_out"].items():
                reasons.setdefault(why, []).append(f"`{rule}`")
            parts.append(
                "Not scored: " + "; ".join(f"{', '.join(rules)} ({why})" for why, rules in reasons.items()) + "."
            )
    return "\n\n".join(parts)


def shapes(record: Mapping[str, Any]) -> str:
    """Return what rules say of every shape, beside the best rates measured."""
    parts = []
    for table in record["results"]["tables"]:
        names = list(table["shapes"][0]["factors"])
        rows = [
            [
                f"{shape['layers']} x {shape['width']}, {shape['ffn_width']}",
                str(shape["cells"]),
                f"{shape['best_rates'][0]:.3g} to {shape['best_rates'][-1]:.3g}",
                *(f"{shape['factors'][name]:.3g}" for name in names),
            ]
            for shape in table["shapes"]
        ]
        parts.append(f"### {table['name']}\n\n{markdown_table(['shape', 'cells', 'best rates', *names], rows)}")
    return "\n\n".join(parts)


MARKS: Marks = {
    "external targets": targets,
    "external glance": glance,
    "external shapes": shapes,
    "external table": markdown,
}


def _glance(table: Mapping[str, Any]) -> str:
    plain = [row for row in table["rows"] if row["length"] == "none"]
    batches = list(dict.fromkeys(row["batch"] for row in plain))
    laws = [[f"*{row['name']}*", *_both(row), *[""] * (len(batches) - 1)] for row in table["references"]]
    rules = [
        [rule, *(_both(row)[0] for row in plain if row["rule"] == rule)]
        for rule in dict.fromkeys(row["rule"] for row in plain)
    ]
    if not rules:
        return markdown_table(["", "mean regret"], laws)
    heads = [f"batch rule {name}" for name in batches] if len(batches) > 1 else ["no batch rule"]
    return markdown_table(["rule", *heads], [*rules, *laws])


def _both(row: Mapping[str, Any]) -> list[str]:
    return [" / ".join(_number(row[way]["mean_regret"]) for way in _WAYS)]


def _cells(row: Mapping[str, Any]) -> list[str]:
    cells = []
    for way in _WAYS:
        score = row[way]
        cells += [
            _number(score["mean_regret"]),
            _number(score["worst_regret"]),
            f"{score['mean_octaves']:.2f}",
            f"{score['worst_octaves']:.2f}",
            f"{100 * score['outside']:.0f}%",
        ]
    return [*cells, _number(row["by_mean_offset"]["mean_regret"])]


def _heading(table: Mapping[str, Any]) -> str:
    return f"{table['name']}: {table['cells']} cells, {table['runs']} runs, {table['optimizer']}"


def _certificate(record: Mapping[str, Any]) -> str:
    made, config = record["provenance"], record["config"]
    files = ", ".join(f"`{name}` ({digest[:12]})" for name, digest in config["files"].items())
    return (
        f"From {files}; evenstep {made['versions']['evenstep']}, commit {made['commit'] or 'unknown'}, transformers "
        f"{config['transformers']}. Rates are those of hidden matrices, started as `{config['init']}` has it."
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _verdict(reached: bool | None) -> str:
    return {True: "reached", False: "not reached", None: "not yet"}[reached]
