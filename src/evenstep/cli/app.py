"""The command `evenstep` and its entry point."""

from __future__ import annotations

import sys

import typer

from evenstep.cli.demo import demo
from evenstep.cli.plan import plan
from evenstep.errors import EvenstepError

app = typer.Typer(
    name="evenstep",
    help="An initialisation and a learning rate for every parameter of any PyTorch module.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(plan)
app.command()(demo)


@app.callback()
def _evenstep() -> None:
    pass


def main() -> None:
    """Run the command line; bad input prints one line and exits with 2."""
    try:
        app()
    except EvenstepError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
