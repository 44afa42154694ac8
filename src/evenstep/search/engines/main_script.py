"""Decide whether worker processes run the main script again, which they do if a job needs what it defines.

By default Python lets every worker run the script, needed or not: a script that starts a search without a guard would
start another in each worker. So workers run the script only if a job refers to it, and only if that is safe.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

GUARD = "`if __name__ == '__main__':`"


def refers_to_main(pickled: bytes) -> bool:
    """Say whether pickled values refer to anything that the main script defines."""
    return b"__main__" in pickled


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the main script from processes that are started in this context."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def why_not_again() -> str | None:
    """Return why a worker cannot run the main script again, or None if it can."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is None:  # not started as `python -m`
        file = getattr(main, "__file__", None)
        if file is None:
            return "other processes do not know what a notebook defines; move it to a module to train on all cores"
        if not os.path.isfile(file):  # such as <stdin>
            return f"other processes cannot run '{file}' again, which defines it; run a file to train on all cores"
    line = _line_being_run(main)
    if line is None or _is_guarded(getattr(main, "__file__", None), line):
        return None
    return (
        "the script that defines it calls the search without a guard, and would call it again in every worker; put the "
        f"call under {GUARD} to train on all cores"
    )


def _line_being_run(main: ModuleType) -> int | None:
    """Return the line of the main script that the main thread is at, or None if the script has ended."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is vars(main):
            return frame.f_lineno
        frame = frame.f_back
    return None


def _is_guarded(path: Any, line: int) -> bool:
    """Say whether a line of a script is under a condition on `__name__`; a script that cannot be read is trusted."""
    try:
        with open(path, "rb") as script:
            nodes = list(ast.walk(ast.parse(script.read())))
    except (OSError, TypeError, ValueError, SyntaxError):
        return True
    around = [n for n in nodes if isinstance(n, ast.If) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    names = (name for condition in around for name in ast.walk(condition.test))
    return any(isinstance(name, ast.Name) and name.id == "__name__" for name in names)
