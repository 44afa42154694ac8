"""Show the examples of docstrings as code: Markdown alone takes `>>>` for a quotation."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Doctests(Extension):
    """Indent every example, from its first `>>>` to the next empty line."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is None:
            return
        lines, inside = [], False
        for line in obj.docstring.value.splitlines():
            inside = line.startswith(">>>") or (inside and bool(line.strip()))
            lines.append(f"    {line}" if inside else line)
        obj.docstring.value = "\n".join(lines)
