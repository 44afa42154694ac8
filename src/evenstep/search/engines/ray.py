"""Run trials on a Ray cluster: chunks are tasks, and a lost worker's chunk trains elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from evenstep.module.threads import threads
from evenstep.search.engines.batching import Batching, chosen_batching, placed, train_in
from evenstep.search.engines.ray_cluster import RayCluster
from evenstep.search.fields import Data
from evenstep.search.job import Job, Trial
from evenstep.search.replicas import TrialResult


class RayEngine:
    """Train on a Ray cluster: an existing one at `address` (or RAY_ADDRESS), or one started on this machine.

    A cluster started here listens only on the loopback interface.

    Every chunk is a task on one CPU, and a task whose worker dies is retried up to `retries` times. The batching is
    chosen on this machine, so that all workers, and a local run, use the same one.
    """

    def __init__(self, address: str | None = None, *, chunk: int = 16, retries: int = 5) -> None:
        self.address, self.chunk, self.retries = address, chunk, retries
        self._cluster = RayCluster(address)

    def choose(self, job: Job, data: Data, trials: Sequence[Trial]) -> Batching:
        """Return the fastest batching by timing a few steps on this machine."""
        device = torch.device("cpu")
        with threads(1, device):
            batching = chosen_batching(job, placed(data, device), trials, device, processes=os.cpu_count() or 1)
        return replace(batching, chunk=max(min(batching.chunk, self.chunk), 1))

    def run(
        self, job: Job, data: Data, trials: Sequence[Trial], batching: Batching | None = None
    ) -> Iterator[TrialResult]:
        """Run the trials and yield each chunk's results when it is done."""
        ray = self._cluster.join()
        batching = batching or self.choose(job, data, trials)
        shared = ray.put(job), ray.put(placed(data, torch.device("cpu")))
        size = batching.chunk
        tasks = [(*shared, batching, list(trials[start : start + size])) for start in range(0, len(trials), size)]
        remedy = "train with smaller chunks or the engine 'local'"
        for _, results in self._cluster.answers(_work, tasks, retries=self.retries, remedy=remedy, num_cpus=1):
            yield from results

    def close(self) -> None:
        """Leave the cluster, and stop it if it was started here."""
        self._cluster.leave()


def _work(job: Job, data: Data, batching: Batching, trials: list[Trial]) -> list[TrialResult]:
    """Train a chunk, on a worker."""
    device = torch.device("cpu")
    job.require_as_sent()
    return list(train_in(batching, job, placed(data, device), trials, device, "float32"))
