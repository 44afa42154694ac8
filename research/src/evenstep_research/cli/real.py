"""`evenstep study real`: what a plan is worth against one tuned learning rate on networks that people train."""

from __future__ import annotations

import json
import os
import sys
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
    from evenstep_research.study.real.scales import RealScale, Row


def real(
    *,
    scale: Annotated[str, typer.Option(help="smoke, cpu or full.")] = "smoke",
    data: Annotated[Path | None, typer.Option(help="Folder of CIFAR-10, for images at cpu and full.")] = None,
    networks: Annotated[
        str | None, typer.Option(help="Only networks of these names, with * and ?, joined by commas: 'gpt2*'.")
    ] = None,
    optimizers: Annotated[str | None, typer.Option(help="adam, momentum, or both joined by a comma.")] = None,
    steps: Annotated[str | None, typer.Option(help="Only rows of so many steps, joined by commas: 300.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds for each number, else the scale's own.")] = None,
    workers: GpuWorkers = None,
    device: Device = None,
    out: ResumedOut = None,
    minutes: Minutes = None,
    page: Pages = None,
    as_json: AsJson = False,
    as_list: Annotated[bool, typer.Option("--list", help="List the rows of the scale and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure what plans are worth against one tuned rate, on networks that people train."""
    from evenstep.report.marks import update_page
    from evenstep_research.report.real import real_marks
    from evenstep_research.study.real.benchmark import study
    from evenstep_research.study.real.results import config_of, results_of
    from evenstep_research.study.real.scales import real_scale_named, require_packages, rows_at
    from evenstep_research.study.record import as_record

    chosen = real_scale_named(scale)
    rows = rows_at(chosen, networks=names_in(networks), optimizers=names_in(optimizers), steps=_numbers(steps))
    if as_list:
        _list(rows, as_json=as_json)
        return
    require_counts({"--seeds": seeds, "--workers": workers})
    require_minutes(minutes)
    marks = real_marks(chosen.name) if page else {}
    for path in page or ():
        update_page(path, marks, None)
    device_of(device)  # refused before anything is traced
    _require_folder(chosen, rows, data)
    require_packages(rows)
    resources = resumable(data, device, workers, out, minutes)
    count = seeds or chosen.seeds
    result = answered(lambda show: study(chosen, rows, count, resources, show), resources, quiet=quiet)
    record = as_record(config=config_of(result), results=results_of(result))
    if out is not None:
        _write(record, out)
    for path in page or ():
        update_page(path, marks, record)
    if as_json:
        print(json.dumps(record["results"]))
    else:
        _print(record["results"])


def _numbers(given: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in names_in(given))
    except ValueError:
        raise InputError(f"--steps is '{given}'; give whole numbers joined by commas, such as 300,1500") from None


def _require_folder(scale: RealScale, rows: Sequence[Row], data: Path | None) -> None:
    """Refuse a folder that nothing is read from, and its absence where images are; say that files are missing."""
    from evenstep_research.data.files import located
    from evenstep_research.data.official import CIFAR10

    needing = [row.network.name for row in rows if scale.sources[row.network.data].needs_folder]
    if needing and data is None:
        raise InputError(f"'{needing[0]}' trains on CIFAR-10 at the scale '{scale.name}'; give its folder as --data")
    if data is None:
        return
    if not any(source.needs_folder for source in scale.sources.values()):
        raise InputError(f"the scale '{scale.name}' needs no files; leave --data out")
    if not os.path.isdir(data):
        raise InputError(f"there is no folder '{data}'; give the folder of CIFAR-10 as --data")
    if needing:
        located(CIFAR10, data)


def _write(record: dict[str, Any], out: Path) -> None:
    from evenstep_research.report.real import draw_real, write_table
    from evenstep_research.study.record import write

    rows = record["results"]["rows"]
    with writing(out):
        write(out / "record.json", record)
        write_table(rows, out / "table.csv")
        draw_real(rows, out / "curves.png")


def _list(rows: Sequence[Row], *, as_json: bool) -> None:
    listed = [
        {"network": row.network.name, "kind": row.network.kind, "optimizer": row.optimizer, "steps": row.steps}
        for row in rows
    ]
    if as_json:
        print(json.dumps(listed))
        return
    wide = max(len(row.network.name) for row in rows)
    for row in rows:
        print(f"{row.network.name:<{wide}}  {row.optimizer:<8}  {row.steps:5d} steps  on {row.network.data}")


def _print(results: Mapping[str, Any]) -> None:
    """Print the table, the summary below it, and what is missing."""
    from rich.console import Console
    from rich.table import Table

    from evenstep_research.report.real import COLUMN_NAMES, shown

    console = Console() if sys.stdout.isatty() else Console(width=170)
    table = Table(box=None, pad_edge=False)
    for head in ("network", "optimizer", "steps", *COLUMN_NAMES.values()):
        table.add_column(head, justify="left" if head in ("network", "optimizer") else "right", no_wrap=True)
    for row in results["rows"]:
        cells = (shown(row, name) for name in COLUMN_NAMES)
        table.add_row(row["network"], row["optimizer"], str(row["steps"]), *cells)
    console.print(table)
    for line in results["summary"]:
        if line["n"]:
            console.print(
                f"{line['optimizer']}, {line['steps']} steps, {line['n']} of {line['rows']} networks: plan above tuned "
                f"{line['mean_above_tuned']:+.3f} on average, {line['worst_above_tuned']:+.3f} at worst "
                f"({line['worst_network']})",
                highlight=False,
                markup=False,
            )
    for missing in results["missing"]:
        console.print(f"not measured: {missing}", highlight=False, markup=False)
