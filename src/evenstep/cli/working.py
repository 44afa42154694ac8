"""Say that a command is at work, once that takes over two seconds: a spinner on a terminal, else a line at times."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

AFTER = 2.0  # seconds of silence
EVERY = 10.0  # seconds from one line to the next


@contextmanager
def working(
    what: str, *, quiet: bool = False, after: float = AFTER, every: float = EVERY
) -> Iterator[Callable[[str], None]]:
    """Show on standard error what is being done; yields what changes the words."""
    words = [what]
    if quiet:
        yield words.append
        return
    done = Event()
    show = _spin if _is_terminal() else _write_lines
    shown = Thread(target=show, args=(words, done, after, every), daemon=True)
    shown.start()
    try:
        yield words.append
    finally:
        done.set()
        shown.join()


def _write_lines(words: list[str], done: Event, after: float, every: float) -> None:
    begun, wait = time.monotonic(), after
    while not done.wait(wait):
        print(f"{words[-1]} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)
        wait = every


def _spin(words: list[str], done: Event, after: float, every: float) -> None:
    if done.wait(after):
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)

    def line() -> Text:
        text = Text(words[-1])  # names may look like rich's markup
        text.truncate(console.width - 4, overflow="ellipsis")
        return text

    with console.status(line()) as status:
        while not done.wait(min(every, 0.2)):
            status.update(line())


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False
