"""The paper's figures: what each varies, on what data, and the correlation it prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evenstep.errors import InputError


@dataclass(frozen=True)
class PaperFigure:
    """Name one figure of the paper and the study that repeats it.

    `label` is where the paper's source has it, `paper_r` the Pearson correlation of estimated and searched maximal
    learning rates that is printed in it, and `data` what it was measured on. A title names no data: a small run may
    train on other data than the paper (`titled`).
    """

    name: str
    label: str
    title: str
    paper_r: float
    kind: Literal["mlp", "cnn"] = "mlp"
    varies: Literal["depth", "topology"] = "topology"
    activation: str = "relu"
    data: Literal["cifar10", "imagenet"] = "cifar10"

    def titled(self, data: str) -> str:
        """Return the title with the data set that a run trained on.

        >>> figure_named("imagenet-depth").titled("digits")
        'MLP chains on digits'
        """
        return f"{self.title} on {DATA_TITLES.get(data, data)}"


DATA_TITLES = {"cifar10": "CIFAR-10", "imagenet": "ImageNet", "digits": "digits"}
FIGURES = (
    PaperFigure("mlp-depth", "fig:mlp_depth", "MLP chains", 0.962, varies="depth"),
    PaperFigure("mlp-topology", "fig:mlps", "random DAG-MLPs", 0.838),
    PaperFigure("cnn", "fig:cnns", "random DAG-CNNs, kernels 1 to 7", 0.856, kind="cnn"),
    PaperFigure("gelu-depth", "appendix:gelu, left", "MLP chains, GELU", 0.920, varies="depth", activation="gelu"),
    PaperFigure("gelu-topology", "appendix:gelu, middle", "random DAG-MLPs, GELU", 0.680, activation="gelu"),
    PaperFigure("gelu-cnn", "appendix:gelu, right", "random DAG-CNNs, GELU", 0.949, kind="cnn", activation="gelu"),
    PaperFigure("imagenet-depth", "fig:mlp_imagenet, left", "MLP chains", 0.856, varies="depth", data="imagenet"),
    PaperFigure("imagenet-topology", "fig:mlp_imagenet, right", "random DAG-MLPs", 0.729, data="imagenet"),
)


def figure_named(name: str) -> PaperFigure:
    """Return a figure by its study's name."""
    known = {figure.name: figure for figure in FIGURES}
    if name not in known:
        raise InputError(f"there is no study '{name}'; choose from {', '.join(known)}")
    return known[name]
