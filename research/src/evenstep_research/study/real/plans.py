"""The plans of a study's networks: graphs traced once, a plan for every rule, and what tells plans apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from evenstep.errors import EvenstepError, TraceError
from evenstep.graph import Graph
from evenstep.module.trace import trace
from evenstep.planning import Plan, plan_graph
from evenstep_research.study.real.networks import RealNetwork
from evenstep_research.study.real.scales import RealScale, Row, real_scale_named

PLANNED = ("constant", "mup", "weighted")
# Records name a rule as it was called when the study began; `spectral` was `mup`.
_CALLED: Mapping[str, str] = {"mup": "spectral"}
PlanName = tuple[str, str, str]  # network, optimiser, rule
Tracing = Callable[[Sequence[str]], Iterable[Graph]]


@dataclass(frozen=True)
class Plans:
    """Hold the plans of networks and of their bases, and every plan's fingerprint."""

    plans: Mapping[PlanName, Plan]
    fingerprints: Mapping[PlanName, str]

    @classmethod
    def of(cls, scale: RealScale, rows: Sequence[Row], tracing: Tracing) -> Plans:
        """Plan the networks of rows relative to their bases, and the bases relative to themselves.

        `tracing` returns the graphs of networks by their names, in this process or in others.
        """
        pairs = dict.fromkeys(
            pair
            for row in rows
            for base in (scale.bases[row.network.kind].name,)
            for pair in ((row.network.name, base, row.optimizer), (base, base, row.optimizer))
        )
        names = list(dict.fromkeys(name for name, _, _ in pairs))
        graphs = dict(zip(names, tracing(names), strict=True))
        plans: dict[PlanName, Plan] = {
            (name, optimizer, rule): plan_graph(
                graphs[name],
                rule=_CALLED.get(rule, rule),
                init="conserve",
                optimizer=optimizer,
                base_graph=graphs[base],
            )
            for name, base, optimizer in pairs
            for rule in PLANNED
        }
        return cls(plans, {name: fingerprint(plan) for name, plan in plans.items()})


def fingerprint(plan: Plan) -> str:
    """Return what a plan is known by: the start and the rate factor of every parameter, to six digits."""
    numbers = [
        [p.name, p.kept, *(f"{number:.6g}" for number in (p.mean, p.std, p.lr_scale))]
        for p in sorted(plan.parameters, key=lambda p: p.name)
    ]
    return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def traced(scale: str, name: str) -> Graph:
    """Return the graph of a network of a scale."""
    return graph_of(real_scale_named(scale).network(name))


def graph_of(network: RealNetwork) -> Graph:
    """Return the graph of a network, the same in every process: parameters that plans keep are measured too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = network.make()
    try:
        return trace(model, network.example())
    except EvenstepError as error:
        raise TraceError(f"the network '{network.name}' cannot be planned: {error}") from None
