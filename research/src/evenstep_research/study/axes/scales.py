"""What is varied, along which values, by which optimisers; at three sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from evenstep.errors import InputError
from evenstep.rules import RULES
from evenstep_research.study.real import compact
from evenstep_research.study.real.networks import Data, RealNetwork, development_set, gpt2, llama
from evenstep_research.study.real.networks import bases as full_bases
from evenstep_research.study.real.sources import Cifar10Source, Source, TextSource

AxisName = Literal["batch", "length", "width", "depth"]
AxesOptimizer = Literal["adam", "momentum", "muon"]
OWN = "own"
DEFAULT = "weighted"
SHAPES = (DEFAULT, "constant", "spectral", "mup", "completep", "depth-mup", "u-mup", "am-mup", OWN)
KINDS: Mapping[str, Data] = {"gpt2": "text", "llama": "text", "vit": "images"}
_SIZES: tuple[AxisName, ...] = ("width", "depth")


@dataclass(frozen=True)
class Size:
    """Say how large a network is, and how it is trained; `length` counts steps."""

    width: int
    depth: int
    batch: int
    length: int

    def moved(self, axis: AxisName, value: int) -> Size:
        """Return the size with another value on one axis."""
        return Size(**{**vars(self), axis: value})


@dataclass(frozen=True)
class Setup:
    """Name a network, and how many examples and steps it is trained with."""

    network: str
    batch: int
    steps: int


@dataclass(frozen=True)
class Axis:
    """Vary one size along `values`, the smallest first, with all others as in `middle`.

    `shapes` are the rules that say how rates and starts of parameters relate, and `own` for one rate from torch's own
    start.
    """

    name: AxisName
    values: tuple[int, ...]
    middle: Size
    kinds: tuple[str, ...]
    optimizers: tuple[AxesOptimizer, ...]
    shapes: tuple[str, ...]
    seeds: int = 1

    @property
    def of_size(self) -> bool:
        """Whether networks change along the axis, and not how they are trained alone."""
        return self.name in _SIZES

    def setup(self, kind: str, value: int) -> Setup:
        """Return what is trained at a value."""
        size = self.middle.moved(self.name, value)
        return Setup(network_name(kind, size), size.batch, size.length)

    def __post_init__(self) -> None:
        if unknown := [shape for shape in self.shapes if shape != OWN and shape not in RULES]:
            raise InputError(f"'{unknown[0]}' is no rule; choose from {', '.join(RULES)}")


@dataclass(frozen=True)
class Line:
    """Name one line of an axis: networks of one kind, trained by one optimiser."""

    axis: Axis
    kind: str
    optimizer: AxesOptimizer

    def setup(self, value: int) -> Setup:
        """Return what is trained at a value."""
        return self.axis.setup(self.kind, value)

    @property
    def words(self) -> str:
        """The line's name."""
        return f"{self.axis.name}, {self.kind}, {self.optimizer}"


@dataclass(frozen=True)
class MuonRow:
    """Name a network that Muon is compared on, and the base that its rate is searched on."""

    setup: Setup
    base: Setup


@dataclass(frozen=True)
class AxesScale:
    """Say which axes are measured, on how long texts with heads of how many units, and where Muon is compared."""

    name: str
    axes: tuple[Axis, ...]
    text_length: int
    text_limit: int
    images: int
    head: int
    muon: tuple[MuonRow, ...]
    muon_networks: Mapping[str, RealNetwork]
    muon_seeds: int = 2

    def lines(self) -> Iterator[Line]:
        """Yield all lines, axis by axis."""
        for axis in self.axes:
            for optimizer in axis.optimizers:
                for kind in axis.kinds:
                    yield Line(axis, kind, optimizer)

    def network(self, name: str) -> RealNetwork:
        """Return a network by its name."""
        if name in self.muon_networks:
            return self.muon_networks[name]
        kind, depth, _, width = name.split()
        data = KINDS[kind]
        if data == "images":
            make = partial(compact.vit, int(depth), int(width))
            return RealNetwork(name, kind, data, make, "transformers", image=(3, compact.SIDE, compact.SIDE))
        language = {"gpt2": gpt2, "llama": llama}[kind]
        made = partial(language, int(depth), int(width), head=self.head, length=self.text_length)
        return RealNetwork(name, kind, data, made, "transformers", length=self.text_length)

    def source(self, setup: Setup) -> Source:
        """Return what a network is trained on, in batches of the setup."""
        network = self.network(setup.network)
        if network.data == "images":
            return Cifar10Source(self.images, network.image[-1], setup.batch)
        return TextSource(network.length, setup.batch, self.text_limit)


