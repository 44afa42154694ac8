"""`evenstep search`: the maximal learning rate of a network of your own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from evenstep.cli.data import load_data
from evenstep.cli.picture import drawing, require_picture
from evenstep.cli.target import load_maker
from evenstep.errors import InputError


def search(
    target: Annotated[
        str, typer.Argument(help="'package.module:function' or 'file.py:function' that returns a model.")
    ],
    *,
    data: Annotated[
        str, typer.Option(help="'digits', a file .npz or .pt with inputs and targets, or 'file.py:function'.")
    ] = "digits",
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    optimizer: Annotated[str, typer.Option(help="sgd, momentum or adam.")] = "sgd",
    init: Annotated[str, typer.Option(help="conserve, degree, he or keep.")] = "conserve",
    epochs: Annotated[int, typer.Option(help="Epochs to train each trial for.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Steps to train each trial for, in place of epochs.")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples a step.")] = 64,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = 0.0,
    seeds: Annotated[int, typer.Option(help="Seeds for each learning rate.")] = 3,
    start: Annotated[float, typer.Option(help="Learning rate to start around.")] = 0.1,
    store: Annotated[Path | None, typer.Option(help="File to write finished trials to, and to go on from.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Insist that the store knows this search.")] = False,
    name: Annotated[
        str | None,
        typer.Option(help="Words that stand for the model's code in the store, where that cannot be read."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Where to draw the loss over the learning rate.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, which evenstep plan --base takes.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Search the largest learning rate with the smallest training loss."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    if resume and store is None:
        raise InputError("--resume needs the store to go on from; give --store FILE")
    if name is not None and store is None:
        raise InputError(f"--name '{name}' is for trials in a store; give --store FILE, or leave it out")
    if picture is not None:
        require_picture(picture)
    from evenstep.search import (  # here: torch takes seconds, and wrong options are said before
        SearchProgress,
        search_lr,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True, quiet=quiet), transient=True) as bar:
        task = bar.add_task("searching", total=None)

        def show(progress: SearchProgress) -> None:
            best = "none yet" if progress.best is None else f"{progress.best:.3g} (loss {progress.loss:.4g})"
            what = f"best {best}, {progress.diverged} diverged"
            bar.update(task, completed=progress.done, total=progress.total, description=what)

        result = search_lr(
            load_maker(target, returns="a model"),
            load_data(data),
            engine=engine,  # type: ignore[arg-type]
            optimizer=optimizer,  # type: ignore[arg-type]
            init=init,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            weight_decay=weight_decay,
            seeds=seeds,
            start=start,
            store=store,
            resume=resume,
            name=name,
            progress=show,
        )
    if picture is not None:
        from evenstep.report.search import draw_search

        with drawing(picture):
            draw_search(result, picture)
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    print(f"best learning rate {result.best:.4g}, between {result.bracket[0]:.4g} and {result.bracket[1]:.4g}")
    if result.estimate:
        print(f"estimate {result.estimate:.4g}, the minimum of a parabola: plans start from it, not from the best")
    else:
        print("no estimate: plans start from the best")
    if result.interval:
        print(f"the seeds' own best rates: {result.interval[0]:.4g} to {result.interval[1]:.4g} (95%)")
    for rate, loss in zip(result.grid, result.mean_losses, strict=True):
        print(f"{rate:12.4g}  {loss:10.4f}" if math.isfinite(loss) else f"{rate:12.4g}    diverged")
