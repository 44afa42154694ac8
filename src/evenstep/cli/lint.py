"""`evenstep lint`: whether a script gives its parameters to optimisers and schedulers correctly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.arguments import shown
from evenstep.cli.auto import load_plan
from evenstep.cli.target import load_function
from evenstep.errors import InputError

if TYPE_CHECKING:
    from evenstep.lint import Finding

_RETURNS = "(model, optimizer), (model, optimizer, scheduler), or either with example_inputs after the model"


def lint(
    target: Annotated[
        str,
        typer.Argument(
            help="'package.module:function' or 'file.py:function' that returns (model, optimizer) or "
            "(model, optimizer, scheduler), if possible with example_inputs after the model."
        ),
    ],
    *,
    plan: Annotated[
        Path | None,
        typer.Option(help="A plan that says which rates are right, a file written by: evenstep plan -o FILE."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find parameters in a wrong group, no group or two groups, and schedulers that make rates equal; exit 1 if any."""
    known = None if plan is None else load_plan(plan)
    make = load_function(target, returns=_RETURNS)
    from evenstep.lint import lint as lint_groups

    model, inputs, optimizer, scheduler = _parts(target, make())
    findings = lint_groups(model, optimizer, scheduler, example_inputs=inputs, plan=known)
    if as_json:
        print(json.dumps({"target": target, "findings": [finding.to_dict() for finding in findings]}, indent=2))
    else:
        _print(target, findings)
    if findings:
        raise typer.Exit(1)


def _parts(target: str, made: Any) -> tuple[Any, Any, Any, Any]:
    """Split what a function returned into model, example inputs, optimiser and scheduler."""
    if isinstance(made, tuple) and len(made) > 1:
        model, *rest = made
        inputs = None if _is_optimizer(rest[0]) else rest.pop(0)
        if rest and len(rest) < 3 and _is_optimizer(rest[0]):
            return model, inputs, rest[0], rest[1] if len(rest) == 2 else None
    what = f"({', '.join(type(part).__name__ for part in made)})" if isinstance(made, tuple) else shown(made)
    raise InputError(f"'{target}' returned {what}; return {_RETURNS}")


def _is_optimizer(value: Any) -> bool:
    """Tell an optimiser, or a list of them, from example inputs."""
    values = value if isinstance(value, list | tuple) and value else [value]
    return all(isinstance(getattr(each, "param_groups", None), list) for each in values)


def _print(target: str, findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        print(f"{target}: {finding}")
    if not findings:
        print(f"{target}: no findings")
