"""A plan as text of a given width: what all parameters share, then a line for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from evenstep.planning.table import PlanTable, Reason, plan_table, shortened
from evenstep.planning.words import head_lines, shared_words

if TYPE_CHECKING:
    from evenstep.planning.plan import Plan

WIDTH = 80  # of terminals, unless they are known to be wider
_LONG_NAME = 36  # names get this many letters before shapes are shown
_SHORT_NAME = 22  # names get this many letters before factors are shown
_NARROWEST_NAME = 9  # letters in the title 'parameter'
_GAP = "  "


def format_plan(plan: Plan, *, width: int | None = WIDTH, warnings: bool = True) -> str:
    """Return a plan as text: rule and shared factors, each reason once, a line for each parameter, warnings.

    Every line has at most `width` letters. If the columns are too wide, shapes are dropped first, then factors from the
    last, and long names lose their middle. With `width=None` nothing is shortened, for files and pipes.
    """
    table = plan_table(plan)
    lines = [*head_lines(plan), f"All rates: {shared_words(plan)}"]
    parts = [*_wrapped(lines, width), *_legend("Factors of single parameters:", table.factors, width)]
    parts += [*_legend("Notes:", table.notes, width), "", *_rows(table, width)]
    warned = _wrapped((f"Warning: {text}" for text in plan.warnings), width) if warnings else []
    return "\n".join([*parts, *(["", *warned] if warned else [])])


def _wrapped(lines: Iterable[str], width: int | None, indent: str = "  ") -> list[str]:
    if width is None:
        return list(lines)
    return [part for line in lines for part in wrap(line, max(width, 20), subsequent_indent=indent) or [""]]


def _legend(title: str, reasons: Sequence[Reason], width: int | None) -> list[str]:
    if not reasons:
        return []
    wide = max(len(reason.mark) for reason in reasons)
    lines = (f"  {reason.mark:<{wide}}{_GAP}{reason.words}" for reason in reasons)
    return [title, *_wrapped(lines, width, " " * (wide + 4))]


def _rows(table: PlanTable, width: int | None) -> list[str]:
    shapes = _column("shape", [row.shape for row in table.rows])
    values = [_column("std", [row.std for row in table.rows], right=True)]
    values.append(_column(table.rate_title, [row.rate for row in table.rows], right=True))
    factors = [
        _column(reason.mark, [row.factors[place] for row in table.rows], right=True)
        for place, reason in enumerate(table.factors)
    ]
    notes = [_column("notes", [" ".join(row.notes) for row in table.rows])] if table.notes else []
    names = [row.name for row in table.rows]
    longest = max(map(len, ("parameter", *names)))
    columns = [shapes, *values, *factors, *notes]
    if width is not None:
        droppable = [(shapes, _LONG_NAME), *((column, _SHORT_NAME) for column in reversed(factors))]
        for column, wanted in droppable:
            if width - _total(columns) < min(longest, wanted):
                columns = [kept for kept in columns if kept is not column]
        names = shortened(names, max(width - _total(columns), _NARROWEST_NAME))
    cells = [_column("parameter", names), *columns]
    return [_GAP.join(row).rstrip() for row in zip(*cells, strict=True)]


def _column(title: str, cells: Sequence[str], *, right: bool = False) -> list[str]:
    wide = max(map(len, (title, *cells)))
    return [f"{cell:>{wide}}" if right else f"{cell:<{wide}}" for cell in (title, *cells)]


def _total(columns: Sequence[Sequence[str]]) -> int:
    """Return how many letters columns take, including the gap before each."""
    return sum(len(column[0]) + len(_GAP) for column in columns)
