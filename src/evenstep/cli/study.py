"""`evenstep study`: whole experiments, recorded."""

from __future__ import annotations

import typer

from evenstep.cli.transfer import transfer

study = typer.Typer(name="study", help="Run whole experiments and record them.", no_args_is_help=True)
study.command()(transfer)


@study.callback()
def _study() -> None:
    """Keep `study` a group while it has one command."""
