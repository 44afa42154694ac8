"""What a search asks of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from evenstep.search.engines.batching import Form
from evenstep.search.job import Copy, Data, Job
from evenstep.search.replicas import Outcome


class Engine(Protocol):
    """Train copies of a job and yield each outcome as soon as it is known, in any order."""

    def choose(self, job: Job, data: Data, copies: Sequence[Copy]) -> Form:
        """Return the form in which such copies train fastest here."""

    def run(self, job: Job, data: Data, copies: Sequence[Copy], form: Form | None = None) -> Iterator[Outcome]:
        """Train the copies in a form, one of the engine's choice if none is given; each is yielded exactly once."""

    def close(self) -> None:
        """Let go of what the engine holds; a search closes the engines it made itself."""
