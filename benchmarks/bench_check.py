"""What the check of a plan by a forward pass costs, over what reading the network costs, on one core.

    python benchmarks/bench_check.py [--record results/bench_check/record.json]

For every network of the tests' zoo, and for networks as large as people train: processor time of `measure` over that of
reading the module (`trace`), both medians of three turns. A ratio above one half is marked.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

from evenstep.module.measuring import measure
from evenstep.module.trace import read
from evenstep.planning import plan_network
from evenstep_research.study.record import write_record

sys.path.insert(0, str(Path(__file__).parents[1]))
TURNS = 3
Made = tuple[nn.Module, Any, dict[str, Any]]


def gpt2() -> Made:
    library = importlib.import_module("transformers")
    model = library.GPT2LMHeadModel(library.GPT2Config(n_layer=12, n_embd=768, n_head=12, use_cache=False))
    return model, (torch.randint(0, 50257, (1, 128)),), {}


def vit() -> Made:
    library = importlib.import_module("transformers")
    return library.ViTForImageClassification(library.ViTConfig()), (torch.zeros(1, 3, 224, 224),), {}


def resnet50() -> Made:
    library = importlib.import_module("transformers")
    return library.ResNetForImageClassification(library.ResNetConfig()), (torch.zeros(2, 3, 224, 224),), {}


LARGE: dict[str, Callable[[], Made]] = {"GPT-2, 124M": gpt2, "ViT-B/16": vit, "ResNet-50": resnet50}


def networks() -> dict[str, Callable[[], Made]]:
    zoo = importlib.import_module("tests.zoo")
    small = {
        entry.name: (lambda entry=entry: (*entry.make(), dict(entry.kwargs)))
        for entry in zoo.ZOO
        if all(importlib.util.find_spec(name) for name in entry.requires)
    }
    return small | (LARGE if importlib.util.find_spec("transformers") else {})


def costs(make: Callable[[], Made]) -> tuple[float, float]:
    """Return the processor time of reading a module and of measuring it."""
    torch.manual_seed(0)
    model, args, kwargs = make()
    read_times, measure_times = [], []
    for _ in range(TURNS):
        start = time.process_time()
        reading = read(model, args, example_kwargs=kwargs)
        read_times.append(time.process_time() - start)
        plan, _ = plan_network(reading.graph)
        start = time.process_time()
        measure(reading, plan)
        measure_times.append(time.process_time() - start)
    return statistics.median(read_times), statistics.median(measure_times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path)
    parser.add_argument("--only", help="networks whose names hold this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    ratios = {}
    for name, make in networks().items():
        if arguments.only and arguments.only not in name:
            continue
        reading, measuring = costs(make)
        ratios[name] = measuring / reading
        mark = "  above one half" if ratios[name] > 0.5 else ""
        print(f"{name:28} read {reading:7.3f} s  check / read {ratios[name]:.3f}{mark}", flush=True)
    values = list(ratios.values())
    print(f"median {statistics.median(values):.3f}, largest {max(values):.3f} of {len(values)} networks")
    if arguments.record:
        write_record(arguments.record, config={"turns": TURNS}, results={"check_over_read": ratios})


if __name__ == "__main__":
    main()
