"""`evenstep demo`: what a plan is worth, on networks and data that need no download."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenstep.cli.picture import drawing, require_picture, require_place
from evenstep.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from evenstep.demo import Demo


def demo(
    picture: Annotated[Path, typer.Option(help="File to draw the picture to.")] = Path("evenstep-demo.png"),
    page: Annotated[Path, typer.Option(help="File to write the page of graphs and plans to.")] = Path(
        "evenstep-demo.html"
    ),
    seeds: Annotated[int, typer.Option(help="Seeds to average over.", min=1)] = 1,
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=10)] = 150,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train chains, residual networks, ViTs and transformers at one rate and by their plans; takes two minutes."""
    for option, path in (("picture", picture), ("page", page)):
        require_place(path, option)
    for package in ("matplotlib", "sklearn"):
        if find_spec(package) is None:
            raise InputError(f"the demo needs {package}, which is not installed; pip install 'evenstep[demo]'")
    require_picture(picture)

    # Imported here: torch and matplotlib take seconds, and other commands do not need them.
    from rich.console import Console

    from evenstep.demo import DemoProgress, draw, measure
    from evenstep.demo.words import sentences
    from evenstep.report.page import write_report

    progress = Console(stderr=True, quiet=quiet)
    progress.print("planning and training 12 networks; the largest come first", highlight=False)

    def notify(made: DemoProgress) -> None:
        progress.print(f"[{made.done}/{made.total}] {made.network}", markup=False, highlight=False)

    result = measure(seeds=seeds, steps=steps, notify=notify)
    with drawing(picture):
        draw(result, picture)
    write_report(dict(result.plans), page, title="The demo's networks and their plans")
    if as_json:
        summary = {"summary": sentences(result), "picture": str(picture), "page": str(page)}
        print(json.dumps({**summary, "config": result.config(), "networks": result.results()}))
        return
    _print(Console(), result, picture, page)


def _print(console: Console, result: Demo, picture: Path, page: Path) -> None:
    """Print the sentences, the table, and where the files are."""
    from rich.table import Table

    from evenstep.demo.words import HEAD, rows, sentences, title

    for sentence in sentences(result):
        console.print(sentence, markup=False, highlight=False)
    table = Table(title=title(result), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in HEAD:
        table.add_column(name, justify="left" if name == HEAD[0] else "right", no_wrap=True)
    for row in rows(result):
        table.add_row(*row)
    console.print()
    console.print(table)
    console.print(f"picture: {picture}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"page:    {page} (every network's graph and plan)", markup=False, highlight=False, soft_wrap=True)
