"""Images per second of the NAS-Bench-201 training against a plain loop, within one run.

    python benchmarks/bench_nas.py [--together 8] [--repeats 5] [--record results/bench_nas/h200.json]

(a) a plain eager float32 loop: data on the device, flip and crop there too, torch.optim.SGD, torch's own settings; (b)
this package's training of the same network alone, and of several side by side: on a GPU bfloat16, channels last, the
step recorded. The ways take turns; figures are medians over the repeats, ratios those of medians. A ratio above 1
means that this package is faster. Images are made up; recording the step is timed apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from evenstep.search.cuda import Precision, cuda_settings
from evenstep_research.data import Split, augment
from evenstep_research.study.nas.captured import stepping_of
from evenstep_research.study.nas.protocols import RESIDUAL_CELL, BenchmarkProtocol, NetworkShape
from evenstep_research.study.nas.training import Images, Lane, LaneGroup, SweepTraining
from evenstep_research.study.record import write_record


def made_up(examples: int, side: int) -> Split:
    """Return random images with random labels."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(examples, 3, side, side, generator=generator)
    labels = torch.randint(10, (examples,), generator=generator)
    return Split((inputs, labels), (inputs[:256], labels[:256]))


def plain(
    code: str, shape: NetworkShape, split: Split, training: SweepTraining, device: torch.device
) -> Callable[[int], None]:
    """Return the function that takes so many steps as one would write them by hand."""
    inputs, labels = split.train[0].to(device), split.train[1].to(device)
    treatment = BenchmarkProtocol().treatment(code, shape)
    model = treatment.start(lambda: shape.network(code), 0).to(device).train()
    groups = treatment.param_groups(model, weight_decay=training.weight_decay)
    optimizer = torch.optim.SGD(groups, momentum=training.momentum, nesterov=True)
    generator = torch.Generator(device.type).manual_seed(0)

    def steps(count: int) -> None:
        for _ in range(count):
            index = torch.randint(len(inputs), (training.batch_size,), generator=generator, device=device)
            x = augment(inputs[index], generator=generator, padding=training.padding)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), labels[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return steps


def ours(group: LaneGroup, precision: Precision) -> tuple[Callable[[int], None], float]:
    """Return the function that takes so many steps of a group, and the seconds that recording them took."""
    start = now(group.device)
    with cuda_settings(precision, group.device, timed=True):
        step_ = stepping_of(group)
    spent = now(group.device) - start

    def steps(count: int) -> None:
        with cuda_settings(precision, group.device, timed=True):
            for done in range(count):
                if done % group.steps == 0:
                    group.step_index.zero_()
                step_()

    return steps, spent


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", default=RESIDUAL_CELL, help="the cell, by default two convolutions and a skip")
    parser.add_argument("--together", type=int, nargs="*", default=[8], help="how many lanes side by side, beside one")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="tiny networks and images, to see it work on a CPU")
    parser.add_argument("--record", type=Path, help="also write the figures, with versions and device, to this file")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision: Precision = "bfloat16" if device.type == "cuda" else "float32"
    shape = NetworkShape(channels=4, cells=1, side=8) if options.small else NetworkShape()
    training = SweepTraining(batch_size=64 if options.small else 256)
    split = made_up(50 * training.batch_size, shape.side)
    images = Images.of(split, name="made up", padding=training.padding, device=device)
    treatment = BenchmarkProtocol().treatment(options.code, shape)

    def lane_group(count: int) -> LaneGroup:
        lanes = [
            Lane(treatment.start(lambda: shape.network(options.code), seed), treatment, seed, images, training)
            for seed in range(count)
        ]
        return LaneGroup(lanes, precision)

    ways = {"plain": (plain(options.code, shape, split, training, device), 1)}
    recording = {}
    for count in dict.fromkeys([1, *options.together]):
        steps, recording[f"{count} side by side"] = ours(lane_group(count), precision)
        ways[f"{count} side by side"] = steps, count
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(options.repeats + 1):
        for name, (steps, _) in ways.items():
            start = now(device)
            steps(options.steps)
            if repeat:  # the first time warms up
                spent[name].append(now(device) - start)
    speeds = {
        name: count * options.steps * training.batch_size / statistics.median(spent[name])
        for name, (_, count) in ways.items()
    }
    results = {
        "images_per_second": speeds,
        "over_plain": {name: speed / speeds["plain"] for name, speed in speeds.items() if name != "plain"},
        "recording_seconds": recording,
    }
    for name, speed in speeds.items():
        print(f"{name}: {speed:.0f} images/s, {speed / speeds['plain']:.2f} times the plain loop")
    if options.record:
        config = {
            "code": options.code,
            "channels": shape.channels,
            "cells": shape.cells,
            "side": shape.side,
            "batch": training.batch_size,
            "steps": options.steps,
            "repeats": options.repeats,
            "precision": precision,
        }
        write_record(options.record, config=config, results=results)


if __name__ == "__main__":
    main()
