"""Families of architectures: what is varied, what is fixed, and the one-hidden-layer base each is calibrated on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import nn

from evenstep.graph import Graph, dag_cnn_graph, dag_mlp_graph
from evenstep.module import trace
from evenstep.rules import Optimizer
from evenstep_research.spaces import DagCNN, DagMLP, NasBench201
from evenstep_research.study import codes

NetworkKind = Literal["mlp", "cnn", "nasbench201"]


@dataclass(frozen=True)
class FamilySetting:
    """Say what all networks of a family share, beside their topology.

    `rates`: each layer's own, by its width, or one for all layers.
    """

    kind: NetworkKind = "mlp"
    order: Literal["pre", "post"] = "pre"
    init: str = "degree"
    norm: Literal["none", "batch", "layer"] = "none"
    activation: str = "relu"
    optimizer: Optimizer = "sgd"
    width: int = 256
    image: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    rates: Literal["layers", "one"] = "layers"


@dataclass(frozen=True)
class Architecture:
    """Name one network: a code, the kernel of its convolutions, and its width where it is not the setting's."""

    name: str
    code: str
    kernel_size: int = 3
    width: int | None = None

    @property
    def shape(self) -> str:
        """The name without the width."""
        return self.name.removesuffix(f", width {self.width}")

    def at_width(self, width: int) -> Architecture:
        """Return the same shape at another width."""
        return replace(self, name=f"{self.shape}, width {width}", width=width)


@dataclass(frozen=True)
class Family:
    """Hold architectures under one setting.

    `calibrates` marks those that rules may be fitted on; `rivals` are tried on every target beside the methods.
    """

    name: str
    title: str
    setting: FamilySetting
    architectures: tuple[Architecture, ...]
    calibrates: bool = False
    rivals: tuple[str, ...] = ()

    @property
    def base(self) -> Architecture:
        """The one-hidden-layer network of the family's kind."""
        return Architecture("base", "2")


def maker(setting: FamilySetting, architecture: Architecture) -> Callable[[], nn.Module]:
    """Return the function that makes a network; it can be sent to another process."""
    width = architecture.width or setting.width
    shared = {
        "classes": setting.classes,
        "order": setting.order,
        "norm": setting.norm,
        "activation": setting.activation,
    }
    if setting.kind == "mlp":
        inputs = setting.image[0] * setting.image[1] * setting.image[2]
        return partial(DagMLP, architecture.code, width=width, inputs=inputs, **shared)  # type: ignore[arg-type]
    if setting.kind == "nasbench201" and "|" in architecture.code:
        return partial(NasBench201, architecture.code, channels=width, cells=1, classes=setting.classes)
    side = {"channels": setting.image[0], "kernel_size": architecture.kernel_size}
    return partial(DagCNN, architecture.code, width=width, **side, **shared)  # type: ignore[arg-type]


def graph_of(setting: FamilySetting, architecture: Architecture) -> Graph:
    """Return a network's graph: from its code where there is one, else by reading the module."""
    width = architecture.width or setting.width
    channels, height, breadth = setting.image
    if setting.kind == "mlp":
        return dag_mlp_graph(
            architecture.code,
            width=width,
            inputs=channels * height * breadth,
            classes=setting.classes,
            order=setting.order,
            norm=setting.norm,
            activation=setting.activation,
        )
    if setting.kind == "nasbench201" and "|" in architecture.code:
        return trace(maker(setting, architecture)(), torch.zeros(2, *setting.image))
    return dag_cnn_graph(
        architecture.code,
        width=width,
        channels=channels,
        classes=setting.classes,
        kernel_size=architecture.kernel_size,
        image_size=height,
        order=setting.order,
        norm=setting.norm,
        activation=setting.activation,
    )


def structured() -> tuple[Architecture, ...]:
    """Return chains, residual chains, dense nets, skips from everywhere, and parallel branches."""
    architectures = [Architecture(f"chain {n}", codes.chain_code(n)) for n in (1, 2, 3, 4, 6, 8, 11, 15, 20)]
    architectures += [Architecture(f"residual {n}", codes.residual_code(n)) for n in (2, 4, 6, 8, 12, 16)]
    architectures += [Architecture(f"dense {n}", codes.dense_code(n)) for n in (2, 3, 4, 5, 6, 7)]
    architectures += [Architecture(f"skip-all {n}", codes.skip_all_code(n)) for n in (3, 5, 8)]
    branches = ((2, 2), (2, 4), (4, 2), (4, 4), (8, 2), (3, 6))
    return tuple(architectures + [Architecture(f"branches {k} x {n}", codes.branches_code(k, n)) for k, n in branches])


