"""`evenstep search`: search the learning rate of your own network."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from evenstep.cli.choices import InitName, OptimizerName
from evenstep.cli.data import load_data
from evenstep.cli.loss import load_loss
from evenstep.cli.picture import drawing, require_picture
from evenstep.cli.saying import say
from evenstep.cli.target import load_maker
from evenstep.cli.values import numbers, sizes
from evenstep.cli.working import searching
from evenstep.errors import InputError


def search(
    target: Annotated[
        str,
        typer.Argument(
            help="'package.module:function' or 'file.py:function' that returns a model, or (model, example_inputs)."
        ),
    ],
    *,
    data: Annotated[
        str,
        typer.Option(
            help="'digits', an .npz or .pt file with inputs and targets, or 'file.py:function' that returns tensors, a "
            "Dataset or a DataLoader."
        ),
    ] = "digits",
    shrink: Annotated[
        str | None, typer.Option(help="Sizes to call the function with, such as depth=1,width=64.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Where trials run: local or ray.")] = "local",
    optimizer: OptimizerName = "sgd",
    momentum: Annotated[float | None, typer.Option(help="Momentum of the optimizer 'momentum'; default: 0.9.")] = None,
    init: InitName = "conserve",
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of each trial; default: one, within 300 to 1000 steps.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of each trial, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step; default: the DataLoader's, or 64.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay; default: 0.")] = None,
    schedule: Annotated[
        str, typer.Option(help="Schedule of the rate: constant, or cosine with a short warm-up.")
    ] = "constant",
    loss: Annotated[
        str | None,
        typer.Option(
            help="A loss in torch.nn.functional, such as mse_loss, or 'file.py:function'; default: cross_entropy."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per learning rate.")] = 3,
    start: Annotated[float, typer.Option(help="Learning rate to begin the search at.")] = 0.1,
    grid: Annotated[str | None, typer.Option(help="The only learning rates to try, such as 0.01,0.1,1.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="File that keeps finished trials; a stopped search continues from it.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Fail if the store does not hold this search.")] = False,
    name: Annotated[
        str | None,
        typer.Option(help="Name that stands for the code of model and loss in the store, where it cannot be read."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="File to draw the loss over the learning rate to.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, which evenstep plan --base takes.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Search for the learning rate with the smallest training loss."""
    if resume and store is None:
        raise InputError("--resume needs a store to continue from; give --store FILE")
    if name is not None and store is None:
        raise InputError(f"--name '{name}' is for trials in a store; give --store FILE, or leave it out")
    rates = None if grid is None else numbers("grid", grid)
    shrunk = None if shrink is None else sizes("shrink", shrink)
    if picture is not None:
        require_picture(picture)
    try:
        with searching(f"loading {target}", quiet=quiet) as progress:
            from evenstep.search import search_lr  # here: torch takes seconds; report bad options first

            result = search_lr(
                load_maker(target, returns="a model"),
                load_data(data),
                shrink=shrunk,
                engine=engine,  # type: ignore[arg-type]
                optimizer=optimizer,  # type: ignore[arg-type]
                momentum=momentum,
                init=init,
                epochs=epochs,
                steps=steps,
                batch_size=batch_size,
                weight_decay=weight_decay,
                schedule=schedule,  # type: ignore[arg-type]
                loss=None if loss is None else load_loss(loss),
                seeds=seeds,
                start=start,
                grid=rates,
                store=store,
                resume=resume,
                name=name,
                progress=progress,
            )
    except KeyboardInterrupt as stop:
        print(str(stop) or "stopped before the first trial", file=sys.stderr)
        raise typer.Exit(130) from None
    if picture is not None:
        from evenstep.report.search import draw_search

        with drawing(picture):
            draw_search(result, picture)
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    say(str(result))
    parabola = "none" if result.estimate is None else f"{result.estimate:.4g}"
    say(f"minimum of the parabola through the losses (estimate): {parabola}")
    say(
        f"largest rate whose loss is within noise of the smallest (best): {result.best:.4g}, between "
        f"{result.bracket[0]:.4g} and {result.bracket[1]:.4g}"
    )
    say(f"rate and mean loss after {result.steps} steps:")
    for rate, mean in zip(result.grid, result.mean_losses, strict=True):
        print(f"{rate:12.4g}  {mean:10.4f}" if math.isfinite(mean) else f"{rate:12.4g}    diverged")
