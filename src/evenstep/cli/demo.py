"""`evenstep demo`: the whole recipe on built-in data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenstep.cli.picture import drawing, require_picture, require_place

if TYPE_CHECKING:
    from evenstep.planning import Plan
    from evenstep.search import LRSearch


def demo(
    picture: Annotated[Path, typer.Option(help="Where to write the picture.")] = Path("evenstep-demo.png"),
    page: Annotated[Path, typer.Option(help="Where to write the page: graphs, plans, searches.")] = Path(
        "evenstep-demo.html"
    ),
    seeds: Annotated[int, typer.Option(help="Seeds to average over.", min=1)] = 2,
    epochs: Annotated[int, typer.Option(help="Epochs to train each network for.", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Search a base, plan networks of other shapes, train them: on handwritten digits, in about a minute."""
    # Loaded here: torch and matplotlib take seconds, and other commands do without them.
    import torch
    from rich.console import Console
    from rich.table import Table

    from evenstep.report.demo import draw_demo
    from evenstep.report.page import write_report
    from evenstep.study.demo import NETWORKS, run_demo

    for option, path in (("picture", picture), ("page", page)):
        require_place(path, option)
    require_picture(picture)
    torch.set_num_threads(1)  # these networks are too small to share: threads would only wait for one another
    steps = len(NETWORKS) + 2
    progress = Console(stderr=True, quiet=quiet)
    done = 0

    def notify(what: str) -> None:
        nonlocal done
        done += 1
        progress.print(f"[{done}/{steps}] {what}", markup=False, highlight=False)

    result = run_demo(seeds=seeds, epochs=epochs, notify=notify)
    with drawing(picture):
        draw_demo(result, picture)
    shown: dict[str, Plan | LRSearch] = dict(result.plans)
    shown |= {f"base of the {kind}s": search for kind, search in result.bases.items()}
    write_report(shown, page, title="The recipe on handwritten digits")
    if as_json:
        print(json.dumps({**result.to_dict(), "picture": str(picture), "page": str(page)}))
        return
    console = Console()
    for kind, search in result.bases.items():
        console.print(f"base {kind}: learning rate {search.rate:.3g} ({len(search.grid)} rates tried)")
    title = f"training loss (test accuracy) after {epochs} epochs, rates falling along a cosine"
    table = Table(title=title, title_justify="left")
    for title in ("network", "factor", "lr", "at this lr", "at the base's lr"):
        table.add_column(title, justify="left" if title == "network" else "right", no_wrap=title == "network")
    for row in result.rows:
        table.add_row(
            row.network,
            f"{row.lr_scale:.3f}",
            f"{row.transferred_lr:.3g}",
            _shown(row.transferred_loss, row.transferred_accuracy),
            _shown(row.base_loss, row.base_accuracy),
        )
    console.print(table)
    console.print(f"picture: {picture}")
    console.print(f"page: {page} (open it in a browser: the networks' graphs, every parameter's rate, the searches)")


def _shown(loss: float, accuracy: float) -> str:
    return f"{loss:.3f} ({accuracy:.1%})" if math.isfinite(loss) else "diverged"
