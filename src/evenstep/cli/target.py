"""Load a function that the command line names, from a module or a file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Sequence
from functools import update_wrapper
from pathlib import Path
from types import ModuleType
from typing import Any

from evenstep.errors import InputError


def load_target(target: str, examples: Callable[[], Any] | None = None) -> tuple[Any, Any]:
    """Call 'package.module:function' or 'file.py:function', which returns (model, example_inputs) or a model alone.

    `examples` returns example inputs, which replace those that the function returns.
    """
    made = load_function(target, returns="(model, example_inputs)")()
    from torch import nn  # here: torch takes seconds; report bad targets first

    if isinstance(made, nn.Module) and examples is None:
        raise InputError(
            f"'{target}' returned {type(made).__name__} without example inputs; return (model, example_inputs), or "
            "give --data"
        )
    if not isinstance(made, nn.Module) and (not isinstance(made, tuple) or len(made) != 2):
        raise InputError(f"'{target}' returned {type(made).__name__}; return (model, example_inputs)")
    model, given = (made, None) if isinstance(made, nn.Module) else made
    return model, given if examples is None else examples()


def load_object(target: str, *, returns: str) -> Any:
    """Return the function that a target names, unwrapped so that workers can load it; for a class, an instance."""
    function = _named(target, returns)
    return load_function(target, returns=returns)() if isinstance(function, type) else function


def load_function(target: str, *, returns: str) -> Callable[..., Any]:
    """Return the function that 'package.module:function' or 'file.py:function' names; its errors become one line."""
    make = _named(target, returns)

    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return make(*arguments, **named)
        except (Exception, SystemExit) as error:  # sys.exit() would end the command with the target's exit code
            raise _failed(target, error, (*arguments, *named.values())) from error

    # Copy the signature only: a class has attributes that a function should not.
    return update_wrapper(called, make, assigned=("__name__",), updated=())


def load_maker(target: str, *, returns: str) -> Callable[..., Any]:
    """Return the function that a target names, so that it returns a module and drops any example inputs."""
    make = load_function(target, returns=returns)

    def checked(*arguments: Any, **named: Any) -> Any:
        from torch import nn  # here: torch takes seconds; report bad targets first

        made = make(*arguments, **named)
        model = made[0] if isinstance(made, tuple) and len(made) == 2 else made
        if isinstance(model, nn.Module):
            return model
        raise InputError(
            f"'{target}' returned {type(made).__name__}; return a torch.nn.Module, or (model, example_inputs)"
        )

    return update_wrapper(checked, make, assigned=("__name__",), updated=())


def _named(target: str, returns: str) -> Callable[..., Any]:
    """Return the function that a target names."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise InputError(f"target '{target}' is not 'package.module:function' or 'file.py:function'")
    function = getattr(_load(place, target), name, None)
    if not callable(function):
        raise InputError(f"'{place}' has no function '{name}'; name one that returns {returns}")
    checked: Callable[..., Any] = function
    return checked


def _load(place: str, target: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place)
        if not os.path.isfile(path):  # not path.is_file(), which raises for names too long for a file system
            raise InputError(f"there is no file '{place}' (in target '{target}')")
        known = sys.modules.get(path.stem)
        if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
            return known  # so that two targets in one file share its classes
        spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)  # so that worker processes find its classes by name
        sys.path.insert(0, str(path.resolve().parent))  # so that it can import its neighbours, as with `python file.py`
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            if sys.modules.get(path.stem) is module:
                del sys.modules[path.stem]
            raise _failed(target, error) from error
        return module
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise InputError(f"cannot import '{place}' (in target '{target}'): {error}") from None
    except (Exception, SystemExit) as error:
        raise _failed(target, error) from error


def _failed(target: str, error: BaseException, arguments: Sequence[Any] = ()) -> InputError:
    """Return an error that says in one line where the user's code raised, and with which arguments."""
    if isinstance(error, SyntaxError):
        file, line = error.filename or "", error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        frame = ([one for one in frames if _is_own(one.filename)] or frames)[-1]
        file, line = frame.filename, frame.lineno
    reason = textwrap.shorten(str(error), 300, placeholder=" ...")
    given = f" called with {', '.join(map(repr, arguments))}" if arguments else ""
    remedy = "fix it there, or call it with another value" if arguments else "fix it there"
    return InputError(
        f"'{target}'{given} raised {type(error).__name__} at {Path(file).name}:{line}: {reason}; {remedy}"
    )


def _is_own(file: str) -> bool:
    """Return whether a file is the user's: not part of Python, an installed package or evenstep."""
    paths = sysconfig.get_paths()
    others = [Path(paths[key]) for key in ("stdlib", "purelib", "platlib")] + [Path(__file__).parents[1]]
    return not file.startswith("<") and not any(Path(file).is_relative_to(folder) for folder in others)
