"""The script that a program was started with, and worker processes: they run it again if they need what it defines.

Python's own way gives every worker the script to run, whether it needs it or not: one that starts a search without a
guard would start another in each worker. So workers get the script only if a job refers to it, and only if it is safe.
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
    """Say whether pickled values refer to what the main script defines."""
    return b"__main__" in pickled


@contextmanager
def without_main() -> Iterator[None]:
    """Let processes that are started inside know no main script."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def why_not_again() -> str | None:
    """Say why a worker cannot run the main script again to get what it defines; None if it can."""
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
    """Return the line of the main script that is being run in the main thread; None if it is done."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is vars(main):
            return frame.f_lineno
        frame = frame.f_back
    return None


def _is_guarded(path: Any, line: int) -> bool:
    """Say whether a line of a script is under a condition on its name; a script that cannot be read is trusted."""
    try:
        with open(path, "rb") as script:
            nodes = list(ast.walk(ast.parse(script.read())))
    except (OSError, TypeError, ValueError, SyntaxError):
        return True
    around = [n for n in nodes if isinstance(n, ast.If) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    names = (name for condition in around for name in ast.walk(condition.test))
    return any(isinstance(name, ast.Name) and name.id == "__name__" for name in names)