def chains() -> tuple[Architecture, ...]:
    """Return chains of 1 to 32 weights."""
    depths = (1, 2, 3, 4, 5, 6, 8, 11, 15, 20, 26, 32)
    return tuple(Architecture(f"chain {n}", codes.chain_code(n)) for n in depths)


def random_dags(count: int, vertices: tuple[int, ...], seed: int) -> tuple[Architecture, ...]:
    """Return different random DAGs, the numbers of vertices in turn."""
    draw = random.Random(seed)
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[codes.random_code(draw, vertices[len(drawn) % len(vertices)])] = None
    return tuple(Architecture(code, code) for code in drawn)


def kernels() -> tuple[Architecture, ...]:
    """Return chains, dense, residual and random CNNs with kernels from 1 to 7."""
    architectures = [
        Architecture(f"chain {n}, kernel {q}", codes.chain_code(n), q)
        for q, depths in ((1, (1, 2, 4, 8)), (3, (1, 2, 3, 4, 6, 8)), (5, (1, 2, 4, 8)), (7, (1, 2, 4)))
        for n in depths
    ]
    architectures += [
        Architecture(f"dense {n}, kernel {q}", codes.dense_code(n), q) for n, q in ((3, 3), (4, 5), (5, 1))
    ]
    architectures += [
        Architecture(f"residual {n}, kernel {q}", codes.residual_code(n), q) for n, q in ((4, 3), (8, 3), (4, 7))
    ]
    draws = random_dags(12, (5,), seed=5)
    architectures += [
        replace(a, name=f"{a.code}, kernel {q}", kernel_size=q) for a, q in zip(draws, (1, 3, 5, 7) * 3, strict=True)
    ]
    return tuple(architectures)


def kernels_to_fit() -> tuple[Architecture, ...]:
    """Return other CNNs than those of `kernels`, for fitting."""
    draws = random_dags(12, (6, 7, 8), seed=17)
    architectures = [
        replace(a, name=f"{a.code}, kernel {q}", kernel_size=q)
        for a, q in zip(draws, (3, 5, 1, 3, 7, 3) * 2, strict=True)
    ]
    chains = ((5, 1), (5, 3), (10, 3), (3, 5))
    return (*architectures, *(Architecture(f"chain {n}, kernel {q}", codes.chain_code(n), q) for n, q in chains))


def normed_cnns() -> tuple[Architecture, ...]:
    """Return chains and residual chains of convolutions."""
    architectures = [Architecture(f"chain {n}", codes.chain_code(n)) for n in (1, 2, 4, 6, 8, 12)]
    return (*architectures, *(Architecture(f"residual {n}", codes.residual_code(n)) for n in (2, 4, 8, 12)))


def deep() -> tuple[Architecture, ...]:
    """Return chains and residual chains of other depths than those reported, for fitting."""
    architectures = [Architecture(f"chain {n}", codes.chain_code(n)) for n in (3, 5, 10, 14, 24)]
    return (*architectures, *(Architecture(f"residual {n}", codes.residual_code(n)) for n in (5, 10)))


CELLS = (
    "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|none~0|none~1|nor_conv_3x3~2|",
    "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_3x3~1|nor_conv_3x3~2|",
    "|skip_connect~0|+|none~0|skip_connect~1|+|none~0|none~1|nor_conv_3x3~2|",
    "|nor_conv_1x1~0|+|none~0|nor_conv_1x1~1|+|skip_connect~0|none~1|nor_conv_1x1~2|",
    "|avg_pool_3x3~0|+|nor_conv_3x3~0|skip_connect~1|+|nor_conv_1x1~0|none~1|avg_pool_3x3~2|",
    "|none~0|+|nor_conv_3x3~0|none~1|+|skip_connect~0|none~1|nor_conv_3x3~2|",
    "|nor_conv_3x3~0|+|skip_connect~0|nor_conv_3x3~1|+|skip_connect~0|skip_connect~1|nor_conv_3x3~2|",
    "|skip_connect~0|+|skip_connect~0|nor_conv_3x3~1|+|skip_connect~0|skip_connect~1|avg_pool_3x3~2|",
    "|nor_conv_3x3~0|+|nor_conv_3x3~0|avg_pool_3x3~1|+|nor_conv_1x1~0|nor_conv_3x3~1|none~2|",
    "|nor_conv_1x1~0|+|nor_conv_3x3~0|nor_conv_1x1~1|+|nor_conv_3x3~0|nor_conv_1x1~1|nor_conv_3x3~2|",
)


