"""Speed and scale of planning, as ratios and counts within one run on one core.

    python benchmarks/bench_plan.py [--record results/bench_plan/record.json]

Prints a dense DAG of 500 vertices planned by two rules, how time grows with edges, enumeration against the one-pass
moments, and tracing plus planning against `torch.export` alone.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import evenstep as es
from evenstep.graph import Graph, dag_mlp_graph, path_moments
from evenstep.planning import plan_graph
from evenstep.spaces import NasBench201
from evenstep.study.record import write_record

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="also write the figures, with versions and device, to this file")
    options = parser.parse_args()
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
    ratios, ours, theirs = [], [], []
    for _ in range(5):  # interleaved: the machine's speed drifts
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs.append(seconds(lambda: torch.export.export(model, (example,), strict=False), 1))
        ours.append(seconds(lambda: es.plan(model, example), 1))
        ratios.append(ours[-1] / theirs[-1])
    figures["trace_and_plan_over_export_nasbench201"] = statistics.median(ratios)

    for name, value in figures.items():
        print(f"{name:42s} {value:12.4g}" if isinstance(value, float) else f"{name:42s} {value:12d}")
    if options.record:
        write_record(options.record, config={"cell": CELL, "repeats": "medians of 3 to 25"}, results=dict(figures))


if __name__ == "__main__":
    main()
