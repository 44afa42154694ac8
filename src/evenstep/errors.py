"""Errors of evenstep: one base class; every message names the thing, the value and the remedy."""

import re
import sys
import warnings
from pathlib import Path

_OURS = f"{Path(__file__).parent}/"
_BETWEEN = ("/torch/", "/contextlib.py", "/functools.py")  # frames that may lie between a caller and this package


class EvenstepError(Exception):
    """Report bad input or a limit of the theory; the command line prints the message and exits with 2.

    A message is a single line, even if a value in it prints as several.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(re.sub(r"\s*[\r\n]+\s*", " ", message).strip())


class GraphError(EvenstepError):
    """Report a graph or a code that is malformed, cyclic, or has no live path."""


class InputError(EvenstepError):
    """Report an argument outside what is accepted."""


class DamageError(InputError):
    """Report plain values, such as a file's contents, that cannot be read; `cause` says why."""

    def __init__(self, name: str, cause: str, remedy: str) -> None:
        super().__init__(f"{name} is damaged ({cause}); {remedy}")
        self.cause = cause


class TraceError(EvenstepError):
    """Report a module that cannot be read as a graph."""


class PlanError(EvenstepError):
    """Report a plan that does not fit the model, or a plan file that cannot be read."""


class StoreError(EvenstepError):
    """Report a store of finished runs that cannot be read or written."""


class SearchError(EvenstepError):
    """Report a search that ended without an answer."""


class PlanWarning(UserWarning):
    """Point out something in a plan that is likely to be wrong; `strict=True` makes it an error."""


class SearchWarning(UserWarning):
    """Say what a search cannot do for its caller, and what the caller should change."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the caller's line: the nearest frame outside this package."""
    frame, level = sys._getframe(1), 2
    while (outer := frame.f_back) is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_OURS) and not any(part in path for part in _BETWEEN):
            break
        frame, level = outer, level + 1
    warnings.warn(message, category, stacklevel=level)
