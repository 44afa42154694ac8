"""The protocol `mup`: width factors alone, by the mup package where it is installed, else by this package's rule."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from torch import nn

from evenstep.module import plan
from evenstep.search.job import made
from evenstep_research.spaces import NasBench201
from evenstep_research.spaces.cells import cell_digits
from evenstep_research.study.nas.protocols import (
    BENCHMARK_LR,
    RESIDUAL_CELL,
    NetworkShape,
    Pace,
    Rated,
    Treatment,
    graph_of,
    of_plan,
)


@dataclass(frozen=True)
class MupProtocol(Rated):
    """Train with the width factors of muP, at the benchmark's rate as the paper's authors do.

    The package's base network has half the channels: where both have the same, muP is what torch does anyway.
    """

    lr: float = BENCHMARK_LR
    base: str | None = None
    name: str = field(default="mup", init=False)

    def treatment(self, code: str, shape: NetworkShape) -> Treatment:
        """Return what MuSGD's groups, or the plan by the rule `spectral`, say."""
        if is_installed():
            return _of_package(code, shape, self.lr)
        base = graph_of(RESIDUAL_CELL, shape)
        planned = plan(
            graph_of(cell_digits(code), shape), rule="spectral", base=self.lr, base_graph=base, optimizer="momentum"
        )
        return replace(of_plan(planned), note=way())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which of the two ways among them."""
        return {**super().to_dict(), "way": way()}


def is_installed() -> bool:
    """Say whether the mup package is there; a mere folder of that name is not it."""
    spec = find_spec("mup")
    return spec is not None and spec.origin is not None


def way() -> str:
    """Return who gives the factors, in words."""
    if not is_installed():
        return "evenstep's rule 'spectral'; the mup package is not installed"
    try:
        return f"MuSGD of the mup package {metadata.version('mup')}"
    except metadata.PackageNotFoundError:
        return "MuSGD of the mup package"


def _of_package(code: str, shape: NetworkShape, lr: float) -> Treatment:
    """Read rates and decays off MuSGD's groups.

    Its readout divides what it reads by the width's multiple m. A plain readout with weights, rate and decay over m,
    m^2 and 1 / m^2 trains alike, so that the network can stay as it is.
    """
    mup: Any = import_module("mup")

    def network(channels: int) -> nn.Module:
        return made(lambda: _with_readout(replace(shape, channels=channels).network(code), mup.MuReadout), 0)

    model = network(shape.channels)
    mup.set_base_shapes(model, network(max(shape.channels // 2, 1)), delta=network(shape.channels))
    optimizer = mup.MuSGD(model.parameters(), lr=lr, weight_decay=1.0, momentum=0.9, nesterov=True)
    of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    wide = float(model.readout.width_mult())  # type: ignore[operator, union-attr]
    paces = []
    for name, parameter in model.named_parameters():
        group = of[id(parameter)]
        rate, decay, gain = float(group["lr"]), float(group["weight_decay"]), 1.0
        if name == "readout.weight":
            rate, decay, gain = rate / wide**2, decay * wide**2, wide**-0.5
        elif name == "readout.bias":
            gain = wide**0.5
        paces.append(Pace(name, rate, gain=gain, decay=decay))
    return Treatment(tuple(paces), way())


def _with_readout(model: NasBench201, readout: type[nn.Linear]) -> nn.Module:
    model.readout = readout(model.readout.in_features, model.readout.out_features)
    return model
