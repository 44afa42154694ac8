"""The protocol of an engine."""

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
        """Return the batching with which these trials train fastest here."""

    def run(
        self, job: Job, data: Data, trials: Sequence[Trial], batching: Batching | None = None
    ) -> Iterator[TrialResult]:
        """Run the trials with a batching, by default the engine's choice; each result is yielded exactly once."""

    def close(self) -> None:
        """Release what the engine holds; a search closes the engines that it made itself."""
