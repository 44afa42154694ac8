"""The networks of every figure at three sizes: on digits in seconds or minutes, and as the paper has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from evenstep.arguments import require_choice
from evenstep_research.study import codes
from evenstep_research.study.figures.catalogue import PaperFigure
from evenstep_research.study.transfer.families import Architecture, Family, FamilySetting, random_dags
from evenstep_research.study.transfer.measure import TransferTraining
from evenstep_research.study.transfer.scales import spread

DEPTHS = range(3, 11)  # the paper's L: layers, those of input and output among them, so that L = 3 is the base
KERNELS = (1, 3, 5, 7)
IMAGENET_CLASSES = 1000


@dataclass(frozen=True)
class FigureScale:
    """Say what a size changes: widths, whether digits take the data's place, how many architectures at most."""

    name: str
    title: str
    training: TransferTraining
    widths: Mapping[str, int]
    on_digits: bool = True
    most: int | None = None

    def source(self, figure: PaperFigure) -> str:
        """Return the name of the data set that a figure is run on."""
        return "digits" if self.on_digits else figure.data


SCALES = {
    scale.name: scale
    for scale in (
        FigureScale(
            "smoke",
            "a few small networks on digits, a minute",
            TransferTraining(batch_size=32, seeds=2, base_seeds=4),
            {"mlp": 32, "cnn": 8},
            most=4,
        ),
        FigureScale(
            "cpu",
            "all networks, small ones, on digits, minutes",
            TransferTraining(batch_size=32, seeds=3, base_seeds=6),
            {"mlp": 64, "cnn": 16},
        ),
        FigureScale(
            "paper",
            "all networks on the figure's own data, for a GPU",
            TransferTraining(),
            {"mlp": 256, "cnn": 32},
            False,
        ),
    )
}


def scale_named(name: str) -> FigureScale:
    """Return a scale by its name."""
    return SCALES[require_choice("scale", name, SCALES)]


def family(figure: PaperFigure, scale: FigureScale, rates: Literal["layers", "one"] = "layers") -> Family:
    """Return a figure's networks as the authors train them: sums of activations, in-degree initialisation, plain SGD.

    `rates` says whether layers train at rates of their own, by their widths, or all at one. Convolutions see images of
    half the side, as their kernels reach far: 16 x 16 in the paper's size.
    """
    side = 8 if scale.on_digits else 16 if figure.kind == "cnn" else 32
    setting = FamilySetting(
        kind=figure.kind,
        order="post",
        init="degree",
        activation=figure.activation,
        width=scale.widths[figure.kind],
        image=(1 if scale.on_digits else 3, side, side),
        classes=IMAGENET_CLASSES if scale.source(figure) == "imagenet" else 10,
        rates=rates,
    )
    networks = _networks(figure)
    if scale.most is not None:
        networks = spread(networks, scale.most)
    return Family(figure.name, figure.titled(scale.source(figure)), setting, networks)


def _networks(figure: PaperFigure) -> tuple[Architecture, ...]:
    """Return eight depths, 30 random DAGs, or 32 random DAGs with kernels in turn."""
    if figure.varies == "depth":
        return tuple(Architecture(f"L = {layers}", codes.chain_code(layers - 2)) for layers in DEPTHS)
    if figure.kind == "mlp":
        return random_dags(30, (5,), seed=0)
    drawn = random_dags(32, (5,), seed=1)
    return tuple(
        replace(architecture, name=f"{architecture.code}, kernel {KERNELS[place % 4]}", kernel_size=KERNELS[place % 4])
        for place, architecture in enumerate(drawn)
    )
