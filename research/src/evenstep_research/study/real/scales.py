"""The benchmark at three sizes: a minute on a CPU to see that it works, an hour on a CPU, and in full on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Literal, get_args

from evenstep.arguments import require_choice
from evenstep.errors import InputError
from evenstep_research.study.real import compact
from evenstep_research.study.real.networks import PACKAGE_ERRORS, Data, RealNetwork, bases, development_set
from evenstep_research.study.real.small import LENGTH, small_bases, small_set
from evenstep_research.study.real.sources import Cifar10Source, DigitsSource, Source, TextSource

RealOptimizer = Literal["adam", "momentum"]
REAL_OPTIMIZERS: tuple[RealOptimizer, ...] = get_args(RealOptimizer)


@dataclass(frozen=True)
class Row:
    """One line of the table: a network trained by an optimiser for so many steps."""

    network: RealNetwork
    optimizer: RealOptimizer
    steps: int

    @property
    def words(self) -> str:
        """The row's name."""
        return f"{self.network.name}, {self.optimizer}, {self.steps} steps"


@dataclass(frozen=True)
class RealScale:
    """Say which networks are trained, on what, for how long, and with how many seeds.

    All networks train for `steps`; those in `longer` for each of its numbers of steps too.
    """

    name: str
    networks: tuple[RealNetwork, ...]
    bases: Mapping[str, RealNetwork]
    sources: Mapping[Data, Source]
    steps: int
    longer: Mapping[str, int]
    seeds: int

    @property
    def all_steps(self) -> tuple[int, ...]:
        """The numbers of steps that some network trains for."""
        return tuple(sorted({self.steps, *self.longer.values()}))

    def network(self, name: str) -> RealNetwork:
        """Return a network or a base by its name."""
        every = (*self.networks, *self.bases.values())
        return next(network for network in every if network.name == name)

    def steps_of(self, network: RealNetwork) -> tuple[int, ...]:
        """Return the numbers of steps that a network trains for."""
        return (self.steps, *([self.longer[network.name]] if network.name in self.longer else ()))


SMOKE = RealScale(
    "smoke",
    small_set(),
    small_bases(),
    {"images": DigitsSource(batch=32), "text": TextSource(length=LENGTH, batch=8, limit=200_000)},
    steps=24,
    longer={},
    seeds=2,
)
CPU = RealScale(
    "cpu",
    compact.compact_set(),
    compact.compact_bases(),
    {
        "images": Cifar10Source(count=10_000, side=compact.SIDE, batch=48),
        "text": TextSource(length=compact.LENGTH, batch=12, limit=4_000_000),
    },
    steps=200,
    longer={},
    seeds=2,
)
FULL = RealScale(
    "full",
    development_set(),
    bases(),
    {"images": Cifar10Source(), "text": TextSource()},
    steps=300,
    longer=dict.fromkeys(("resnet18", "vit 6 x 192", "gpt2 6 x 256", "llama 6 x 256"), 1500),
    seeds=2,
)
REAL_SCALES: Mapping[str, RealScale] = {scale.name: scale for scale in (SMOKE, CPU, FULL)}


def real_scale_named(name: str) -> RealScale:
    """Return a scale by its name."""
    return REAL_SCALES[require_choice("scale", name, REAL_SCALES)]


def rows_at(
    scale: RealScale,
    *,
    networks: Sequence[str] = (),
    optimizers: Sequence[str] = (),
    steps: Sequence[int] = (),
) -> tuple[Row, ...]:
    """Return the rows of a scale whose network matches a pattern, with these optimisers and steps; all if not given."""
    names = [network.name for network in scale.networks]
    for pattern in networks:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"no network's name matches '{pattern}'; names are {', '.join(map(repr, names))}")
    for optimizer in optimizers:
        if optimizer not in REAL_OPTIMIZERS:
            raise InputError(f"--optimizers names '{optimizer}'; choose from {', '.join(REAL_OPTIMIZERS)}")
    for count in steps:
        if count not in scale.all_steps:
            known = ", ".join(map(str, scale.all_steps))
            raise InputError(f"--steps is {count}; the scale '{scale.name}' trains for {known}")
    rows = tuple(
        Row(network, optimizer, count)
        for network in scale.networks
        if not networks or any(fnmatchcase(network.name, pattern) for pattern in networks)
        for count in scale.steps_of(network)
        if not steps or count in steps
        for optimizer in REAL_OPTIMIZERS
        if not optimizers or optimizer in optimizers
    )
    if not rows:
        raise InputError(
            f"none of the chosen networks trains for {', '.join(map(str, steps))} steps; leave out --steps or "
            "--networks"
        )
    return rows


def require_packages(rows: Sequence[Row]) -> None:
    """Refuse, before any training, rows that need a package which cannot be loaded."""
    needed: dict[str, list[str]] = {"prodigyopt": []}
    for row in rows:
        if row.network.needs:
            needed.setdefault(row.network.needs, []).append(row.network.name)
    lost = {package: error for package in needed if (error := _load_error(package))}
    if not lost:
        return
    told = "; ".join(
        f"'{package}' cannot be loaded ({error}), which "
        + (
            f"{', '.join(dict.fromkeys(needed[package]))} are made by"
            if needed[package]
            else "every row is compared with"
        )
        for package, error in lost.items()
    )
    others = "" if "prodigyopt" in lost else ", or choose others with --networks"
    raise InputError(f"{told}; pip install 'evenstep-research[real]'{others}")


def _load_error(package: str) -> str:
    try:
        import_module(package)
    except PACKAGE_ERRORS as error:
        return str(error)
    return ""
