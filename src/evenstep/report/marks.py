"""Put tables into Markdown pages, between a line `<!-- NAME -->` and a line `<!-- end -->`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from evenstep.errors import InputError

END = "<!-- end -->"
Marks = Mapping[str, Callable[[Mapping[str, Any]], str]]  # by name, the functions that make a page's tables


def filled(page: str, marks: Marks, record: Mapping[str, Any]) -> str:
    """Return a page with a record's tables between its marks, replacing what is there."""
    require_marks(page, marks)
    for name, table in marks.items():
        before, begin, rest = page.partition(f"<!-- {name} -->")
        _, end, after = rest.partition(END)
        if begin:
            page = f"{before}{begin}\n{table(record)}\n{end}{after}"
    return page


def require_marks(page: str, marks: Iterable[str]) -> None:
    """Refuse a page without a place for any of the tables."""
    names = [name for name in marks if f"<!-- {name} -->" in page]
    if not names:
        wanted = " or ".join(f"'<!-- {name} -->'" for name in marks)
        raise InputError(f"the page has no line {wanted}; put one where the table belongs, and '{END}' after it")
    for name in names:
        if END not in page.partition(f"<!-- {name} -->")[2]:
            raise InputError(f"the page has no line '{END}' after '<!-- {name} -->'; put one there")


def update_page(path: Path, marks: Marks, record: Mapping[str, Any] | None) -> None:
    """Write a record's tables into a file; without a record, only check that it has a place for them."""
    try:
        text = path.read_text()
        require_marks(text, marks)
        if record is not None:
            path.write_text(filled(text, marks, record))
    except OSError as error:
        raise InputError(f"the page '{path}' cannot be written ({error.strerror}); give another --page") from None
    except InputError as error:
        raise InputError(f"'{path}': {error}") from None
