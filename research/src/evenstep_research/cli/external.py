"""`evenstep study external`: what rules would have said of tables that others measured, and what that costs."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.errors import InputError
from evenstep_research.cli.measuring import AsJson, Pages, make_folder

if TYPE_CHECKING:
    from collections.abc import Mapping


def external(
    *,
    data: Annotated[Path, typer.Option(help="Folder of the tables: steplaw_dense.csv, fantastic.csv or both.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the record.")] = None,
    page: Pages = None,
    as_json: AsJson = False,
) -> None:
    """Score every rule on tables of trainings that others measured."""
    from evenstep.report.marks import update_page
    from evenstep_research.report.external import MARKS
    from evenstep_research.study.external.leaderboard import boards
    from evenstep_research.study.external.results import results_of
    from evenstep_research.study.external.shapes import INIT
    from evenstep_research.study.external.tables import fingerprints, read_tables
    from evenstep_research.study.external.targets import targets
    from evenstep_research.study.record import as_record

    for path in page or ():
        update_page(path, MARKS, None)
    if not data.is_dir():
        raise InputError(f"there is no folder '{data}'; give the one that holds the tables as --data")
    tables = read_tables(data)
    if out is not None:
        make_folder(out)
    found = boards(tables)
    config = {"files": dict(fingerprints(data)), "init": INIT, "transformers": metadata.version("transformers")}
    record = as_record(config=config, results=results_of(found, targets(found)))
    if out is not None:
        _write(record, out)
    for path in page or ():
        update_page(path, MARKS, record)
    if as_json:
        print(json.dumps(record["results"]))
    else:
        _print(record["results"])


def _write(record: dict[str, Any], out: Path) -> None:
    from evenstep_research.study.record import write

    try:
        write(out / "record.json", record)
    except OSError as error:
        raise InputError(f"the results cannot be written to '{out}' ({error}); give another --out") from None


def _print(results: Mapping[str, Any]) -> None:
    """Print a table for every table, then what was asked."""
    from rich.console import Console
    from rich.table import Table

    console = Console() if sys.stdout.isatty() else Console(width=170)
    for one in results["tables"]:
        console.print(f"{one['name']}, {one['cells']} cells", highlight=False, markup=False)
        table = Table(box=None, pad_edge=False)
        for head in ("rule", "batch", "length", "every base: regret", "octaves", "one offset: regret", "octaves"):
            table.add_column(head, justify="left" if head in ("rule", "batch", "length") else "right", no_wrap=True)
        for row in (*one["rows"], *one["references"]):
            names = (row.get("rule", row.get("name")), row.get("batch", ""), row.get("length", ""))
            table.add_row(*names, *_scores(row["by_bases"]), *_scores(row["by_offset"]))
        console.print(table)
        console.print()
    for target in results["targets"]:
        verdict = {True: "reached", False: "not reached", None: "not yet"}[target["reached"]]
        measured = (
            "" if target["measured"] is None else f"{target['measured']:.4f}, at most {target['limit']:.4f} asked; "
        )
        console.print(f"{verdict}: {target['what']}: {measured}{target['note']}", highlight=False, markup=False)


def _scores(score: Mapping[str, Any]) -> tuple[str, str]:
    regret = score["mean_regret"]
    return "–" if regret is None else f"{regret:.4f}", f"{score['mean_octaves']:.2f}"
