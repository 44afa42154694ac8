"""Speed and scale of planning, as ratios and counts within one run on one core.

    python benchmarks/bench_plan.py [--record results/bench_plan/record.json]
    python benchmarks/bench_plan.py --against OTHER/src [--record results/bench_plan/against.json]

Prints a dense DAG of 500 vertices planned by two rules, how time grows with edges, enumeration against the one-pass
moments, and tracing plus planning against `torch.export` alone. With `--against` the sources of another commit are
timed in turns with these, and what is printed are the ratios of the two.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import evenstep as es
from evenstep.graph import Graph, dag_mlp_graph, path_moments
from evenstep.planning import plan_graph
from evenstep_research.spaces import NasBench201
from evenstep_research.study.record import write_record

CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_3x3~1|nor_conv_3x3~2|"


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the median processor time of a piece of work: other processes on the machine do not count."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def dense(vertices: int, *, bias: bool = False) -> Graph:
    return dag_mlp_graph("_".join("2" * t for t in range(1, vertices)), bias=bias)


def enumerated(graph: Graph) -> int:
    """Return the sum of cubed depths by walking every path."""
    outputs = set(graph.outputs)
    total = 0
    stack = [(name, 0) for name in graph.inputs]
    while stack:
        vertex, depth = stack.pop()
        if vertex in outputs:
            total += depth**3
        stack.extend((edge.target, depth + edge.depth) for edge in graph.outgoing[vertex])
    return total


def growth(rule: str) -> float:
    """Return the exponent of planning time in edges, by least squares in logarithms."""
    points = []
    for vertices in (60, 120, 240, 480):
        graph = dense(vertices)
        spent = seconds(lambda graph=graph: plan_graph(graph, rule=rule), 5)  # type: ignore[misc]
        points.append((math.log(len(graph.edges)), math.log(spent)))
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


# What both commits are asked, in a process of its own: processor seconds of planning the dense DAG and a traced
# network, and of tracing and planning one.
TIMED = """
import gc, sys, time, warnings
import torch
import evenstep as es
from evenstep.graph import dag_mlp_graph
from evenstep_research.spaces import NasBench201

torch.set_num_threads(1)
warnings.simplefilter("ignore")
graph = dag_mlp_graph("_".join("2" * t for t in range(1, 500)), bias=False)
model, example = NasBench201(sys.argv[1]), torch.zeros(2, 3, 32, 32)
es.plan(model, example)  # loads the exporter
works = {f"dense {rule}": lambda rule=rule: es.plan(graph, rule=rule) for rule in ("paths", "weighted")}
traced = es.trace(model, example)
works["plan traced"] = lambda: es.plan(traced)
works["trace and plan"] = lambda: es.plan(model, example)
works["export alone"] = lambda: torch.export.export(model, (example,), strict=False)
gc.collect()
gc.freeze()  # what was made so far is not walked again by collections within what is timed
times = {name: [] for name in works}
for _ in range(5):
    for name, work in works.items():
        start = time.process_time()
        work()
        times[name].append(time.process_time() - start)
times["trace and plan over export"] = [a / b for a, b in zip(times["trace and plan"], times.pop("export alone"))]
for name, values in times.items():
    print(name, sorted(values)[len(values) // 2], sep="=")
"""


def against(other: Path, turns: int = 5) -> dict[str, float]:
    """Return the median, over turns, of this commit's processor time over another's."""
    times: dict[str, dict[str, list[float]]] = {"this": {}, "other": {}}
    sources = {"this": Path(es.__file__).parents[1], "other": other.resolve()}
    for turn in range(turns):
        for who in ("this", "other") if turn % 2 else ("other", "this"):
            command = [sys.executable, "-c", TIMED, CELL]
            environment = os.environ | {"PYTHONPATH": str(sources[who]), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for line in done.stdout.splitlines():
                name, _, spent = line.partition("=")
                times[who].setdefault(name, []).append(float(spent))
    ratios = {
        name: [one / two for one, two in zip(spent, times["other"][name], strict=True)]
        for name, spent in times["this"].items()
    }
    return {f"{name.replace(' ', '_')}_over_other": statistics.median(values) for name, values in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="also write the figures, with versions and device, to this file")
    parser.add_argument("--against", type=Path, help="the folder src of another checkout, timed in turns with this")
    options = parser.parse_args()
    if options.against:
        ratios = against(options.against)
        for name, value in ratios.items():
            print(f"{name:42s} {value:12.4g}")
        if options.record:
            write_record(
                options.record,
                config={"cell": CELL, "repeats": "medians of 5 turns, each of medians of 5"},
                results=dict(ratios),
            )
        return
    torch.set_num_threads(1)
    figures: dict[str, float | int] = {}

    big = dense(500)
    moments = path_moments(big)
    figures["dense_vertices"] = 500
    figures["dense_edges"] = sum(edge.source != "input" and edge.target != "output" for edge in big.edges)
    figures["dense_parameters"] = len(big.parameters)
    figures["path_count_digits"] = len(str(moments.count))
    for rule in ("paths", "weighted"):
        figures[f"dense_{rule}_seconds"] = seconds(lambda rule=rule: plan_graph(big, rule=rule))  # type: ignore[misc]
        figures[f"growth_exponent_{rule}"] = growth(rule)
    biased = dense(500, bias=True)
    figures["dense_paths_seconds_with_biases"] = seconds(lambda: plan_graph(biased, rule="paths"))

    small = dense(22)
    assert enumerated(small) == path_moments(small).m3
    slow, fast = seconds(lambda: enumerated(small)), seconds(lambda: path_moments(small), 25)
    figures["enumeration_over_moments_22_vertices"] = slow / fast

    model, example = NasBench201(CELL), torch.zeros(2, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.export(model, (example,), strict=False)  # the first call loads the exporter
    shares, ours, theirs = [], [], []
    for _ in range(5):  # interleaved: the machine's speed drifts
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs.append(seconds(lambda: torch.export.export(model, (example,), strict=False), 1))
        ours.append(seconds(lambda: es.plan(model, example), 1))
        shares.append(ours[-1] / theirs[-1])
    figures["trace_and_plan_over_export_nasbench201"] = statistics.median(shares)

    for name, value in figures.items():
        print(f"{name:42s} {value:12.4g}" if isinstance(value, float) else f"{name:42s} {value:12d}")
    if options.record:
        write_record(options.record, config={"cell": CELL, "repeats": "medians of 3 to 25"}, results=dict(figures))


if __name__ == "__main__":
    main()
