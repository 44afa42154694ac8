"""Turn what a caller passes into the parts of a page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evenstep.errors import InputError
from evenstep.planning import Plan
from evenstep.report.page.parts import CheckPart, Part, PlanPart, SearchPart, StudyPart
from evenstep.report.page.reading import part_of_values, read
from evenstep.search import Check, LRSearch

KINDS = "a plan, a search's result, a check's result, or a study's record"
Subject = Plan | LRSearch | Check | StudyPart | str | os.PathLike[str] | Mapping[str, Any]


def parts_of(subjects: Subject | Iterable[Subject], *, name: str = "") -> tuple[Part, ...]:
    """Return the parts of a page about one subject, several, or several by name."""
    if isinstance(subjects, Plan):
        return (PlanPart(name, subjects),)
    if isinstance(subjects, LRSearch):
        return (SearchPart(name, subjects),)
    if isinstance(subjects, Check):
        return (CheckPart(name, subjects),)
    if isinstance(subjects, StudyPart):
        return (replace(subjects, name=name or subjects.name),)
    if isinstance(subjects, str | os.PathLike):
        found = read(Path(subjects))
        return tuple(replace(part, name=name) for part in found) if name and len(found) == 1 else found
    if isinstance(subjects, Mapping):
        if (known := part_of_values(subjects, name=name, where="the mapping")) is not None:
            return (known,)
        return _not_empty(
            [part for key, subject in subjects.items() for part in parts_of(_known(subject), name=str(key))]
        )
    if isinstance(subjects, Iterable) and getattr(subjects, "ndim", None) != 0:  # a tensor of one number has no members
        return _not_empty([part for subject in subjects for part in parts_of(_known(subject), name=name)])
    raise _unknown(subjects)


def _known(subject: Any) -> Subject:
    """Return one of several subjects; nested lists are a mistake."""
    known = (Plan, LRSearch, Check, StudyPart, str, os.PathLike, Mapping)
    if not isinstance(subject, known):
        raise _unknown(subject)
    return subject


def _not_empty(parts: Sequence[Part]) -> tuple[Part, ...]:
    if not parts:
        raise InputError(f"there is nothing to report on; give {KINDS}")
    return tuple(parts)


def _unknown(subject: object) -> InputError:
    return InputError(f"a {type(subject).__name__} cannot be reported on; give {KINDS}, or a file with one")
