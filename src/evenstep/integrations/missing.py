"""Import an integration's library, or say how to install it."""

from __future__ import annotations

import importlib
from types import ModuleType

from evenstep.errors import EvenstepError


class MissingError(EvenstepError, ImportError):
    """Report a library that is not installed."""


def required(*names: str) -> ModuleType:
    """Return the first of these modules that is installed; if none is, raise an error that says what to install."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # it is installed, but lacks something itself
    package = names[0].partition(".")[0]
    raise MissingError(
        f"evenstep.integrations.{_OURS.get(package, package)} needs the package {package}, which is not installed; "
        f"install it with pip install {package}"
    )


_OURS = {"transformers": "huggingface"}
