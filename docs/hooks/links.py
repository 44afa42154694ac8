"""Link functions that pages name by their full path to the reference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_NAMED = re.compile(r"`(evenstep(?:\.[A-Za-z_]\w*)+)`")
_LISTED = re.compile(r"^::: (\S+)$", flags=re.MULTILINE)
REFERENCE = Path(__file__).parents[1] / "api.md"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn `evenstep.graph.path_moments.path_moments` into a link, where the reference has it."""
    return markdown if page.file.src_uri == REFERENCE.name else linked(markdown)


def linked(markdown: str) -> str:
    """Return a page with links to the reference."""
    listed = set(_LISTED.findall(REFERENCE.read_text()))
    return _NAMED.sub(lambda found: f"[{found[0]}][{found[1]}]" if found[1] in listed else found[0], markdown)
