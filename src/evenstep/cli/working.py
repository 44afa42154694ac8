"""Show that a command is at work, after two seconds: a spinner on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenstep.search.showing import SearchProgress, Show

AFTER = 2.0  # seconds before anything is shown
EVERY = 10.0  # seconds between lines


class Work:
    """What a command is doing; call it with new words when that changes."""

    def __init__(self, what: str) -> None:
        self.words = what
        self.done = Event()
        self._shown: Thread | None = None

    def __call__(self, words: str) -> None:
        """Show these words from now on."""
        self.words = words

    def show(self, after: float, every: float) -> None:
        """Begin to show the words, in a separate thread."""
        show = _spin if is_terminal() else _write_lines
        self._shown = Thread(target=show, args=(self, after, every), daemon=True)
        self._shown.start()

    def stop(self) -> None:
        """Stop showing: the work is done, or something else shows it."""
        self.done.set()
        if self._shown is not None:
            self._shown.join()


@contextmanager
def working(what: str, *, quiet: bool = False, after: float | None = None, every: float = EVERY) -> Iterator[Work]:
    """Show on standard error what a command is doing; yield a `Work` that changes the words."""
    work = Work(what)
    if not quiet:
        work.show(AFTER if after is None else after, every)
    try:
        yield work
    finally:
        work.stop()


@contextmanager
def searching(what: str, *, quiet: bool) -> Iterator[Show | bool]:
    """Show the work before a search, then the search: a bar on a terminal, else a line now and then."""
    if quiet:
        yield False
        return
    from evenstep.search.showing import shown_in_turn

    with working(what) as work, shown_in_turn(as_bar=is_terminal()) as tell:

        def show(progress: SearchProgress) -> None:
            work.stop()
            tell(progress)

        yield show


def _write_lines(work: Work, after: float, every: float) -> None:
    begun, wait = time.monotonic(), after
    while not work.done.wait(wait):
        print(f"{work.words} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)
        wait = every


def _spin(work: Work, after: float, every: float) -> None:
    if work.done.wait(after):
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)

    def line() -> Text:
        text = Text(work.words)  # names may look like rich's markup
        text.truncate(console.width - 4, overflow="ellipsis")
        return text

    with console.status(line()) as status:
        while not work.done.wait(min(every, 0.2)):
            status.update(line())


def is_terminal() -> bool:
    """Return whether standard error is a terminal."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # standard error is missing or closed
        return False
