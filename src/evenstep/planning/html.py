"""A plan as a table of a notebook: plain HTML, everything escaped, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from evenstep.planning.words import head_lines, row_words, shared_words, table_head

if TYPE_CHECKING:
    from evenstep.planning.plan import Plan

LARGEST_TABLE = 200  # rows; a notebook keeps what it shows


def plan_html(plan: Plan) -> str:
    """Return what all parameters share, then a row for each of the first, then what is likely to be wrong."""
    shown = plan.parameters[:LARGEST_TABLE]
    rows = (_row("td", row_words(plan, parameter)) for parameter in shown)
    left_out = len(plan.parameters) - len(shown)
    head, *more = head_lines(plan)
    parts = [
        f"<p><strong>{escape(head)}</strong></p>",
        *(_paragraph(line) for line in more),
        _paragraph(f"All rates: {shared_words(plan)}"),
        f"<table><thead>{_row('th', table_head(plan))}</thead><tbody>{''.join(rows)}</tbody></table>",
        *([_paragraph(f"... {left_out} more; print(plan) shows all")] if left_out else []),
        *(_paragraph(f"Warning: {text}") for text in plan.warnings),
    ]
    return f"<div>{''.join(parts)}</div>"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
