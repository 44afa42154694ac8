"""`evenstep auto` and `evenstep refine`: plan a model from its data, and correct a plan on the model itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from evenstep.cli.choices import InitName, OptimizerName
from evenstep.cli.data import load_data
from evenstep.cli.loss import load_loss
from evenstep.cli.plan import print_or_dump, write_plan
from evenstep.cli.target import load_maker
from evenstep.cli.working import searching
from evenstep.errors import InputError, PlanError
from evenstep.planning import Plan

Target = Annotated[
    str,
    typer.Argument(
        help="'package.module:function' or 'file.py:function' that returns a model, or (model, example_inputs)."
    ),
]
Data = Annotated[
    str,
    typer.Option(
        help="'digits', an .npz or .pt file with inputs and targets, or 'file.py:function' that returns tensors, a "
        "Dataset or a DataLoader."
    ),
]
TrainSteps = Annotated[int, typer.Option(help="How many steps you will train for.")]
BatchSize = Annotated[int | None, typer.Option(help="Examples per step; default: the DataLoader's, or 64.")]
WeightDecay = Annotated[float | None, typer.Option(help="Weight decay; default: the optimizer's.")]
LossName = Annotated[
    str | None,
    typer.Option(
        help="A loss in torch.nn.functional, or 'file.py:function'; default: cross_entropy, or the model's loss."
    ),
]
StoreFile = Annotated[
    Path | None, typer.Option(help="File that keeps finished runs; a stopped call continues from it.")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="File to write the whole plan to, with its graph.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def auto(
    target: Target,
    *,
    data: Data,
    optimizer: OptimizerName = "adam",
    train_steps: TrainSteps = 1500,
    loss: LossName = None,
    batch_size: BatchSize = None,
    weight_decay: WeightDecay = None,
    init: InitName = "conserve",
    cost: Annotated[float, typer.Option(help="What search and correction may cost, as a share of the training.")] = 0.1,
    on_unknown: Annotated[
        str, typer.Option(help="Unknown operators: raise, or identity to pass them through.")
    ] = "raise",
    store: StoreFile = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Plan a model from its data: make a base, search its learning rate, plan, and correct the plan."""
    make = load_maker(target, returns="a model")
    with _interruptible(), searching(f"loading {target}", quiet=quiet) as progress:
        inputs = load_data(data)
        from evenstep.search import auto_plan  # here: torch takes seconds; report bad options first

        made = auto_plan(
            make(),
            inputs,
            optimizer=optimizer,  # type: ignore[arg-type]
            train_steps=train_steps,
            loss=None if loss is None else load_loss(loss),
            batch_size=batch_size,
            weight_decay=weight_decay,
            init=init,
            cost=cost,
            on_unknown=on_unknown,  # type: ignore[arg-type]
            store=store,
            progress=progress,
        )
    write_plan(made, out)
    print_or_dump(made, made.to_dict(graph=False), as_json=as_json)


def refine(
    target: Target,
    plan: Annotated[Path, typer.Argument(help="The plan to correct, a file written by: evenstep plan ... -o FILE.")],
    *,
    data: Data,
    steps: Annotated[int | None, typer.Option(help="Steps of each short run; default: 128.")] = None,
    run_batch_size: Annotated[
        int | None, typer.Option(help="Examples per step of a short run; fewer than your batch cost less.")
    ] = None,
    train_steps: Annotated[
        int | None, typer.Option(help="How many steps you will train for; default: the plan's, or 1500.")
    ] = None,
    loss: LossName = None,
    batch_size: BatchSize = None,
    store: StoreFile = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Correct a plan by training the model itself for a few short runs."""
    make, inputs, planned = load_maker(target, returns="a model"), load_data(data), load_plan(plan)
    with _interruptible(), searching(f"loading {target}", quiet=quiet) as progress:
        from evenstep.search import (
            refine as refine_plan,  # here: torch takes seconds; report bad options first
        )

        found = refine_plan(
            make(),
            planned,
            inputs,
            steps=steps,
            run_batch_size=run_batch_size,
            train_steps=train_steps,
            loss=None if loss is None else load_loss(loss),
            batch_size=batch_size,
            store=store,
            progress=progress,
        )
    write_plan(found.plan, out)
    values: dict[str, Any] = {"multiple": found.multiple, "interval": list(found.interval)}
    print_or_dump(found.plan, values | {"plan": found.plan.to_dict(graph=False)}, as_json=as_json)


def load_plan(path: Path) -> Plan:
    """Read a plan from a file, or raise an error that says what is wrong with the file."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(
            f"the plan '{path}' cannot be read ({reason}); write one with: evenstep plan -o FILE"
        ) from None
    try:
        return Plan.from_json(text)
    except PlanError as error:
        raise InputError(f"'{path}': {error}") from None


@contextmanager
def _interruptible() -> Iterator[None]:
    """On Ctrl-C print what is kept and exit with 130."""
    try:
        yield
    except KeyboardInterrupt as stop:
        print(str(stop) or "stopped before the first run", file=sys.stderr)
        raise typer.Exit(130) from None
