"""Errors of evenstep: one base class; every message names the thing, the value and the remedy."""

import re
import sys
import warnings
from pathlib import Path

_OURS = f"{Path(__file__).parent}/"
_BETWEEN = ("/torch/", "/contextlib.py", "/functools.py")  # what may stand between a caller and us


class EvenstepError(Exception):
    """Report bad input or a limit of the theory; the command line prints the message and exits with 2.

    A message is one line, whatever the values in it print as.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(re.sub(r"\s*[\r\n]+\s*", " ", message).strip())


class GraphError(EvenstepError):
    """Report a graph or a code that is malformed, cyclic, or has no live path."""


class InputError(EvenstepError):
    """Report an argument outside what is accepted."""


class DamageError(InputError):
    """Report plain values, as a file holds them, that cannot be read; `cause` says why."""

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
    """Say what a search cannot do for its caller, and what to change."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the caller's that led here: the nearest one outside this package."""
    frame, level = sys._getframe(1), 2
    while (outer := frame.f_back) is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_OURS) and not any(part in path for part in _BETWEEN):
            break
        frame, level = outer, level + 1
    warnings.warn(message, category, stacklevel=level)
