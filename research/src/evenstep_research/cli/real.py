"""`evenstep study real`: what a plan is worth against one tuned learning rate on networks that people train."""

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
from evenstep_research.cli.measuring import AsJson, Device, Pages, Quiet, bar, device_of, make_folder, require_counts

if TYPE_CHECKING:
    from evenstep_research.study.real.benchmark import RealResources, RealResult
    from evenstep_research.study.real.scales import RealScale, Row

_ON_A_GPU = 14  # processes: small networks leave most of a GPU idle


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
    workers: Annotated[int | None, typer.Option(help="Processes; if not given, 1 on a CPU, 14 on a GPU.")] = None,
    device: Device = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for record, table and picture; a run that stopped goes on from it.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes, and write what is complete.")
    ] = None,
    page: Pages = None,
    as_json: AsJson = False,
    as_list: Annotated[bool, typer.Option("--list", help="List the rows of the scale and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure what plans are worth against one tuned rate, on networks that people train."""
    from evenstep.report.marks import update_page
    from evenstep_research.report.real import real_marks
    from evenstep_research.study.real.benchmark import RealResources
    from evenstep_research.study.real.results import config_of, results_of
    from evenstep_research.study.real.scales import real_scale_named, require_packages, rows_at
    from evenstep_research.study.record import as_record

    chosen = real_scale_named(scale)
    rows = rows_at(chosen, networks=_split(networks), optimizers=_split(optimizers), steps=_numbers(steps))
    if as_list:
        _list(rows, as_json=as_json)
        return
    require_counts({"--seeds": seeds, "--workers": workers})
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise InputError(f"--minutes is {minutes:g}; give a number above 0")
    marks = real_marks(chosen.name) if page else {}
    for path in page or ():
        update_page(path, marks, None)
    named = device_of(device)
    _require_folder(chosen, rows, data)
    require_packages(rows)
    if out is not None:
        make_folder(out)
    resources = RealResources(
        named,
        workers or (_ON_A_GPU if named.startswith("cuda") else 1),
        None if data is None else str(data),
        None if out is None else out / "ledger.jsonl",
        minutes,
    )
    result = _measured(chosen, rows, seeds or chosen.seeds, resources, quiet=quiet)
    record = as_record(config=config_of(result), results=results_of(result))
    if out is not None:
        _write(record, out)
    for path in page or ():
        update_page(path, marks, record)
    if as_json:
        print(json.dumps(record["results"]))
    else:
        _print(record["results"])


def _split(given: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (given or "").split(",") if part.strip())


def _numbers(given: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in _split(given))
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


def _measured(
    scale: RealScale, rows: Sequence[Row], seeds: int, resources: RealResources, *, quiet: bool
) -> RealResult:
    """Return what was measured, with a bar on standard error."""
    from evenstep_research.study.real.benchmark import study

    with bar(quiet=quiet) as show:
        try:
            result = study(scale, rows, seeds, resources, show)
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
    from evenstep_research.report.real import draw_real, write_table
    from evenstep_research.study.record import write

    rows = record["results"]["rows"]
    try:
        write(out / "record.json", record)
        write_table(rows, out / "table.csv")
        draw_real(rows, out / "curves.png")
    except OSError as error:
        raise InputError(f"the results cannot be written to '{out}' ({error}); give another --out") from None


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
