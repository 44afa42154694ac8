"""Load what the command line names: a function in a module or a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from evenstep.errors import InputError


def load_target(target: str) -> tuple[Any, Any]:
    """Call 'package.module:function' or 'file.py:function'; it returns (model, example_inputs)."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise InputError(f"target '{target}' is not 'package.module:function' or 'file.py:function'")
    module = _load(place, target)
    make = getattr(module, name, None)
    if not callable(make):
        raise InputError(f"'{place}' has no function '{name}'; name one that returns (model, example_inputs)")
    made = make()
    if not isinstance(made, tuple) or len(made) != 2:
        raise InputError(f"'{target}' returned {type(made).__name__}; return (model, example_inputs)")
    return made


def _load(place: str, target: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise InputError(f"there is no file '{place}' (from target '{target}')")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.resolve().parent))  # a script finds its neighbours, as under `python file.py`
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise InputError(f"cannot import '{place}' (from target '{target}'): {error}") from None
