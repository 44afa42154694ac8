"""`evenstep plan`: plan your own module, or a network given by a compact code."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from evenstep.cli.added import Space, SpaceOptions, load_space
from evenstep.cli.base import load_base
from evenstep.cli.choices import BasesOptimizerName, InitName, RuleName, SpaceName
from evenstep.cli.data import load_examples
from evenstep.cli.table import print_plan
from evenstep.cli.target import load_target
from evenstep.cli.working import working
from evenstep.errors import EvenstepError, InputError
from evenstep.planning import Plan, any_digits, plan_graph
from evenstep.planning.concerns import report
from evenstep.rules.batch import BATCH, BATCH_RULES
from evenstep.rules.batch import batch_rule as batch_rule_of
from evenstep.rules.length import LENGTH, LENGTH_RULES
from evenstep.rules.length import length_rule as length_rule_of

_DESCRIBING = ("space", "order", "norm", "activation", "width", "inputs", "classes", "kernel_size", "image_size")
_FOR_CODES = (*_DESCRIBING, "base_code", "base_width", "base_kernel_size")


def plan(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            help="'package.module:function' or 'file.py:function' that returns (model, example_inputs), or a model "
            "alone if you give --data."
        ),
    ] = None,
    *,
    data: Annotated[str | None, typer.Option(help="Data to take example inputs from, as for evenstep search.")] = None,
    space: SpaceName = "mlp",
    code: Annotated[
        str | None,
        typer.Option(help="Compact code, such as 2_12_112; '-' reads one per line from standard input."),
    ] = None,
    order: Annotated[str, typer.Option(help="pre: z = sum W relu(z); post: x = sum relu(W x).")] = "pre",
    norm: Annotated[str, typer.Option(help="Norm before every activation (order pre): none, batch or layer.")] = "none",
    activation: Annotated[str, typer.Option(help="Activation: relu, gelu, silu, tanh, ...")] = "relu",
    width: Annotated[
        int | None, typer.Option(help="Hidden units or channels; default: 256 (cnn 64, nasbench201 16).")
    ] = None,
    inputs: Annotated[
        int | None, typer.Option(help="Input features or channels; default: 3072 (cnn, nasbench201 3).")
    ] = None,
    classes: Annotated[int, typer.Option(help="Number of classes, the outputs.")] = 10,
    kernel_size: Annotated[int, typer.Option(help="Kernel size (cnn).")] = 3,
    image_size: Annotated[int, typer.Option(help="Side of the square images (cnn, nasbench201).")] = 32,
    rule: RuleName = "weighted",
    init: InitName = "conserve",
    optimizer: BasesOptimizerName = None,
    base: Annotated[
        str | None,
        typer.Option(help="The base's learning rate, or its search, a file written by: evenstep search --json > FILE."),
    ] = None,
    base_code: Annotated[str | None, typer.Option(help="The base's code; default: 2 (nasbench201 0_00_300).")] = None,
    base_width: Annotated[
        int | None,
        typer.Option(help="The base's width, for Adam's factors; default: 256 (cnn 64, nasbench201 16)."),
    ] = None,
    base_kernel_size: Annotated[int, typer.Option(help="The base's kernel size (cnn).")] = 3,
    batch_size: Annotated[
        int | None, typer.Option(help="Examples per step of your training; --batch-rule moves rates there.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of your training; --length-rule moves rates there.")] = None,
    batch_rule: Annotated[
        str, typer.Option(help=f"How rates depend on the batch: {', '.join(BATCH_RULES)}.")
    ] = BATCH.name,
    length_rule: Annotated[
        str, typer.Option(help=f"How rates depend on the length: {', '.join(LENGTH_RULES)}.")
    ] = LENGTH.name,
    base_batch_size: Annotated[
        int | None,
        typer.Option(help="Examples per step that a number as --base was found with; a search records its own."),
    ] = None,
    base_steps: Annotated[
        int | None, typer.Option(help="Steps that a number as --base was found with; a search records its own.")
    ] = None,
    on_unknown: Annotated[
        str, typer.Option(help="Unknown operators: raise, or identity to pass them through.")
    ] = "raise",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse a plan that looks wrong.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write the whole plan to, with its graph, for evenstep report."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Plan an initialisation and a learning rate for every parameter of a network."""
    if (target is None) == (code is None):
        raise InputError("give either a target ('file.py:function') or --code, such as: evenstep plan --code 2_12_112")
    given = _given(context)
    if target is None and data is not None:
        raise InputError(f"--data '{data}' gives example inputs for a target; leave it out with --code")
    if target is not None and given:
        raise InputError(f"{given[0]} is for networks given by --code; leave it out with the target '{target}'")
    loaded = None if base is None else load_base(base)
    options: dict[str, Any] = {"rule": rule, "init": init, "optimizer": optimizer, "base": loaded}
    options |= {"batch_size": base_batch_size, "steps": base_steps}
    move = _move(batch_size, steps, batch_rule, length_rule)
    if target is not None:
        with working(f"loading {target}", quiet=quiet) as show:
            from evenstep.module import plan as plan_module

            model, example_inputs = load_target(target, None if data is None else partial(load_examples, data))
            show(f"planning {target}")
            made = plan_module(model, example_inputs, on_unknown=on_unknown, strict=strict, **options)  # type: ignore[arg-type]
            made = move(made)
        write_plan(made, out)
        print_or_dump(made, made.to_dict(graph=False), as_json=as_json)
        return
    networks = SpaceOptions(
        order=order,
        norm=norm,
        activation=activation,
        width=width,
        inputs=inputs,
        classes=classes,
        kernel_size=kernel_size,
        image_size=image_size,
        base_code=base_code,
        base_width=base_width,
        base_kernel_size=base_kernel_size,
    )
    chosen = load_space(space)(networks)
    assert code is not None
    if loaded is not None and not isinstance(loaded, float):
        if describing := [name for name in given if name.startswith("--base-")]:
            raise InputError(
                f"{describing[0]} describes a base, but the search in '{base}' has its own; leave one of them out"
            )
        searched = loaded.graph
        chosen = Space(chosen.target, lambda: searched)
    if code == "-":
        if out is not None:
            raise InputError(
                f"--out is '{out}', a file for one plan; leave it out with --code -, which prints them all"
            )
        _stream(chosen, options, move, strict=strict)
    else:
        with working(f"planning {code}", quiet=quiet):
            made = move(plan_graph(chosen.target(code), base_graph=chosen.base(), **options))
        report(made, strict=strict)
        write_plan(made, out)
        print_or_dump(made, _compact(code, made), as_json=as_json)


