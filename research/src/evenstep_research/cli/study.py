"""`evenstep study`: whole experiments, recorded."""

from __future__ import annotations

import typer

from evenstep_research.cli.axes import axes
from evenstep_research.cli.evidence import evidence
from evenstep_research.cli.external import external
from evenstep_research.cli.figures import command_for, list_figures
from evenstep_research.cli.real import real
from evenstep_research.cli.transfer import transfer
from evenstep_research.study.figures.catalogue import FIGURES

study = typer.Typer(name="study", help="Run whole experiments and record them.", no_args_is_help=True)
study.command("list")(list_figures)
study.command()(transfer)
study.command()(real)
study.command()(external)
study.command()(axes)
study.command()(evidence)
for figure in FIGURES:
    study.command(figure.name)(command_for(figure))
