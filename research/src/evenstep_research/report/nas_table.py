"""What the whole published table says, in Markdown: taus between its seeds, and searches under its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.report.marks import Marks
from evenstep.report.table import markdown_table
from evenstep_research.report.nas import TITLES, tau_text
from evenstep_research.study.nas.analysis import TOP_SHARES


def seeds(record: Mapping[str, Any]) -> str:
    """Return the table of taus between published seeds, the cells that each is of in brackets."""
    rows = []
    for one in record["results"]["seeds"]:
        taus = {point["share"]: tau_text(point["tau"], point["n"]) for point in one["tau"]}
        row = [_title(one["data"]), str(one["n"]), str(one["seeds"]), f"{one['spread']:.2f}"]
        rows.append([*row, *(taus.get(share, "–") for share in TOP_SHARES)])
    head = ["data set", "cells", "seeds", "deviation over seeds, points", *(f"top {share}%" for share in TOP_SHARES)]
    return markdown_table(head, rows)


def searches(record: Mapping[str, Any]) -> str:
    """Return the table of search algorithms over the whole table: mean accuracies of what they pick, and places."""
    rows = []
    for one in record["results"]["searches"]:
        for standing in one["standings"]:
            row = [_title(one["data"]), str(one["cells"]), str(one["budget"]), standing["algorithm"]]
            row += [f"{standing['before']:.2f}", f"{standing['after']:.2f}"]
            row += [f"{standing['place_before']} to {standing['place_after']}", tau_text(one["tau"], one["distinct"])]
            rows.append(row)
    head = ["data set", "cells", "asked for", "algorithm", "test accuracy of its picks, 12 epochs, %", "200 epochs, %"]
    return markdown_table([*head, "place", "tau of all picks"], rows)


def _title(dataset: str) -> str:
    """Return a data set's title; the table spells names with underscores, runs with hyphens."""
    return TITLES.get(dataset.replace("_", "-"), dataset)


MARKS: Marks = {"nas seeds": seeds, "nas searches": searches}
