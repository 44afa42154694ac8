"""`evenstep study axes`: where best rates go with width, depth, batch and length, and what every rule loses."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.errors import InputError
from evenstep_research.cli.measuring import (
    AsJson,
    Device,
    GpuWorkers,
    Minutes,
    Pages,
    Quiet,
    ResumedOut,
    answered,
    device_of,
    names_in,
    require_counts,
    require_minutes,
    resumable,
    writing,
)

if TYPE_CHECKING:
    from evenstep_research.study.axes.scales import AxesScale, Line

_MUON = "muon"


def axes(
    *,
    scale: Annotated[str, typer.Option(help="smoke, cpu or full.")] = "smoke",
    data: Annotated[Path | None, typer.Option(help="Folder of CIFAR-10, for the ViT at cpu and full.")] = None,
    only: Annotated[
        str | None, typer.Option("--axes", help="Only some of batch, length, width, depth and muon, joined by commas.")
    ] = None,
    kinds: Annotated[str | None, typer.Option(help="Only some of gpt2, llama and vit, joined by commas.")] = None,
    optimizers: Annotated[
        str | None, typer.Option(help="Only some of adam, momentum and muon, joined by commas.")
    ] = None,
    workers: GpuWorkers = None,
    device: Device = None,
    out: ResumedOut = None,
    minutes: Minutes = None,
    page: Pages = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure where best rates go with width, depth, batch and length, and what rules lose."""
    from evenstep.report.marks import update_page
    from evenstep_research.report.axes import axes_marks
    from evenstep_research.study.axes.benchmark import study
    from evenstep_research.study.axes.results import config_of, results_of
    from evenstep_research.study.axes.scales import axes_scale_named
    from evenstep_research.study.record import as_record

    chosen = axes_scale_named(scale)
    lines, muon = _chosen(chosen, names_in(only), names_in(kinds), names_in(optimizers))
    require_counts({"--workers": workers})
    require_minutes(minutes)
    marks = axes_marks(chosen.name) if page else {}
    for path in page or ():
        update_page(path, marks, None)
    device_of(device)  # refused before anything is traced
    _require_folder(chosen, lines, muon, data)
    _require_packages(chosen, lines, muon)
    resources = resumable(data, device, workers, out, minutes)
    result = answered(lambda show: study(chosen, lines, resources, show, muon=muon), resources, quiet=quiet)
    record = as_record(config=config_of(result), results=results_of(result))
    if out is not None:
        _write(record, out)
    for path in page or ():
        update_page(path, marks, record)
    if as_json:
        print(json.dumps(record["results"]))
    else:
        _print(record)


def _chosen(
    scale: AxesScale, only: Sequence[str], kinds: Sequence[str], optimizers: Sequence[str]
) -> tuple[list[Line], bool]:
    """Return the lines of a scale that were asked for, and whether Muon's usual rates were."""
    every = list(scale.lines())
    known: dict[str, tuple[Sequence[str], list[str]]] = {
        "--axes": (only, [*dict.fromkeys(line.axis.name for line in every), _MUON]),
        "--kinds": (kinds, [*dict.fromkeys(line.kind for line in every)]),
        "--optimizers": (optimizers, [*dict.fromkeys(line.optimizer for line in every)]),
    }
    for option, (given, names) in known.items():
        if unknown := [name for name in given if name not in names]:
            raise InputError(f"{option} names '{unknown[0]}'; the scale '{scale.name}' has {', '.join(names)}")
    lines = [
        line
        for line in every
        if (not only or line.axis.name in only)
        and (not kinds or line.kind in kinds)
        and (not optimizers or line.optimizer in optimizers)
    ]
    muon = _MUON in only if only else not (kinds or optimizers)
    if not lines and not muon:
        raise InputError("no line of the scale is on these --axes with these --kinds and --optimizers; leave one out")
    return lines, muon


def _networks(scale: AxesScale, lines: Sequence[Line], *, muon: bool) -> list[Any]:
    """Return the networks that will be trained."""
    names = [line.setup(value).network for line in lines for value in line.axis.values]
    names += [setup.network for row in (scale.muon if muon else ()) for setup in (row.setup, row.base)]
    return [scale.network(name) for name in dict.fromkeys(names)]


def _require_folder(scale: AxesScale, lines: Sequence[Line], muon: bool, data: Path | None) -> None:
    """Refuse the absence of CIFAR-10 where images are, and a folder without it."""
    from evenstep_research.data.files import located
    from evenstep_research.data.official import CIFAR10

    needing = [network.name for network in _networks(scale, lines, muon=muon) if network.data == "images"]
    if needing and data is None:
        raise InputError(
            f"'{needing[0]}' trains on CIFAR-10 at the scale '{scale.name}'; give its folder as --data, or leave "
            "images out by --kinds gpt2,llama"
        )
    if data is not None and not os.path.isdir(data):
        raise InputError(f"there is no folder '{data}'; give the folder of CIFAR-10 as --data")
    if needing and data is not None:
        located(CIFAR10, data)


def _require_packages(scale: AxesScale, lines: Sequence[Line], muon: bool) -> None:
    """Refuse, before any training, networks whose package cannot be loaded."""
    from evenstep_research.study.real.networks import package

    for name in dict.fromkeys(network.needs for network in _networks(scale, lines, muon=muon) if network.needs):
        package(name)


def _write(record: dict[str, Any], out: Path) -> None:
    from evenstep_research.report.axes import draw_axes, write_table
    from evenstep_research.study.record import write

    with writing(out):
        write(out / "record.json", record)
        write_table(record["results"], out / "table.csv")
        draw_axes(record["results"], out / "curves.png")


def _print(record: Mapping[str, Any]) -> None:
    """Print what was asked, the powers, mean regrets, and what is missing."""
    from evenstep_research.report.axes import verdict

    results = record["results"]
    for target in results["targets"]:
        measured = (
            ""
            if target["measured"] is None or target["limit"] is None
            else (f": {target['measured']:.4f}, at most {target['limit']:.4f} asked")
        )
        print(f"{verdict(target['reached'])}: {target['what']}{measured}")
    for power in results["powers"]["summaries"]:
        between = "" if power["low"] is None else f" ({power['low']:+.2f} to {power['high']:+.2f})"
        print(
            f"{power['axis']}, {power['optimizer']}, {power['shape']}: power {power['mean']:+.2f}{between}, "
            f"{power['n']} networks"
        )
    for line in results["regrets"]:
        if line["optimizer"] == "all" and line["n"]:
            every = "–" if line["mean_above_best_of_all"] is None else f"{line['mean_above_best_of_all']:.4f}"
            print(
                f"{line['axis']}, {line['rule']}: mean regret {line['mean_above_own_best']:.4f} above its own best, "
                f"{every} above the best of all, {line['n']} of {line['cells']} cells"
            )
    for row in results["muon"]:
        cells = (f"{name} {_loss(cell)}" for name, cell in row["cells"].items())
        print(f"Muon, {row['network']}: {', '.join(cells)}")
    for missing in results["missing"]:
        print(f"not measured: {missing}")


def _loss(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "–"
    return "diverged" if cell["diverged"] else f"{cell['mean']:.3f}"