def network_name(kind: str, size: Size) -> str:
    """Return the name of a network of a size."""
    return f"{kind} {size.depth} x {size.width}"


def _axes(
    middle: Size,
    values: Mapping[AxisName, tuple[int, ...]],
    *,
    narrow: Size | None = None,
    kinds: tuple[str, ...] = tuple(KINDS),
    seeds: int,
) -> tuple[Axis, ...]:
    """Return the axes of a scale; `narrow` is where width and depth cross."""
    languages = tuple(kind for kind in kinds if KINDS[kind] == "text")
    return tuple(
        Axis(name, values[name], narrow or middle, languages, ("adam", "muon"), SHAPES)
        if name in _SIZES
        else Axis(name, values[name], middle, kinds, get_args(AxesOptimizer), (DEFAULT, OWN), seeds)
        for name in get_args(AxisName)
        if name in values
    )


_COMPACT = {network.name: network for network in (*compact.compact_set(), *compact.compact_bases().values())}
_FULL = {network.name: network for network in (*development_set(), *full_bases().values())}

SMOKE = AxesScale(
    "smoke",
    _axes(
        Size(16, 1, 4, 12),
        {"batch": (2, 8), "length": (8, 16), "width": (16, 32), "depth": (1, 2)},
        kinds=("llama",),
        seeds=1,
    ),
    text_length=16,
    text_limit=200_000,
    images=0,
    head=8,
    muon=(MuonRow(Setup("llama 2 x 32", 4, 12), Setup("llama 1 x 32", 4, 12)),),
    muon_networks={},
    muon_seeds=1,
)
CPU = AxesScale(
    "cpu",
    _axes(
        Size(32, 2, 8, 200),
        {"batch": (4, 16, 64), "length": (100, 400, 1200), "width": (32, 64, 128), "depth": (2, 4, 8)},
        narrow=Size(32, 2, 8, 100),
        seeds=2,
    ),
    text_length=32,
    text_limit=4_000_000,
    images=10_000,
    head=16,
    muon=tuple(
        MuonRow(Setup(f"compact {name}", batch, 200), Setup(f"compact {base} base", batch, 200))
        for name, base, batch in (
            ("gpt2 6 x 64", "gpt2", 12),
            ("llama 6 x 64", "llama", 12),
            ("vit 6 x 64", "vit", 48),
            ("resnet 3-3-3", "resnet", 48),
        )
    ),
    muon_networks=_COMPACT,
)
FULL = AxesScale(
    "full",
    _axes(
        Size(256, 6, 64, 1000),
        {
            "batch": (16, 32, 64, 128, 256),
            "length": (250, 500, 1000, 2000, 4000),
            "width": (64, 128, 256, 512, 1024),
            "depth": (2, 4, 8, 16, 24),
        },
        narrow=Size(256, 4, 64, 500),
        seeds=2,
    ),
    text_length=128,
    text_limit=8_000_000,
    images=50_000,
    head=64,
    muon=tuple(
        MuonRow(Setup(name, batch, 1500), Setup(f"{base} base", batch, 1500))
        for name, base, batch in (
            ("gpt2 6 x 256", "gpt2", 64),
            ("llama 6 x 256", "llama", 64),
            ("vit 6 x 192", "vit", 128),
            ("resnet18", "resnet", 128),
        )
    ),
    muon_networks=_FULL,
)
AXES_SCALES: Mapping[str, AxesScale] = {scale.name: scale for scale in (SMOKE, CPU, FULL)}


def axes_scale_named(name: str) -> AxesScale:
    """Return a scale by its name."""
    if name not in AXES_SCALES:
        raise InputError(f"scale is '{name}'; choose one of {', '.join(AXES_SCALES)}")
    return AXES_SCALES[name]
