"""What a search asks of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from evenstep.search.engines.batching import Batching
from evenstep.search.fields import Data
from evenstep.search.job import Job, Trial
from evenstep.search.replicas import TrialResult


class Engine(Protocol):
    """Run trials of a job and yield each result as soon as it is known, in any order."""

    def choose(self, job: Job, data: Data, trials: Sequence[Trial]) -> Batching:
        """Return the batching by which such trials train fastest here."""

    def run(
        self, job: Job, data: Data, trials: Sequence[Trial], batching: Batching | None = None
    ) -> Iterator[TrialResult]:
        """Run the trials by a batching, the engine's choice if none is given; each is yielded exactly once."""

    def close(self) -> None:
        """Let go of what the engine holds; a search closes the engines it made itself."""
