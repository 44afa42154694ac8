"""Run figures of the paper for real on a few tiny networks, and hold their networks against what the paper says."""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenstep.errors import InputError
from evenstep.graph import dag_mlp_graph, path_moments
from evenstep_research.spaces import DagMLP
from evenstep_research.study.figures.catalogue import FIGURES, figure_named
from evenstep_research.study.figures.figure_result import RULES, FigureResult, spread_over_seeds
from evenstep_research.study.figures.networks import SCALES, family, scale_named
from evenstep_research.study.transfer.benchmark import BenchmarkResources, run
from evenstep_research.study.transfer.families import Architecture
from evenstep_research.study.transfer.measure import Curve, Measured, TransferTraining, layered
from research.tests.study.small import TRAINING

torch.set_num_threads(1)


def test_depth_studies_are_chains_of_three_to_ten_layers_the_first_of_which_is_the_base() -> None:
    """The paper counts the layers of input and output; all but the last have an activation."""
    for name in ("mlp-depth", "gelu-depth", "imagenet-depth"):
        found = family(figure_named(name), SCALES["paper"]).architectures
        moments = [path_moments(dag_mlp_graph(one.code)) for one in found]
        assert [one.count for one in moments] == [1] * 8
        assert [one.m1 for one in moments] == list(range(2, 10))
        assert [one.name for one in found] == [f"L = {layers}" for layers in range(3, 11)]
        assert found[0].code == family(figure_named(name), SCALES["paper"]).base.code
        for one, layers in zip(found, range(3, 11), strict=True):
            weights = [p for p in DagMLP(one.code, width=4, inputs=8).parameters() if p.dim() == 2]
            assert len(weights) == layers


def test_topology_studies_have_thirty_different_networks_and_more() -> None:
    for figure in FIGURES:
        found = family(figure, SCALES["paper"])
        codes = {(one.code, one.kernel_size) for one in found.architectures}
        assert len(codes) == len(found.architectures) >= (8 if figure.varies == "depth" else 30)
        assert found.setting.classes == (1000 if figure.data == "imagenet" else 10)
        assert (found.setting.order, found.setting.init, found.setting.optimizer) == ("post", "degree", "sgd")
    kernels = [one.kernel_size for one in family(figure_named("cnn"), SCALES["paper"]).architectures]
    assert {kernel: kernels.count(kernel) for kernel in kernels} == {1: 8, 3: 8, 5: 8, 7: 8}


def test_rates_are_each_layers_own_or_one_for_all() -> None:
    figure = figure_named("mlp-depth")
    # fan_in var(W) sqrt(out / in) of stem, hidden weight and readout, which counts as torch draws it.
    layers = {2 * (256 / 3072) ** 0.5, 2.0, (10 / 256) ** 0.5 / 3}
    for rates, expected in (("layers", layers), ("one", {1.0})):
        found = family(figure, SCALES["paper"], rates)  # type: ignore[arg-type]
        plan = layered(found.setting, found.architectures[0])
        weights = [p for p in plan.parameters if p.role == "weight"]
        assert {round(p.lr_scale, 6) for p in weights} == {round(value, 6) for value in expected}


def test_small_scales_need_no_files_and_say_what_they_train_on() -> None:
    for figure in FIGURES:
        for scale in ("smoke", "cpu"):
            title = family(figure, SCALES[scale]).title
            assert title.endswith("on digits")
            assert "ImageNet" not in title
            assert SCALES[scale].source(figure) == "digits"
            assert family(figure, SCALES[scale]).setting.image == (1, 8, 8)
        assert SCALES["paper"].source(figure) == figure.data
        assert len(family(figure, SCALES["smoke"]).architectures) == 4
    with pytest.raises(InputError, match="scale is 'large'; choose one of smoke, cpu, paper"):
        scale_named("large")
    with pytest.raises(InputError, match="there is no study 'rnn'; choose from mlp-depth"):
        figure_named("rnn")


@cache
def figure_result() -> FigureResult:
    figure = figure_named("gelu-topology")
    whole = family(figure, SCALES["smoke"])
    small = replace(whole, setting=replace(whole.setting, width=8), architectures=whole.architectures[:2])
    (found,) = run([small], BenchmarkResources(device="cpu"), TRAINING)
    return FigureResult(figure, found)


def test_a_figure_holds_the_papers_correlation_beside_every_rules() -> None:
    record = figure_result().to_dict()
    json.dumps(record, allow_nan=False)
    assert record["paper_r"] == 0.68
    assert set(RULES) < set(record["methods"])
    assert record["setting"]["activation"] == "gelu"
    assert set(record["spread"]) == {one.architecture.name for one in figure_result().family_result.known}
    rows = figure_result().rows()
    assert [row["name"] for row in rows] == [one.architecture.name for one in figure_result().family_result.measured]
    assert all(row["spread, octaves"] == record["spread"][row["name"]] for row in rows if row["status"] == "ok")


def test_the_spread_is_that_of_the_rates_which_single_seeds_would_find() -> None:
    """Seeds whose losses are parabolas around 1/2, 1 and 2: minus one, no and one octave."""

    def losses(position: int) -> tuple[float, ...]:
        return tuple(1.5 + 0.002 * (position - centre) ** 2 for centre in (-4, 0, 4))

    curve: Curve = {2 ** (position / 4): losses(position) for position in range(-12, 13)}
    one = Measured(Architecture("a", "2"), "ok", 1.0, curve, {}, {})
    assert spread_over_seeds(one) == pytest.approx(1.0, abs=0.02)
    alone: Curve = {lr: seeds[:1] for lr, seeds in curve.items()}
    assert spread_over_seeds(replace(one, curve=alone)) == 0.0


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Write a folder of a few images as ImageNet has it: classes that differ in colour."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 24), ("val", 2)):
        for place, name in enumerate(("n01440764", "n01443537", "n01484850")):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 80, size=(40, 50, 3), dtype=np.uint8)
                pixels[..., place] += 120
                Image.fromarray(pixels).save(folder / f"{name}_{number}.JPEG")
    return tmp_path


def test_an_imagenet_figure_runs_on_a_folder_of_images_which_is_not_imagenet(imagenet: Path) -> None:
    figure = figure_named("imagenet-depth")
    whole = family(figure, SCALES["paper"])
    small = replace(whole, setting=replace(whole.setting, width=8), architectures=whole.architectures[:1])
    ledger = imagenet / "ledger.jsonl"
    training = TransferTraining(batch_size=8, seeds=1, base_seeds=1)
    with pytest.raises(InputError, match="is not ImageNet: it holds 3 classes, not 1,000"):
        list(run([small], BenchmarkResources(str(imagenet), "cpu", source="imagenet"), training))
    resources = BenchmarkResources(str(imagenet), "cpu", ledger=ledger, source="images")
    (found,) = run([small], resources, training)
    (one,) = found.measured
    assert one.classes == 1000
    assert one.status == "ok"
    assert min(min(losses) for losses in one.curve.values()) < math.log(1000) - 1
    assert json.loads(ledger.read_text().splitlines()[0])["setting"]["classes"] == 1000
