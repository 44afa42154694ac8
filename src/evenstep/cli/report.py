"""`evenstep report`: one HTML page of plans, searches, checks and studies."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenstep.cli.json_text import require_json
from evenstep.cli.working import working
from evenstep.errors import InputError

if TYPE_CHECKING:
    from evenstep.report.page.parts import Part


def report(
    run_or_plan: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_PLAN",
            help="Files: a plan, search or check as JSON, a store, or a study's record.json; '-' reads JSON "
            "from standard input.",
        ),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's title.")] = "",
    run: Annotated[str, typer.Option(help="Of a store, only the search whose configuration begins with this.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Write one self-contained page: graph, parameter table, searches, checks and studies."""
    if not os.path.isdir(output.parent):
        raise InputError(f"there is no folder '{output.parent}' for the page; make it, or give another --output")
    if run_or_plan.count("-") > 1:
        raise InputError("standard input is named twice; give '-' once")
    with working("reading the files", quiet=quiet) as show:
        parts = _read(run_or_plan, run)
        show(f"writing {output}")
        from evenstep.report.page.writing import render, write_page

        write_page(render(parts, title=title), output)
    if as_json:
        kinds = [type(part).__name__.removesuffix("Part").lower() for part in parts]
        print(json.dumps({"report": str(output), "parts": kinds}))
    else:
        print(f"report: {output}")


def _read(names: Sequence[str], run: str) -> list[Part]:
    # Imported here: torch takes seconds, and bad options should be reported first.
    from evenstep.report.page.reading import part_of_text, read

    parts: list[Part] = []
    for name in names:
        if name == "-":
            text = sys.stdin.read()
            require_json(text, "standard input")
            parts.append(part_of_text(text, name="", where="standard input"))
            continue
        try:
            parts.extend(read(Path(name), run=run))
        except InputError:
            _require_json(Path(name))
            raise
    return parts


def _require_json(path: Path) -> None:
    """Refuse a file that is damaged JSON; other faults are reported elsewhere."""
    if not os.path.isfile(path):
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    require_json(text, f"'{path}'")
