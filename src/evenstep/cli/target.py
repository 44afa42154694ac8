"""Load what the command line names: a function in a module or a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from evenstep.errors import InputError


def load_target(target: str) -> tuple[Any, Any]:
    """Call 'package.module:function' or 'file.py:function'; it returns (model, example_inputs)."""
    made = load_function(target, returns="(model, example_inputs)")()
    if not isinstance(made, tuple) or len(made) != 2:
        raise InputError(f"'{target}' returned {type(made).__name__}; return (model, example_inputs)")
    return made


def load_function(target: str, *, returns: str) -> Callable[..., Any]:
    """Return the function that 'package.module:function' or 'file.py:function' names; what it raises is one line."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise InputError(f"target '{target}' is not 'package.module:function' or 'file.py:function'")
    make = getattr(_load(place, target), name, None)
    if not callable(make):
        raise InputError(f"'{place}' has no function '{name}'; name one that returns {returns}")

    def called(*arguments: Any) -> Any:
        try:
            return make(*arguments)
        except Exception as error:
            raise _failed(target, error) from error

    return called


def _load(place: str, target: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise InputError(f"there is no file '{place}' (from target '{target}')")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)  # so that worker processes find its classes by name
        sys.path.insert(0, str(path.resolve().parent))  # a script finds its neighbours, as under `python file.py`
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise _failed(target, error) from error
        return module
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise InputError(f"cannot import '{place}' (from target '{target}'): {error}") from None
    except Exception as error:
        raise _failed(target, error) from error


def _failed(target: str, error: Exception) -> InputError:
    """Say in one line where the user's own code raised."""
    if isinstance(error, SyntaxError):
        file, line = error.filename or "", error.lineno
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file, line = frame.filename, frame.lineno
    said = " ".join(str(error).split())
    return InputError(f"'{target}' raised {type(error).__name__} at {Path(file).name}:{line}: {said}; mend it there")
