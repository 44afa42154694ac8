"""Print sentences, wrapped to a terminal's width and whole in files and pipes."""

from __future__ import annotations

import shutil
import sys
from textwrap import fill
from typing import TextIO


def say(text: str, *, to: TextIO | None = None) -> None:
    """Print lines of text; on a terminal, wrap long lines and indent what follows."""
    stream = sys.stdout if to is None else to
    if stream.isatty():
        width = max(shutil.get_terminal_size().columns, 20)
        text = "\n".join(fill(line, width, subsequent_indent="  ") for line in text.split("\n"))
    print(text, file=stream)
