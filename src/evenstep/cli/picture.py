"""Refuse a picture that cannot be drawn, before anything is trained for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evenstep.errors import InputError


def require_place(path: Path, what: str) -> None:
    """Refuse a file whose folder does not exist, or that is itself a folder; `what` is the option's name."""
    if not os.path.isdir(path.parent):
        raise InputError(f"there is no folder '{path.parent}' for the {what}; make it, or give another --{what}")
    if os.path.isdir(path):
        raise InputError(f"the {what} is '{path}', a folder; give a file as --{what}")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise InputError(f"the {what} cannot be written to '{path}': permission denied; give another --{what}")


def require_picture(path: Path) -> None:
    """Refuse a picture whose folder does not exist, or whose name ends in a format that cannot be drawn."""
    require_place(path, "picture")
    try:
        from matplotlib.backend_bases import FigureCanvasBase  # here: it takes a second, and few calls draw
    except ImportError:
        raise InputError(
            f"the picture '{path}' is drawn with matplotlib, which is not installed; install it with pip install "
            "'evenstep[pictures]'"
        ) from None

    if path.suffix and path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        raise InputError(f"the picture is '{path}', which has an unknown format; end it in .png, .pdf or .svg")


@contextmanager
def drawing(path: Path) -> Iterator[None]:
    """Turn a failure to write a picture into one line."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the picture cannot be written to '{path}': {error.strerror}; give another --picture"
        ) from None
