"""A plan as a table: a line for each parameter, and each reason that several share once."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from evenstep.planning.words import eps_and_decay_words, rate_words
from evenstep.rules import Factor

if TYPE_CHECKING:
    from evenstep.planning.plan import ParameterPlan, Plan

# A number by itself; numbers inside names, such as 'layers.0.weight', do not count.
_NUMBER = re.compile(r"(?<![\w.'])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")
_VARIES = "…"


@dataclass(frozen=True, slots=True)
class Reason:
    """Words that several rows share, with their mark: a factor's name, or the letter of a note.

    '…' replaces numbers that differ from row to row.
    """

    mark: str
    words: str


@dataclass(frozen=True, slots=True)
class TableRow:
    """A parameter's cells; `factors` has one for each factor of the table, '' if the parameter has none of that name.

    `notes` are letters of the table's notes; `whys` has the exact words of each factor, `note_words` of each note.
    """

    name: str
    shape: str
    std: str
    rate: str
    factors: tuple[str, ...]
    whys: tuple[str, ...]
    notes: tuple[str, ...]
    note_words: tuple[str, ...]


@dataclass(frozen=True)
class PlanTable:
    """The rows of all parameters, the factors that have a column, and the notes, each once."""

    factors: tuple[Reason, ...]
    notes: tuple[Reason, ...]
    rows: tuple[TableRow, ...]
    rate_title: str

    @cached_property
    def note_words(self) -> dict[str, str]:
        """The words of each note, by its letter."""
        return {note.mark: note.words for note in self.notes}


def plan_table(plan: Plan) -> PlanTable:
    """Return a plan's table; each factor that not all parameters share has a column."""
    own = [() if p.frozen else plan.own_factors(p) for p in plan.parameters]
    names = list(dict.fromkeys(factor.name for factors in own for factor in factors))
    noted = [_note_words(plan, p) for p in plan.parameters]
    merged = _merged([words for row in noted for words in row])
    letters = {words: _letters(place) for place, words in enumerate(dict.fromkeys(merged.values()))}
    rate = 1.0 if plan.base is None else plan.base
    rows = tuple(
        TableRow(
            p.name,
            "x".join(map(str, p.shape)) or "scalar",
            std_words(p),
            rate_words(p, rate * p.lr_scale),
            tuple(_value(name, factors) for name in names),
            tuple(_why(name, factors) for name in names),
            tuple(dict.fromkeys(letters[merged[words]] for words in notes)),
            notes,
        )
        for p, factors, notes in zip(plan.parameters, own, noted, strict=True)
    )
    factors = tuple(Reason(name, "; ".join(_different(_whys(name, own)))) for name in names)
    notes = tuple(Reason(letter, words) for words, letter in letters.items())
    return PlanTable(factors, notes, rows, "lr_scale" if plan.base is None else "lr")


def std_words(parameter: ParameterPlan) -> str:
    """Return a parameter's standard deviation, or the value that all its entries start at."""
    if parameter.kept:
        return "kept"
    return f"{parameter.std:.4g}" if parameter.std else f"all {parameter.mean:g}"


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most `width` letters: long ones lose their middle, cut such that most stay distinct.

    >>> shortened(["transformer.h.0.attn.weight", "transformer.h.1.attn.weight"], 20)
    ['transf…0.attn.weight', 'transf…1.attn.weight']
    """
    long = {name for name in names if len(name) > width}

    def cut(name: str, head: int) -> str:
        return f"{name[:head]}{_VARIES}{name[len(name) - (width - head - 1) :]}" if name in long else name

    heads = sorted(range(1, width - 1), key=lambda head: abs(head - width // 2))
    best = max(heads, key=lambda head: len({cut(name, head) for name in long}), default=0) if long else 0
    return [cut(name, best) for name in names]


def _note_words(plan: Plan, parameter: ParameterPlan) -> tuple[str, ...]:
    # All parameters share the plan's own epsilon factors, which come first.
    single = replace(parameter, eps_factors=parameter.eps_factors[len(plan.eps_factors) :])
    scaled = () if parameter.frozen else tuple(eps_and_decay_words(single))
    # The column of standard deviations already shows these.
    evident = (f"starts at {parameter.mean:g}", "kept as it is") if parameter.kept or not parameter.std else ()
    start = () if parameter.init_reason in evident else (f"init: {parameter.init_reason}",)
    return (*parameter.notes, *scaled, *start)


def _value(name: str, factors: Iterable[Factor]) -> str:
    values = [factor.value for factor in factors if factor.name == name]
    return f"{math.prod(values):.4g}" if values else ""


def _why(name: str, factors: Iterable[Factor]) -> str:
    return "; ".join(factor.why for factor in factors if factor.name == name)


def _whys(name: str, own: Iterable[Iterable[Factor]]) -> list[str]:
    return [factor.why for factors in own for factor in factors if factor.name == name]


def _different(texts: Sequence[str]) -> list[str]:
    merged = _merged(texts)
    return list(dict.fromkeys(merged[text] for text in texts))


def _merged(texts: Iterable[str]) -> dict[str, str]:
    """Return for each text what it shares with those that differ from it only in numbers."""
    alike: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        alike.setdefault(_NUMBER.sub(_VARIES, text), []).append(text)
    shared = {pattern: _shared(group) for pattern, group in alike.items()}
    return {text: shared[pattern] for pattern, group in alike.items() for text in group}


def _shared(texts: Sequence[str]) -> str:
    numbers = list(zip(*(_NUMBER.findall(text) for text in texts), strict=True))
    kept = iter(values[0] if len(set(values)) == 1 else _VARIES for values in numbers)
    return _NUMBER.sub(lambda _: next(kept), texts[0])


def _letters(place: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    before, last = divmod(place, 26)
    return (_letters(before - 1) if before else "") + chr(ord("a") + last)
