"""`evenstep study evidence`: every claim with its figure from the records, and all tables of a page from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.errors import InputError
from evenstep_research.cli.figures import recorded_figures

if TYPE_CHECKING:
    from evenstep.report.marks import Marks

# Runs of the transfer benchmark that pages show, each with marks of its own.
_TRANSFERS = ("transfer", "transfer-digits", "transfer-10-epochs")


def evidence(
    *,
    results: Annotated[Path, typer.Option(help="Folder of records, one folder a study.")] = Path("results"),
    page: Annotated[
        list[Path] | None, typer.Option(help="Pages of Markdown to write tables of all kinds of records into.")
    ] = None,
) -> None:
    """Print every claim with its figure, interval, n, commit, command and limits, as the records have them."""
    from evenstep_research.report.evidence import evidence as shown

    records = all_records(results)
    for path in page or ():
        fill_page(path, records)
    print(shown(records))


def all_records(results: Path) -> dict[str, Any]:
    """Return all records by folder, and by folder and name where a file is not called record.json."""
    if not results.is_dir():
        raise InputError(f"there is no folder '{results}'; give the folder of records as --results")
    records: dict[str, Any] = {}
    for path in sorted(results.glob("*/*.json")):
        name = path.parent.name if path.name == "record.json" else f"{path.parent.name}/{path.stem}"
        try:
            records[name] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(
                f"the record '{path}' cannot be read ({error}); remove it, or give other --results"
            ) from None
    return records | recorded_figures(results)


def fill_page(path: Path, records: dict[str, Any]) -> None:
    """Write the records' tables between those marks that a page has."""
    from evenstep.report.marks import update_page

    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"the page '{path}' cannot be read ({error.strerror}); give another --page") from None
    marks = [(marks, record) for marks, record in _marks(records) if any(f"<!-- {name} -->" in text for name in marks)]
    if not marks:
        raise InputError(f"the page '{path}' has no place for a table, such as '<!-- evidence -->'; put one there")
    for wanted, record in marks:
        update_page(path, wanted, record)


def _marks(records: dict[str, Any]) -> Iterator[tuple[Marks, Any]]:
    """Yield every kind of table with the record, or all records, that it is made of."""
    from evenstep_research.report import evidence, figures, nas, nas_table
    from evenstep_research.report.transfer import marks_of

    yield evidence.MARKS, records
    yield figures.MARKS, records
    for name, marks in (("nas", nas.MARKS), ("nas-table", nas_table.MARKS)):
        if name in records:
            yield marks, records[name]
    for name in _TRANSFERS:
        if name in records:
            config = records[name]["config"]
            yield marks_of(config["data"], config["training"]["epochs"]), records[name]
