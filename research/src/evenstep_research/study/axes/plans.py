"""The plans of a study: every network relative to the smallest of its line, by every rule, and Muon's usual rates."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from evenstep.graph import Graph
from evenstep.optim import ADAMS_SIZE
from evenstep.planning import Plan, plan_graph
from evenstep.planning.groups import matrices_of
from evenstep_research.study.axes.scales import DEFAULT, OWN, AxesScale, Line, axes_scale_named
from evenstep_research.study.real.plans import Tracing, fingerprint, graph_of

USUAL = "usual"
USUAL_MUON_RATE, USUAL_ADAMW_RATE = 0.02, 3e-4  # of Muon's own README, for matrices and for all else
PlanName = tuple[str, str, str, str]  # network, its base, optimiser, shape


@dataclass(frozen=True)
class Plans:
    """Hold plans by what they are asked for with, what tells them apart, and each by its fingerprint."""

    fingerprints: Mapping[PlanName, str]
    plans: Mapping[str, Plan]

    @classmethod
    def of(cls, scale: AxesScale, lines: Sequence[Line], tracing: Tracing, *, muon: bool) -> Plans:
        """Plan all networks of lines, and those that Muon is compared on."""
        wanted = list(dict.fromkeys((*_of_lines(lines), *(_of_muon(scale) if muon else ()))))
        names = list(dict.fromkeys(name for network, base, *_ in wanted for name in (network, base)))
        graphs = dict(zip(names, tracing(names), strict=True))
        made = {name: _plan(graphs[name[0]], graphs[name[1]], *name[2:]) for name in wanted}
        prints = {name: f"{name[2]} {_fingerprint(plan)}" for name, plan in made.items()}
        return cls(prints, {prints[name]: plan for name, plan in made.items()})


def is_planned(optimizer: str, shape: str) -> bool:
    """Return whether a run has a plan: Muon has to be told its matrices, one rate from torch's own start needs none."""
    return shape != OWN or optimizer == "muon"


def _of_lines(lines: Sequence[Line]) -> list[PlanName]:
    return [
        (line.setup(value).network, line.setup(line.axis.values[0]).network, line.optimizer, shape)
        for line in lines
        for value in line.axis.values
        for shape in line.axis.shapes
        if is_planned(line.optimizer, shape)
    ]


def _of_muon(scale: AxesScale) -> list[PlanName]:
    return [
        name
        for row in scale.muon
        for network, base in ((row.setup.network, row.base.network),)
        for name in (
            (base, base, "muon", DEFAULT),
            (network, base, "muon", DEFAULT),
            (network, network, "muon", OWN),
            (network, network, "muon", USUAL),
        )
    ]


def _plan(graph: Graph, base: Graph, optimizer: str, shape: str) -> Plan:
    if shape not in (OWN, USUAL):
        return plan_graph(graph, rule=shape, init="conserve", optimizer=optimizer, base_graph=base)  # type: ignore[arg-type]
    own = plan_graph(graph, rule="constant", init="keep", optimizer=optimizer, base_graph=graph)  # type: ignore[arg-type]
    return own if shape == OWN else usual_muon(own)


def usual_muon(plan: Plan) -> Plan:
    """Return a plan at base rate one by which `evenstep.optim.Muon` steps as Muon does by its README.

    Matrices go at 0.02 sqrt(max(1, rows / columns)) times the orthogonalised momentum, all else at AdamW's 3e-4.
    """
    matrices = matrices_of(plan)
    for parameter in plan:
        rate = USUAL_ADAMW_RATE
        if parameter.name in matrices:
            rows, columns = matrices[parameter.name].shapes[0]
            rate = USUAL_MUON_RATE * math.sqrt(max(1, rows / columns)) / (ADAMS_SIZE * math.sqrt(max(rows, columns)))
        plan = plan.scale(parameter.name, rate)
    return plan


def _fingerprint(plan: Plan) -> str:
    """Return what a plan is known by, Adam's epsilons included."""
    eps = [[p.name, f"{p.eps_scale:.6g}"] for p in sorted(plan.parameters, key=lambda p: p.name)]
    return hashlib.sha256(json.dumps([fingerprint(plan), eps]).encode()).hexdigest()[:16]


@lru_cache(maxsize=128)
def traced(scale: str, name: str) -> Graph:
    """Return the graph of a network of a scale."""
    return graph_of(axes_scale_named(scale).network(name))
