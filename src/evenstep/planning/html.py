"""A plan as a table in a notebook: plain HTML, everything escaped, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from evenstep.planning.table import Reason, TableRow, plan_table
from evenstep.planning.words import head_lines, shared_words

if TYPE_CHECKING:
    from evenstep.planning.plan import Plan

LARGEST_TABLE = 200  # rows, since a notebook's file keeps them all


def plan_html(plan: Plan) -> str:
    """Return what all parameters share, then a table of the first parameters, then the warnings."""
    table = plan_table(plan)
    shown = table.rows[:LARGEST_TABLE]
    titles = ("parameter", "shape", "std", table.rate_title, *(factor.mark for factor in table.factors), "notes")
    left_out = len(table.rows) - len(shown)
    head, *more = head_lines(plan)
    parts = [
        f"<p><strong>{escape(head)}</strong></p>",
        *(_paragraph(line) for line in more),
        _paragraph(f"All rates: {shared_words(plan)}"),
        *_legend("Factors of single parameters", table.factors),
        *_legend("Notes", table.notes),
        f"<table><thead>{_row('th', titles)}</thead><tbody>{''.join(_row('td', _cells(row)) for row in shown)}</tbody>"
        "</table>",
        *([_paragraph(f"... {left_out} more; print(plan) shows all")] if left_out else []),
        *(_paragraph(f"Warning: {text}") for text in plan.warnings),
    ]
    return f"<div>{''.join(parts)}</div>"


def _cells(row: TableRow) -> tuple[str, ...]:
    return row.name, row.shape, row.std, row.rate, *row.factors, " ".join(row.notes)


def _legend(title: str, reasons: Sequence[Reason]) -> list[str]:
    if not reasons:
        return []
    lines = "".join(f"<li>{escape(reason.mark)}: {escape(reason.words)}</li>" for reason in reasons)
    return [f"{_paragraph(title)}<ul>{lines}</ul>"]


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
