"""`evenstep demo`: the whole recipe on built-in data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from evenstep.errors import InputError


def demo(
    picture: Annotated[Path, typer.Option(help="Where to write the picture.")] = Path("evenstep-demo.png"),
    seeds: Annotated[int, typer.Option(help="Seeds to average over.", min=1)] = 2,
    epochs: Annotated[int, typer.Option(help="Epochs to train each network for.", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search a base, plan networks of other shapes, train them: on handwritten digits, in about a minute."""
    # Loaded here: torch and matplotlib take seconds, and other commands do without them.
    import torch
    from rich.console import Console
    from rich.table import Table

    from evenstep.report.demo import draw_demo
    from evenstep.study.demo import NETWORKS, run_demo

    if not picture.parent.is_dir():
        raise InputError(f"there is no folder '{picture.parent}' for the picture; make it, or give another --picture")
    torch.set_num_threads(1)  # these networks are too small to share: threads would only wait for one another
    steps = len(NETWORKS) + 2
    progress = Console(stderr=True)
    done = 0

    def notify(what: str) -> None:
        nonlocal done
        done += 1
        progress.print(f"[{done}/{steps}] {what}", markup=False, highlight=False)

    result = run_demo(seeds=seeds, epochs=epochs, notify=notify)
    try:
        draw_demo(result, picture)
    except OSError as error:
        raise InputError(
            f"the picture cannot be written to '{picture}': {error.strerror}; give another --picture"
        ) from None
    if as_json:
        print(json.dumps({**result.to_dict(), "picture": str(picture)}))
        return
    console = Console()
    for kind, search in result.bases.items():
        console.print(
            f"base {kind}: best learning rate {search.estimate or search.best:.3g} ({len(search.grid)} rates tried)"
        )
    table = Table(title=f"training loss (test accuracy) after {epochs} epochs", title_justify="left")
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


def _shown(loss: float, accuracy: float) -> str:
    return f"{loss:.3f} ({accuracy:.1%})" if math.isfinite(loss) else "diverged"
