"""What other installed packages, such as evenstep-research, add to the command line through entry points.

`evenstep.commands` are Typer apps; each becomes a command named after its entry point. `evenstep.spaces` are functions
from `SpaceOptions` to a `Space`. `folder` in `evenstep.data` is a function from a data set's folder to its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

import typer

from evenstep.errors import InputError
from evenstep.graph import Graph

RESEARCH = "evenstep-research"
GET_RESEARCH = f"pip install {RESEARCH}, or in a clone pip install ./research"
# What evenstep-research adds, in this order. Help lists its commands even where it is not installed.
COMMANDS = {
    "study": "Run whole experiments and record them.",
    "nas": "Train NAS-Bench-201 fairly, and compare.",
    "data": "Download, list and check data sets.",
}
SPACES = ("mlp", "cnn", "nasbench201")


@dataclass(frozen=True)
class SpaceOptions:
    """The options that describe networks given by code; None stands for the space's default."""

    order: str
    norm: str
    activation: str
    width: int | None
    inputs: int | None
    classes: int
    kernel_size: int
    image_size: int
    base_code: str | None
    base_width: int | None
    base_kernel_size: int


@dataclass(frozen=True)
class Space:
    """Build the graph of a code and of its base in one space."""

    target: Callable[[str], Graph]
    base: Callable[[], Graph]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of other packages; a command of evenstep-research that is missing says how to install it."""
    points = _points("evenstep.commands", COMMANDS)
    for name in dict.fromkeys((*COMMANDS, *points)):
        if name not in points:
            _add_refusal(app, name, f"{COMMANDS[name]} Needs {RESEARCH}.", _absent(f"the command '{name}'"))
            continue
        try:
            app.add_typer(points[name].load(), name=name)
        except Exception as error:  # one broken package must not stop the other commands
            _add_refusal(app, name, "Cannot be loaded.", _broken(points[name], error))


def load_space(name: str) -> Callable[[SpaceOptions], Space]:
    """Return the space with this name."""
    points = _points("evenstep.spaces", SPACES)
    if not points:
        raise _absent("a network given by --code")
    if name not in points:
        *others, last = points
        raise InputError(f"space is '{name}'; choose {', '.join(others)} or {last}")
    return _loaded(points[name])


def load_data_folder() -> Callable[[Any], Any]:
    """Return the function that reads the folder of a data set."""
    points = _points("evenstep.data", ())
    if "folder" not in points:
        raise _absent("the folder of a data set")
    return _loaded(points["folder"])


def research_version() -> str | None:
    """Return the version of evenstep-research, or None if it is not installed."""
    try:
        return version(RESEARCH)
    except PackageNotFoundError:
        return None


def _points(group: str, first: Iterable[str]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name: those in `first` in that order, then the others."""
    points = {point.name: point for point in entry_points(group=group)}
    return {name: points[name] for name in (*(n for n in first if n in points), *sorted(points.keys() - set(first)))}


def _loaded(point: EntryPoint) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = point.load()
    except ImportError as error:
        raise _broken(point, error) from None
    return function


def _absent(what: str) -> InputError:
    return InputError(f"{what} needs {RESEARCH}, which is not installed; {GET_RESEARCH}")


def _broken(point: EntryPoint, error: Exception) -> InputError:
    package = point.dist.name if point.dist else "the package"
    why = " ".join(str(error).split())
    return InputError(f"'{point.name}' of {package} cannot be loaded ({type(error).__name__}: {why}); reinstall it")


def _add_refusal(app: typer.Typer, name: str, text: str, refusal: InputError) -> None:
    """Add a command that takes any arguments, even `--help`, and answers with one line."""
    anything = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name, help=text, add_help_option=False, context_settings=anything)
    def refuse() -> None:
        raise refusal
