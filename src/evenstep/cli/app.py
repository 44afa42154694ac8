"""The command `evenstep` and its entry point."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer

from evenstep import __version__
from evenstep.cli.added import add_commands
from evenstep.cli.auto import auto, refine
from evenstep.cli.check import check
from evenstep.cli.demo import demo
from evenstep.cli.doctor import doctor
from evenstep.cli.lint import lint
from evenstep.cli.plan import plan
from evenstep.cli.report import report
from evenstep.cli.runs import runs
from evenstep.cli.saying import say
from evenstep.cli.search import search
from evenstep.errors import EvenstepError, PlanWarning, SearchWarning

app = typer.Typer(
    name="evenstep",
    help="An initialisation and a learning rate for every parameter of any PyTorch module.",
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)
app.command()(auto)
app.command()(plan)
app.command()(search)
app.command()(refine)
app.command()(check)
app.command()(lint)
app.command()(report)
app.command()(demo)
app.command()(doctor)
app.add_typer(runs)
add_commands(app)


@app.callback()
def _evenstep(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def _show(message: Warning | str, *details: Any, **more: Any) -> None:
    """Print evenstep's warnings as one line each, and all others as Python does."""
    if isinstance(message, PlanWarning | SearchWarning):
        say(f"warning: {message}", to=sys.stderr)
    else:
        _default_showwarning(message, *details, **more)


_default_showwarning = warnings.showwarning


def main() -> None:
    """Run the command line: bad input prints one line and exits with 2; a warning prints one line."""
    warnings.showwarning = _show
    try:
        app()
    except EvenstepError as error:
        say(f"error: {error}", to=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
