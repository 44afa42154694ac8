"""`evenstep auto` and `evenstep refine`: a plan from a model and its data, and a plan corrected on the model itself."""

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
        help="'digits', a file .npz or .pt with inputs and targets, or 'file.py:function' that returns tensors, a "
        "Dataset or a DataLoader."
    ),
]
TrainSteps = Annotated[int, typer.Option(help="Steps that you will train for.")]
BatchSize = Annotated[int | None, typer.Option(help="Examples a step; left out a DataLoader's own, or 64.")]
WeightDecay = Annotated[float | None, typer.Option(help="Weight decay; left out the optimizer's.")]
LossName = Annotated[
    str | None,
    typer.Option(help="A loss of torch.nn.functional, or 'file.py:function'; left out cross_entropy or the model's."),
]
StoreFile = Annotated[Path | None, typer.Option(help="File to write finished runs to, and to continue from.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="A file for the whole plan, graph and all.")]
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
    cost: Annotated[float, typer.Option(help="What it may cost, as a share of the training.")] = 0.1,
    on_unknown: Annotated[str, typer.Option(help="raise, or identity to let unknown operators through.")] = "raise",
    store: StoreFile = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Plan a model from nothing but its data: find a base, search it, plan, correct the plan on the model."""
    make = load_maker(target, returns="a model")
    with _interruptible(), searching(f"loading {target}", quiet=quiet) as progress:
        inputs = load_data(data)
        from evenstep.search import auto_plan  # here: torch takes seconds, and wrong options are said before

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
    plan: Annotated[Path, typer.Argument(help="The file of the model's plan: evenstep plan ... -o FILE.")],
    *,
    data: Data,
    steps: Annotated[int | None, typer.Option(help="Steps of a short run; 128 unless you say.")] = None,
    run_batch_size: Annotated[
        int | None, typer.Option(help="Examples of a step of a short run; fewer than the batch are cheaper.")
    ] = None,
    train_steps: Annotated[
        int | None, typer.Option(help="Steps that you will train for; left out the plan's, or 1500.")
    ] = None,
    loss: LossName = None,
    batch_size: BatchSize = None,
    store: StoreFile = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Correct a plan by short runs of the model itself."""
    make, inputs, planned = load_maker(target, returns="a model"), load_data(data), load_plan(plan)
    with _interruptible(), searching(f"loading {target}", quiet=quiet) as progress:
        from evenstep.search import (
            refine as refine_plan,  # here: torch takes seconds, and wrong options are said before
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
    """Read the file of a plan, or raise a sentence that says what it is not."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(
            f"the plan '{path}' cannot be read ({reason}); write one with: evenstep plan -o FILE"
        ) from None
    try:
        return Plan.from_json(text)
    except PlanError as error:
        raise InputError(f"'{path}': {error}") from None


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C print what is kept and exit with 130."""
    try:
        yield
    except KeyboardInterrupt as stop:
        print(str(stop) or "stopped before the first run", file=sys.stderr)
        raise typer.Exit(130) from None
