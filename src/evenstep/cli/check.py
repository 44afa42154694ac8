"""`evenstep check`: whether networks of different widths or depths take equal steps."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.arguments import require_choice
from evenstep.cli.choices import InitName, OptimizerName, RuleName
from evenstep.cli.data import load_data
from evenstep.cli.picture import drawing, require_picture
from evenstep.cli.target import load_maker
from evenstep.cli.working import working
from evenstep.errors import InputError
from evenstep.init import INITS
from evenstep.planning import optimizer_choice
from evenstep.rules import RULES, steps_by_rate

if TYPE_CHECKING:
    from torch import nn

    from evenstep.planning import Plan
    from evenstep.search import Check


def check(
    target: Annotated[
        str,
        typer.Argument(help="'package.module:function' or 'file.py:function' that takes a size and returns a model."),
    ],
    *,
    over: Annotated[
        str,
        typer.Option(
            help="The function's parameter and its values, such as width=64,128,256; any name if it has only one."
        ),
    ],
    data: Annotated[
        str, typer.Option(help="'digits', an .npz or .pt file with inputs and targets, or 'file.py:function'.")
    ] = "digits",
    lr: Annotated[
        float | None, typer.Option(help="Learning rate of the first network; default: 0.1 (adam 0.01).")
    ] = None,
    optimizer: OptimizerName = "sgd",
    rule: RuleName = "weighted",
    init: InitName = "conserve",
    steps: Annotated[int, typer.Option(help="Optimiser steps to take.")] = 3,
    batch_size: Annotated[int, typer.Option(help="Examples in the batch.")] = 64,
    seeds: Annotated[int, typer.Option(help="Seeds for the weights and the batch.")] = 8,
    compare: Annotated[
        str, typer.Option(help="What to compare: layers, last (what the readout reads), or auto.")
    ] = "auto",
    tolerance: Annotated[
        float | None,
        typer.Option(help="Slope that passes; default: 0.25 for layers, 0.5 for last (names: 1 octave)."),
    ] = None,
    on_unknown: Annotated[
        str, typer.Option(help="Unknown operators: raise, or identity to pass them through.")
    ] = "raise",
    picture: Annotated[Path | None, typer.Option(help="File to draw the changes to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Check that networks of different sizes move alike in their first steps; exit 1 if they do not."""
    what, values = _over(over)
    require_choice("rule", rule, RULES)
    require_choice("init", init, INITS)
    chosen = optimizer_choice(optimizer)  # type: ignore[arg-type]
    rate = lr if lr is not None else 0.01 if steps_by_rate(chosen.name) else 0.1
    if picture is not None:
        require_picture(picture)
    # Imported here: torch takes seconds, and bad options should be reported first.
    from evenstep.module import plan
    from evenstep.module.trace import trace
    from evenstep.search import check as check_networks
    from evenstep.search.job import made
    from evenstep.search.tensors import as_tensors, example_of

    tensors, _ = as_tensors(load_data(data))
    call = _caller(target, what)
    networks: dict[float | str, tuple[Callable[[], nn.Module], Plan]] = {}
    base_graph = None  # the first network is the base of all
    for value in values:
        make = call(value)
        model = made(make, 0)
        inputs = example_of(tensors[0], model)
        base_graph = base_graph or trace(model, inputs, on_unknown=on_unknown)  # type: ignore[arg-type]
        planned = plan(
            model,
            inputs,
            base=rate,
            base_graph=base_graph,
            rule=rule,
            init=init,
            optimizer=chosen,
            on_unknown=on_unknown,  # type: ignore[arg-type]
        )
        networks[value] = (make, planned)
    with working(f"checking {what}", quiet=quiet) as show:
        result = check_networks(
            networks,
            tensors,
            steps=steps,
            batch_size=batch_size,
            seeds=seeds,
            compare=compare,  # type: ignore[arg-type]
            tolerance=tolerance,
            notify=lambda label: show(f"checking {what} {label}"),
        )
    if picture is not None:
        from evenstep.report.check import draw_check

        with drawing(picture):
            draw_check(result, what, picture)
    if as_json:
        print(json.dumps({"over": what, "rule": rule, "init": init, **result.to_dict()}))
    else:
        _print(result, what)
    if not result.ok:
        raise typer.Exit(1)


def _over(text: str) -> tuple[str, list[int] | list[float] | list[str]]:
    """Return the parameter to vary and its values: whole numbers, numbers, or else names."""
    what, equals, listed = text.partition("=")
    values = [part.strip() for part in listed.split(",") if part.strip()]
    if not equals or not what.strip() or len(values) < 2:
        raise InputError(f"--over is '{text}'; give a name and at least two values, such as width=64,128,256")
    if len(set(values)) < len(values):
        raise InputError(f"--over is '{text}', which repeats a value; give each once")
    # Not int(): it reads the code '2_02' as the number 202.
    if all(re.fullmatch(r"\d+", value) for value in values):
        return what.strip(), [int(value) for value in values]
    if all(re.fullmatch(r"\d*\.?\d+(e[+-]?\d+)?", value) for value in values):
        return what.strip(), [float(value) for value in values]
    return what.strip(), values


def _caller(target: str, what: str) -> Callable[[Any], Callable[[], Any]]:
    """Return a function that binds a value to the target's parameter of that name, or else to its only parameter."""
    make = load_maker(target, returns="a model for a size")
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return lambda value: partial(make, value)
    kinds = {parameter.kind for parameter in parameters.values()}
    if what in parameters and parameters[what].kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
        return lambda value: partial(make, **{what: value})
    if len(parameters) > 1 and not kinds & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
        raise InputError(
            f"--over varies '{what}', but '{target}' has no such parameter; choose from {', '.join(parameters)}"
        )
    return lambda value: partial(make, value)


def _print(result: Check, what: str) -> None:
    labels = [str(network.label) for network in result.networks]
    trends = (*result.trends, *result.shown)
    rows = [
        [f"{value:.3g} ({after:.3g})" for value, after in zip(trend.values, trend.later, strict=True)]
        for trend in trends
    ]
    wide = max(len(trend.signal) for trend in trends)
    column = 3 + max(len(cell) for row in (labels, *rows) for cell in row)
    print(f"change by the first step over {what}, to first order; in brackets: after {result.steps} steps")
    head = "octaves" if result.named else "slope"
    print(" " * wide + "".join(f"{label:>{column}}" for label in labels) + f"{head:>10}")
    for trend, row in zip(trends, rows, strict=True):
        mark = "  (not judged)" if trend in result.shown else "" if abs(trend.slope) <= result.tolerance else "  <-"
        print(f"{trend.signal:<{wide}}" + "".join(f"{cell:>{column}}" for cell in row) + f"{trend.slope:>+10.2f}{mark}")
    print(result)
