"""Write down many plans, or hold two such files against each other: what a change of the rule's code changed.

    python benchmarks/record_plans.py write FILE
    python benchmarks/record_plans.py compare BEFORE AFTER [--tolerance 1e-9]

Covers every module of `tests/zoo.py`, 300 random DAG codes over orders, initialisations, norms and optimisers, and 32
networks of NAS-Bench-201, each with all rules.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import evenstep as es
from evenstep.graph import Graph, dag_cnn_graph, dag_mlp_graph, nasbench201_graph
from tests.zoo import ZOO

RULES = ("weighted", "paths", "constant", "spectral")
OPTIMIZERS = ("sgd", "momentum", "adam")
INITS = ("conserve", "degree", "he")


def dag_code(draw: random.Random, vertices: int) -> str:
    """Return a random code whose last vertex is fed by the one before it."""
    rows = ["".join(draw.choice("0112222") for _ in range(length)) for length in range(1, vertices)]
    return "_".join(row[:-1] + "2" for row in rows)


def graphs() -> Iterator[tuple[str, Graph, Graph]]:
    """Yield (name, graph, base graph) of the networks that codes describe."""
    draw = random.Random(0)
    for number in range(300):
        code = dag_code(draw, draw.randint(2, 8))
        order = draw.choice(("pre", "post"))
        norm = draw.choice(("none", "batch", "layer")) if order == "pre" else "none"
        shared: dict[str, Any] = {"order": order, "norm": norm, "activation": draw.choice(("relu", "relu", "gelu"))}
        if number % 3 == 2:
            kernel, side = draw.choice((1, 3, 5, 7)), draw.choice((8, 16, 32))
            name = f"cnn {code} {order} {norm} {shared['activation']} k{kernel} side {side}"
            graph = dag_cnn_graph(code, width=draw.choice((16, 64)), kernel_size=kernel, image_size=side, **shared)
            yield name, graph, dag_cnn_graph("2", width=64, image_size=side, **shared)
        else:
            width = draw.choice((32, 256))
            name = f"mlp {code} {order} {norm} {shared['activation']} w{width}"
            yield name, dag_mlp_graph(code, width=width, **shared), dag_mlp_graph("2", **shared)
    for _ in range(32):
        cell = "".join(draw.choice("01234") for _ in range(6))
        code = f"{cell[0]}_{cell[1:3]}_3{cell[4:]}"
        yield f"nasbench201 {code}", nasbench201_graph(code), nasbench201_graph("0_00_300")


def described(plan: es.Plan) -> dict[str, Any]:
    """Return what of a plan a change of code must not change."""
    return {
        "factors": {factor.name: factor.value for factor in plan.factors},
        "paths": [str(plan.path_count), str(plan.sum_cubed_depth)],
        "vertices": {v.name: [v.in_degree, v.second_moment] for v in plan.vertices},
        "parameters": {p.name: [p.std, p.lr_scale, p.mean, p.kept] for p in plan.parameters},
    }


def recorded() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every plan under a name that says what it is of."""
    for entry in ZOO:
        if any(importlib.util.find_spec(name) is None for name in entry.requires):
            continue
        torch.manual_seed(0)
        model, inputs = entry.make()
        graph = es.trace(model, inputs, example_kwargs=dict(entry.kwargs))
        for init in (*INITS, "keep"):
            for optimizer in OPTIMIZERS:
                for rule in RULES if init == "conserve" else ("weighted",):
                    plan = es.plan(graph, rule=rule, init=init, optimizer=optimizer)  # type: ignore[arg-type]
                    yield f"zoo {entry.name} | {rule} {init} {optimizer}", described(plan)
    for name, graph, base in graphs():
        for init in INITS:
            for optimizer in OPTIMIZERS:
                for rule in RULES if init == "conserve" else ("weighted",):
                    plan = es.plan(graph, rule=rule, init=init, optimizer=optimizer, base_graph=base)  # type: ignore[arg-type]
                    yield f"{name} | {rule} {init} {optimizer}", described(plan)


def differences(before: Any, after: Any, tolerance: float, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield every place where two records differ by more than a relative tolerance."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key), after.get(key), tolerance, f"{where} {key}".strip())
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for position, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, tolerance, f"{where} {position}")
    elif isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=tolerance, abs_tol=1e-300):
            yield where, before, after
    elif before != after:
        yield where, before, after


def read(path: Path) -> dict[str, Any]:
    """Return the plans of a record by name; a name that comes again is numbered, so that none is left out."""
    plans: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    with gzip.open(path, "rt") as lines:
        for name, plan in map(json.loads, lines):
            seen[name] += 1
            plans[name if seen[name] == 1 else f"{name} #{seen[name]}"] = plan
    return plans


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("write", "compare"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-9)
    options = parser.parse_args()
    if options.task == "write":
        with warnings.catch_warnings(), gzip.open(options.files[0], "wt") as out:
            warnings.simplefilter("ignore")
            for name, plan in recorded():
                out.write(json.dumps([name, plan]) + "\n")
        return 0
    before, after = map(read, options.files)
    networks: Counter[str] = Counter()
    for where, old, new in differences(before, after, options.tolerance):
        networks[where.partition(" | ")[0]] += 1
        print(f"{where}: {old} -> {new}")
    print(f"{len(before)} plans of {len({name.partition(' | ')[0] for name in before})} networks compared")
    print(f"{sum(networks.values())} numbers differ, in {len(networks)} networks: {', '.join(sorted(networks))}")
    return int(bool(networks))


if __name__ == "__main__":
    raise SystemExit(main())
