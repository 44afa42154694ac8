"""What long studies tell of themselves under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """How a study stands: networks or runs done and to do, and what has just happened."""

    done: int
    total: int
    message: str


Notify = Callable[[StudyProgress], None]
