"""Show the progress of a search while it runs: a bar on terminals and in notebooks, nothing in files and pipes.

Commands show progress in files and pipes too: a line for each search that starts, and then a line now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from evenstep.arguments import require_function


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Progress of a search: trials done, the most expected, the best rate and loss so far, and trials diverged.

    Nearly all searches stay below `total`; one that has to look many octaves further needs more. `share` is the share
    that is done, which never falls. `stage` says what is searched, by trials of `steps` steps.
    """

    done: int
    total: int
    best: float | None
    loss: float
    diverged: int
    share: float = 0.0
    stage: str = "searching"
    steps: int = 0


Show = Callable[[SearchProgress], None]


@contextmanager
def shown_progress(asked: Show | bool | None) -> Iterator[Show | None]:
    """Yield a function that shows progress (the given one, or a bar), or None.

    By default a bar is shown on terminals and in notebooks. True always shows one, False never.
    """
    if asked is None:
        asked = _is_watched(sys.stderr)
    if not isinstance(asked, bool):
        yield require_function("progress", asked, what="a function that takes a SearchProgress, True or False")
    elif not asked:
        yield None
    else:
        bar = None if _in_notebook() else _rich_bar()
        if bar is None:
            with _line(sys.stderr) as show:
                yield show
        else:
            with bar:
                yield _on(bar)


@contextmanager
def shown_in_turn(*, as_bar: bool) -> Iterator[Show]:
    """Yield a function that shows a command's searches one after another: in one bar, or in lines."""
    bar = _rich_bar() if as_bar else None
    if bar is None:
        yield _stages(sys.stderr)
        return

    def show(progress: SearchProgress) -> None:
        bar.start()  # only now: before, the command may show something else
        _on(bar)(progress)

    try:
        yield show
    finally:
        bar.stop()


EVERY = 10.0  # seconds between lines of a search


def _stages(stream: TextIO, clock: Callable[[], float] = time.monotonic) -> Show:
    """Return a function that writes a line when a search begins, and its progress now and then."""
    last: SearchProgress | None = None
    written = 0.0

    def show(progress: SearchProgress) -> None:
        nonlocal last, written
        same = last is not None and (last.stage, last.steps) == (progress.stage, progress.steps)
        line = ""
        if last is None or not same or progress.done < last.done:
            line = f"{progress.stage}: up to {progress.total} trials of {progress.steps} steps"
        elif clock() - written >= EVERY:
            line = f"{progress.stage} {progress.share:.0%}: {_words(progress)}"
        if line:
            stream.write(f"{line}\n")
            stream.flush()
            written = clock()
        last = progress

    return show


def _is_watched(stream: Any) -> bool:
    try:
        return bool(stream.isatty()) or _in_notebook()
    except (AttributeError, ValueError):  # standard error is missing or closed
        return False


def _in_notebook() -> bool:
    """Say whether this process is a notebook's kernel, without importing anything."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _rich_bar() -> Any:
    """Return a rich bar, or None if rich is not installed or already shows something."""
    try:
        from rich import get_console
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    if getattr(get_console(), "_live_stack", None) or getattr(get_console(), "_live", None):
        return None
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("searching", total=1.0)
    return bar


def _on(bar: Any) -> Show:
    def show(progress: SearchProgress) -> None:
        bar.update(bar.task_ids[0], completed=progress.share, description=_words(progress))

    return show


@contextmanager
def _line(stream: TextIO) -> Iterator[Show]:
    """Yield a function that rewrites one line, which is removed at the end."""
    longest = 0

    def show(progress: SearchProgress) -> None:
        nonlocal longest
        text = f"searching {progress.share:4.0%}: {_words(progress)}"
        longest = max(longest, len(text))
        stream.write(f"\r{text.ljust(longest)}")
        stream.flush()

    try:
        yield show
    finally:
        if longest:
            stream.write(f"\r{' ' * longest}\r")
            stream.flush()


def _words(progress: SearchProgress) -> str:
    best = "none yet" if progress.best is None else f"{progress.best:.3g} (loss {progress.loss:.4g})"
    lost = f", {progress.diverged} diverged" if progress.diverged else ""
    return f"{progress.done} of at most {progress.total} trials, best so far {best}{lost}"