def _move(batch_size: int | None, steps: int | None, batch_rule: str, length_rule: str) -> Callable[[Plan], Plan]:
    """Return a function that moves plans to the training described by these options, if any."""
    rules = {"batch_rule": batch_rule_of(batch_rule), "length_rule": length_rule_of(length_rule)}
    for name, given, rule, usual in (
        ("batch", batch_size, batch_rule, BATCH.name),
        ("length", steps, length_rule, LENGTH.name),
    ):
        if given is None and rule != usual:
            option = "--batch-size" if name == "batch" else "--steps"
            raise InputError(f"--{name}-rule is '{rule}', but there is no training to move the plan to; give {option}")
    if batch_size is None and steps is None:
        return lambda made: made
    return lambda made: made.at(batch_size=batch_size, steps=steps, **rules)  # type: ignore[arg-type]


def _stream(space: Space, options: dict[str, Any], move: Callable[[Plan], Plan], *, strict: bool) -> None:
    """Plan the codes on standard input, one JSON object per line; a bad line prints an error object."""
    if isinstance(sys.stdin, io.TextIOWrapper):  # a line that is not UTF-8 is a bad line, not the end
        sys.stdin.reconfigure(errors="backslashreplace")
    base_graph = space.base()
    move(plan_graph(base_graph, base_graph=base_graph, **options))  # options wrong for every line fail once, here
    for number, line in enumerate(sys.stdin, start=1):
        code = line.strip()
        if not code:
            continue
        try:
            made = move(plan_graph(space.target(code), base_graph=base_graph, **options))
            if strict:
                report(made, strict=True)
            shown = _compact(code, made)
        except EvenstepError as error:
            shown = {"code": code, "line": number, "error": str(error)}
        with any_digits():
            print(json.dumps(shown), flush=True)


def _given(context: typer.Context) -> list[str]:
    """Return the options for codes that the user gave, as written."""
    sources = {name: context.get_parameter_source(name) for name in _FOR_CODES}
    return [f"--{n.replace('_', '-')}" for n, source in sources.items() if source and source.name != "DEFAULT"]


def _compact(code: str, made: Plan) -> dict[str, Any]:
    """Return the JSON object of a code: the plan without its graph, and with the vertices of the DAG only."""
    values = made.to_dict(graph=False)
    values["vertices"] = [vertex for vertex in values["vertices"] if vertex["name"].isdigit()]
    return {"code": code, **values}


def write_plan(made: Plan, out: Path | None) -> None:
    """Write the whole plan, if a file was given."""
    if out is None:
        return
    try:
        with any_digits():
            out.write_text(made.to_json() + "\n")
    except OSError as error:
        raise InputError(f"the plan cannot be written to '{out}' ({error.strerror}); give another --out") from None


def print_or_dump(made: Plan, values: dict[str, Any], *, as_json: bool) -> None:
    """Print a plan's values as JSON, or the plan as a table."""
    with any_digits():
        if as_json:
            print(json.dumps(values, indent=2))
        else:
            print_plan(made)
