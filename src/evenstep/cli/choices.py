"""Options that take a name from a list: help shows all names, and the shell completes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from evenstep.init import INITS
from evenstep.planning.optimizers import OPTIMIZER_NAMES
from evenstep.rules import RULES

SPACES = ("mlp", "cnn", "nasbench201")


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function that completes the beginning of a name.

    >>> among(["weighted", "paths"])("w")
    ['weighted']
    """
    listed = tuple(names)
    return lambda incomplete: [name for name in listed if name.startswith(incomplete)]


def listed(names: Iterable[str], more: str = "") -> str:
    """Return the help text of an option that takes one of these names.

    >>> listed(["local", "ray"])
    'local or ray.'
    """
    *most, last = names
    return f"{', '.join(most)} or {last}{more}."


RuleName = Annotated[str, typer.Option(help=listed(RULES), autocompletion=among(RULES))]
InitName = Annotated[str, typer.Option(help=listed(INITS), autocompletion=among(INITS))]
OptimizerName = Annotated[str, typer.Option(help=listed(OPTIMIZER_NAMES), autocompletion=among(OPTIMIZER_NAMES))]
BasesOptimizerName = Annotated[
    str | None,
    typer.Option(
        help=listed(OPTIMIZER_NAMES, "; default: the one that the base was searched with"),
        autocompletion=among(OPTIMIZER_NAMES),
    ),
]
SpaceName = Annotated[str, typer.Option(help=listed(SPACES), autocompletion=among(SPACES))]
