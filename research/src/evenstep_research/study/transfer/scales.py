"""The benchmark at three sizes: seconds to see that it works, a quarter of an hour on a CPU, and in full on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from evenstep.arguments import require_choice
from evenstep.errors import InputError
from evenstep_research.study.transfer.families import Architecture, Family, NetworkKind, families
from evenstep_research.study.transfer.measure import TransferTraining


@dataclass(frozen=True)
class TransferScale:
    """Say what a benchmark's size changes in every family.

    `widths` holds the width of each kind of network and `over_width` the ones that width is varied over, `images` the
    shape of each kind's images; what they leave out stays as the family has it. `most` limits the architectures of a
    family, `chosen` names the families that are run unless others are asked for (all where it is empty).
    """

    name: str
    title: str
    training: TransferTraining
    data: str = "digits"
    widths: Mapping[NetworkKind, int] = field(default_factory=dict)
    images: Mapping[NetworkKind, tuple[int, int, int]] = field(default_factory=dict)
    over_width: tuple[int, ...] = ()
    most: int | None = None
    chosen: tuple[str, ...] = ()


# Cells of NAS-Bench-201 read three channels, so grey images are repeated.
DIGITS: Mapping[NetworkKind, tuple[int, int, int]] = {"mlp": (1, 8, 8), "cnn": (1, 8, 8), "nasbench201": (3, 8, 8)}

SMOKE = TransferScale(
    "smoke",
    "a few small networks on digits, a minute",
    TransferTraining(batch_size=32, seeds=2, base_seeds=4),
    widths={"mlp": 32, "cnn": 8, "nasbench201": 8},
    images=DIGITS,
    over_width=(16, 32, 64),
    most=3,
    chosen=("mlp-pre-conserve", "mlp-momentum-conserve", "mlp-adam", "mlp-batch", "cnn", "width-sgd"),
)
CPU = TransferScale(
    "cpu",
    "all families on digits, up to ten networks each",
    TransferTraining(batch_size=32, seeds=3, base_seeds=6),
    widths={"mlp": 64, "cnn": 16, "nasbench201": 8},
    images=DIGITS,
    over_width=(16, 32, 64, 128, 256),
    most=10,
)
FULL = TransferScale("full", "all families on CIFAR-10, for a GPU", TransferTraining(), data="cifar10")
SCALES: Mapping[str, TransferScale] = {scale.name: scale for scale in (SMOKE, CPU, FULL)}


def scale_named(name: str) -> TransferScale:
    """Return a scale by its name."""
    return SCALES[require_choice("scale", name, SCALES)]


def families_at(
    scale: TransferScale, names: tuple[str, ...] = (), networks: tuple[str, ...] = ()
) -> tuple[Family, ...]:
    """Return the named families at a scale, or those it is usually run with, in the benchmark's order.

    `networks` are patterns, such as `chain ?`, of which a network's name has to match one; families without any such
    network are left out.
    """
    known = {family.name: family for family in families()}
    for name in names:
        if name not in known:
            raise InputError(f"there is no family '{name}'; choose from {', '.join(known)}")
    wanted = set(names or scale.chosen or known)
    selected = tuple(scaled(family, scale) for name, family in known.items() if name in wanted)
    return _only(selected, networks) if networks else selected


def _only(families: tuple[Family, ...], patterns: tuple[str, ...]) -> tuple[Family, ...]:
    """Return the families with those networks alone that a pattern matches."""
    names = [architecture.name for family in families for architecture in family.architectures]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"no network's name matches '{pattern}'; names are such as '{names[0]}' and '{names[-1]}'")
    kept = (
        replace(
            family,
            architectures=tuple(a for a in family.architectures if any(fnmatchcase(a.name, p) for p in patterns)),
        )
        for family in families
    )
    return tuple(family for family in kept if family.architectures)


def scaled(family: Family, scale: TransferScale) -> Family:
    """Return a family as a scale has it: images and width replaced, architectures limited.

    Architectures are dropped evenly and the first one stays. Where width is what varies, the scale's widths take the
    place of the family's, and whole shapes are dropped: a shape at one width shows nothing.
    """
    kind = family.setting.kind
    setting = replace(
        family.setting,
        width=scale.widths.get(kind, family.setting.width),
        image=scale.images.get(kind, family.setting.image),
    )
    title, architectures = family.title, family.architectures
    if scale.over_width and all(architecture.width is not None for architecture in architectures):
        shapes = tuple({architecture.shape: architecture for architecture in architectures}.values())
        if scale.most is not None:
            shapes = spread(shapes, max(scale.most // len(scale.over_width), 1))
        architectures = tuple(shape.at_width(width) for shape in shapes for width in scale.over_width)
        title = f"widths {min(scale.over_width)} to {max(scale.over_width)}, {setting.optimizer}"
    elif scale.most is not None:
        architectures = spread(architectures, scale.most)
    return replace(family, title=title, setting=setting, architectures=architectures)


def spread(architectures: tuple[Architecture, ...], most: int) -> tuple[Architecture, ...]:
    """Return at most so many, evenly spread, the first and where there are two or more the last among them."""
    last = len(architectures) - 1
    if last < most:
        return architectures
    if most == 1:
        return architectures[:1]
    return tuple(architectures[round(place * last / (most - 1))] for place in range(most))
