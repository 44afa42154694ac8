"""`evenstep study axes`: where best rates go with width, depth, batch and length, and what every rule loses."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.errors import InputError
from evenstep_research.cli.measuring import bar, device_of, make_folder, require_counts

if TYPE_CHECKING:
    from evenstep_research.study.axes.benchmark import AxesResult
    from evenstep_research.study.axes.scales import AxesScale, Line
    from evenstep_research.study.real.benchmark import RealResources

_ON_A_GPU = 14  # processes: small networks leave most of a GPU idle
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
    workers: Annotated[int | None, typer.Option(help="Processes; if not given, 1 on a CPU, 14 on a GPU.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda, else a GPU if there is one.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for record, table and picture; a run that stopped goes on from it.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes, and write what is complete.")
    ] = None,
    page: Annotated[list[Path] | None, typer.Option(help="Pages of Markdown to write the tables into.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Measure where best rates go with width, depth, batch and length, and what rules lose."""
    from evenstep.report.marks import update_page
    from evenstep_research.report.axes import axes_marks
    from evenstep_research.study.axes.results import config_of, results_of
    from evenstep_research.study.axes.scales import axes_scale_named
    from evenstep_research.study.real.benchmark import RealResources
    from evenstep_research.study.record import as_record

    chosen = axes_scale_named(scale)
    lines, muon = _chosen(chosen, _split(only), _split(kinds), _split(optimizers))
    require_counts({"--workers": workers})
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise InputError(f"--minutes is {minutes:g}; give a number above 0")
    marks = axes_marks(chosen.name) if page else {}
    for path in page or ():
        update_page(path, marks, None)
    named = device_of(device)
    _require_folder(chosen, lines, muon, data)
    _require_packages(chosen, lines, muon)
    if out is not None:
        make_folder(out)
    resources = RealResources(
        named,
        workers or (_ON_A_GPU if named.startswith("cuda") else 1),
        None if data is None else str(data),
        None if out is None else out / "ledger.jsonl",
        minutes,
    )
    result = _measured(chosen, lines, resources, muon=muon, quiet=quiet)
    record = as_record(config=config_of(result), results=results_of(result))
    if out is not None:
        _write(record, out)
    for path in page or ():
        update_page(path, marks, record)
    if as_json:
        print(json.dumps(record["results"]))
    else:
        _print(record)


def _split(given: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (given or "").split(",") if part.strip())


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


def _measured(
    scale: AxesScale, lines: Sequence[Line], resources: RealResources, *, muon: bool, quiet: bool
) -> AxesResult:
    """Return what was measured, with a bar on standard error."""
    from evenstep_research.study.axes.benchmark import study

    with bar(quiet=quiet) as show:
        try:
            result = study(scale, lines, resources, show, muon=muon)
        except KeyboardInterrupt:
            if resources.ledger is not None:
                print("interrupted; the same command goes on from what is measured", file=sys.stderr)
            raise
    if result.answers.wanted and resources.ledger is not None:
        print(
            f"stopped after {resources.minutes:g} minutes; the same command goes on from what is measured",
            file=sys.stderr,
        )
    return result


def _write(record: dict[str, Any], out: Path) -> None:
    from evenstep_research.report.axes import draw_axes, write_table
    from evenstep_research.study.record import write

    try:
        write(out / "record.json", record)
        write_table(record["results"], out / "table.csv")
        draw_axes(record["results"], out / "curves.png")
    except OSError as error:
        raise InputError(f"the results cannot be written to '{out}' ({error}); give another --out") from None


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
