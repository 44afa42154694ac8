"""What a page can show: plans, searches, checks and studies, each with the name in its heading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenstep.planning import Plan
from evenstep.search import Check, LRSearch


@dataclass(frozen=True)
class PlanPart:
    """A plan; `has_graph` is false if it comes from a file without the graph."""

    name: str
    plan: Plan
    has_graph: bool = True


@dataclass(frozen=True)
class SearchPart:
    """A search, with a line on how it trained, if known; `has_graph` is false if its base is unknown."""

    name: str
    search: LRSearch
    note: str = ""
    has_graph: bool = True


@dataclass(frozen=True)
class CheckPart:
    """A coordinate check, and the size in which its networks differ."""

    name: str
    check: Check
    over: str = "network"
    note: str = ""


@dataclass(frozen=True)
class StudyPart:
    """A study of transferred rates: the figures of every family, and every network's rates if they are known."""

    name: str
    families: tuple[Mapping[str, Any], ...]
    left_out: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


Part = PlanPart | SearchPart | CheckPart | StudyPart