def cells() -> tuple[Architecture, ...]:
    """Return NAS-Bench-201 cells from deep to shallow, with and without skips and pools."""
    return tuple(Architecture(f"cell {number}", code) for number, code in enumerate(CELLS))


WIDTHS = (64, 128, 256, 512, 1024, 2048)


def over_width() -> tuple[Architecture, ...]:
    """Return one shallow, one deep and one residual network at all widths."""
    shapes = (("chain 1", "2"), ("chain 4", codes.chain_code(4)), ("residual 4", codes.residual_code(4)))
    return tuple(Architecture(name, code).at_width(width) for name, code in shapes for width in WIDTHS)


RIVALS: dict[str, tuple[str, ...]] = {
    "mlp-pre": ("range test",),
    "mlp-momentum": ("range test", "prodigy", "adamw"),
    "mlp-adam": ("range test", "prodigy", "adamw"),
}


def families() -> tuple[Family, ...]:
    """Return every family of the benchmark, those to calibrate on last."""
    plain, cnn = FamilySetting(), FamilySetting(kind="cnn", width=64, image=(3, 16, 16))
    momentum = replace(plain, optimizer="momentum")
    batch, layer = replace(momentum, norm="batch"), replace(momentum, norm="layer")
    post = replace(plain, order="post")
    batch_cnn = replace(cnn, optimizer="momentum", norm="batch")
    five = random_dags(30, (5,), seed=0)
    listed: list[Family] = []

    def add(name: str, title: str, setting: FamilySetting, networks: tuple[Architecture, ...]) -> None:
        """Add a family under the paper's initialisation and its twin under ours."""
        listed.append(Family(name, title, setting, networks))
        ours = replace(setting, init="conserve")
        listed.append(Family(f"{name}-conserve", f"{title}, conserve", ours, networks, rivals=RIVALS.get(name, ())))

    listed.append(Family("chains", "chains of 1 to 32 weights", replace(plain, init="conserve"), chains()))
    add("mlp-pre", "structured DAG-MLPs, order pre", plain, structured())
    listed.append(Family("mlp-he", "structured DAG-MLPs, order pre, he", replace(plain, init="he"), structured()))
    add("mlp-post", "structured DAG-MLPs, order post", post, structured())
    add("random-pre", "random 5-vertex DAG-MLPs, order pre", plain, five)
    add("random-post", "random 5-vertex DAG-MLPs, order post", post, five)
    add("mlp-momentum", "structured DAG-MLPs, momentum 0.9", momentum, structured())
    add("mlp-adam", "structured DAG-MLPs, Adam", replace(plain, optimizer="adam"), structured())
    add("mlp-batch", "structured DAG-MLPs, batch norm, momentum", batch, structured())
    add("mlp-layer", "structured DAG-MLPs, layer norm, momentum", layer, structured())
    add("mlp-gelu", "structured DAG-MLPs, GELU", replace(plain, activation="gelu"), structured())
    add("cnn", "DAG-CNNs, kernels 1 to 7", cnn, kernels())
    add("cnn-batch", "CNNs with batch norm, momentum", batch_cnn, normed_cnns())
    cell_setting = replace(batch_cnn, kind="nasbench201", width=16)
    add("nasbench201", "NAS-Bench-201 cells, momentum", cell_setting, cells())
    optimizers: tuple[Optimizer, ...] = ("sgd", "momentum", "adam")
    for optimizer in optimizers:
        setting = replace(plain, optimizer=optimizer, init="conserve")
        listed.append(Family(f"width-{optimizer}", f"widths 64 to 2048, {optimizer}", setting, over_width()))
    several = random_dags(18, (8, 10, 12), seed=8)
    fitted = {
        "pre": plain,
        "he": replace(plain, init="he"),
        "post": post,
        "momentum": momentum,
        "adam": replace(plain, optimizer="adam"),
        "batch": batch,
        "layer": layer,
    }
    for name, setting in fitted.items():
        listed.append(Family(f"fit-{name}", f"random 8-12-vertex DAG-MLPs, {name}", setting, several, calibrates=True))
    listed.append(Family("fit-cnn", "other DAG-CNNs", cnn, kernels_to_fit(), calibrates=True))
    for name, setting in {"batch": batch, "layer": layer, "cnn": batch_cnn}.items():
        listed.append(Family(f"fit-deep-{name}", f"chains of other depths, {name}", setting, deep(), calibrates=True))
    return tuple(listed)
