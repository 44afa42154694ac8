"""Refuse a picture that cannot be drawn before anything is trained for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evenstep.errors import InputError


def require_place(path: Path, what: str) -> None:
    """Refuse a file for `what`, the option's name, whose folder is not there or that is a folder itself."""
    if not os.path.isdir(path.parent):
        raise InputError(f"there is no folder '{path.parent}' for the {what}; make it, or give another --{what}")
    if os.path.isdir(path):
        raise InputError(f"the {what} is '{path}', a folder; give a file as --{what}")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise InputError(f"the {what} cannot be written to '{path}': permission denied; give another --{what}")


def require_picture(path: Path) -> None:
    """Refuse a picture whose folder is not there, or whose name ends in a format that cannot be drawn."""
    require_place(path, "picture")
    try:
        from matplotlib.backend_bases import FigureCanvasBase  # here: it takes a second, and few ask for a picture
    except ImportError:
        raise InputError(
            f"the picture '{path}' is drawn with matplotlib, which is not installed; install it with pip install "
            "'evenstep[pictures]'"
        ) from None

    if path.suffix and path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        raise InputError(f"the picture is '{path}', of a format that is not known; end it in .png, .pdf or .svg")


@contextmanager
def drawing(path: Path) -> Iterator[None]:
    """Say in one line that a picture could not be written."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the picture cannot be written to '{path}': {error.strerror}; give another --picture"
        ) from None
