"""`evenstep study transfer`: how well learning rates transfer from a base alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.errors import InputError
from evenstep_research.cli.measuring import (
    AsJson,
    Device,
    Pages,
    Precision,
    Quiet,
    Workers,
    bar,
    make_folder,
    require_counts,
    require_data,
    resources_of,
)

if TYPE_CHECKING:
    from evenstep.report.marks import Marks
    from evenstep_research.study.transfer.benchmark import BenchmarkResources, FamilyResult
    from evenstep_research.study.transfer.families import Family
    from evenstep_research.study.transfer.measure import TransferTraining
    from evenstep_research.study.transfer.scales import TransferScale


def transfer(
    more: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="NAME")] = None,
    *,
    scale: Annotated[str, typer.Option(help="smoke, cpu or full.")] = "smoke",
    data: Annotated[Path | None, typer.Option(help="Folder of CIFAR-10's binary version, for the scale full.")] = None,
    families: Annotated[list[str] | None, typer.Option(help="Families to run, else the scale's own.")] = None,
    networks: Annotated[
        str | None, typer.Option(help="Only networks of these names, with * and ?, joined by commas: 'chain ?'.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs to train for; more than one decay along a cosine.")] = 1,
    seeds: Annotated[int | None, typer.Option(help="Seeds for each learning rate, else the scale's own.")] = None,
    workers: Workers = None,
    device: Device = None,
    precision: Precision = "float32",
    out: Annotated[
        Path | None, typer.Option(help="Folder for record, pictures and table; a run that stopped goes on from it.")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Keep what the record in --out has of families that are not run.")
    ] = False,
    page: Pages = None,
    as_json: AsJson = False,
    as_list: Annotated[bool, typer.Option("--list", help="List the families of the scale and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure how well learning rates transfer from a base alone, for families of architectures."""
    from evenstep.report.marks import update_page
    from evenstep_research.study.transfer.scales import families_at, scale_named
    from evenstep_research.study.transfer.updating import require_alike, updated

    chosen = scale_named(scale)
    names = tuple(name for given in (*(families or ()), *(more or ())) for name in given.split(",") if name)
    patterns = tuple(pattern.strip() for pattern in (networks or "").split(",") if pattern.strip())
    selected = families_at(chosen, names, patterns)
    if as_list:
        _list(selected, as_json=as_json)
        return
    require_counts({"--epochs": epochs, "--seeds": seeds, "--workers": workers})
    training = replace(chosen.training, epochs=epochs, cosine=epochs > 1, seeds=seeds or chosen.training.seeds)
    marks = _marks(chosen.data, epochs) if page else {}
    for path in page or ():
        update_page(path, marks, None)
    _require_rivals(selected)
    require_data(chosen.name, chosen.data, data)
    resources = resources_of(data, device, precision, workers, out, source=chosen.data)
    options = _TransferOptions(chosen, selected, patterns, training, resources)
    old = _old(out) if update else None
    if old is not None:
        require_alike(old, options.record([]))  # said before the training, not after
    if out is not None:
        make_folder(out)
    results = _measured(options, quiet=quiet)
    record = options.record(results)
    if old is not None:
        record = updated(old, record)
    if out is not None:
        _write(record, results, out, update=update)
    for path in page or ():
        update_page(path, marks, record)
    if as_json:
        print(json.dumps(record["results"]))
    else:
        _print(record["results"])


@dataclass(frozen=True)
class _TransferOptions:
    """What a run is to do."""

    scale: TransferScale
    families: Sequence[Family]
    networks: Sequence[str]
    training: TransferTraining
    resources: BenchmarkResources

    def record(self, results: Sequence[FamilyResult]) -> dict[str, Any]:
        """Return the run's record, as it is written."""
        from evenstep.search.provenance import provenance
        from evenstep_research.study.record import as_record

        commit = provenance()["commit"]
        measured = {result.family.name: {**result.to_dict(), "commit": commit} for result in results}
        config = {
            "scale": self.scale.name,
            "data": self.scale.data,
            "training": asdict(self.training),
            "precision": {result.family.name: result.precision for result in results},
            "families": [family.name for family in self.families],
            **({"networks": list(self.networks)} if self.networks else {}),
        }
        names = [family.name for family in self.families]
        values = {
            "families": [measured[name] for name in names if name in measured],
            "left_out": [name for name in names if name not in measured],
        }
        return as_record(config=config, results=values)


def _measured(options: _TransferOptions, *, quiet: bool) -> list[FamilyResult]:
    """Return all results, with a bar on standard error."""
    from evenstep_research.study.transfer.benchmark import run

    with bar(quiet=quiet) as show:
        try:
            return list(run(options.families, options.resources, options.training, show))
        except KeyboardInterrupt:
            if options.resources.ledger is not None:
                print("interrupted; the same command goes on from what is measured", file=sys.stderr)
            raise


def _require_rivals(families: Sequence[Family]) -> None:
    """Say before hours of training, not after, that a rival is not installed."""
    from importlib.util import find_spec

    if any("prodigy" in family.rivals for family in families) and find_spec("prodigyopt") is None:
        raise InputError("the rival Prodigy is not installed; install it with pip install prodigyopt")


def _old(out: Path | None) -> dict[str, Any]:
    """Return the record that a run is to bring up to date."""
    from evenstep_research.study.transfer.updating import read_record

    if out is None:
        raise InputError("--update has nothing to bring up to date; give the folder of a record with --out")
    return read_record(out / "record.json")


def _write(record: dict[str, Any], results: Sequence[FamilyResult], out: Path, *, update: bool) -> None:
    from evenstep_research.report.transfer import draw_transfer, write_rows
    from evenstep_research.study.record import write
    from evenstep_research.study.transfer.updating import updated_rows

    table = out / "table.csv"
    try:
        write(out / "record.json", record)
        rows = [row for result in results for row in result.rows()]
        write_rows(updated_rows(table, rows) if update and table.exists() else rows, table)
        for result in results:
            draw_transfer(result, out / f"{result.family.name}.png")
    except OSError as error:
        raise InputError(f"the results cannot be written to '{out}' ({error}); give another --out") from None


def _marks(data: str, epochs: int) -> Marks:
    from evenstep_research.report.transfer import marks_of

    return marks_of(data, epochs)


def _list(families: Sequence[Family], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([{"family": f.name, "title": f.title, "n": len(f.architectures)} for f in families]))
        return
    wide = max(len(family.name) for family in families)
    for family in families:
        print(f"{family.name:<{wide}}  {len(family.architectures):3d}  {family.title}")


def _print(results: Mapping[str, Any]) -> None:
    """Print a table for each family, rivals below it."""
    from rich.console import Console
    from rich.table import Table

    from evenstep_research.report.transfer import shown

    console = Console() if sys.stdout.isatty() else Console(width=150)
    heads = ("method", "mean regret (95%)", "p90", "r", "r of logs", "tau", "|octaves|", "diverged", "target steps")
    for family in results["families"]:
        table = Table(title=f"{family['title']} ({family['family']})", title_justify="left", box=None, pad_edge=False)
        for head in heads:
            table.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
        for name, figures in (*family["methods"].items(), *family["rivals"].items()):
            row = [name, shown(figures["mean_regret"], interval=True), shown(figures["p90_regret"])]
            row += [
                shown(figures[key], 2) if key in figures else ""
                for key in ("pearson", "pearson_log", "kendall", "median_error")
            ]
            table.add_row(*row, str(figures["diverged"]), f"{figures['target_steps']:.0f}")
        console.print(table)
        base = f"n = {family['n']}; base's learning rate {family['base_lr']:.4g}"
        console.print(base, highlight=False)
        if family["drift"]:
            drifts = ", ".join(f"{shape} {octaves:.2f}" for shape, octaves in family["drift"].items())
            console.print(f"drift of the searched rate over width, octaves: {drifts}", highlight=False)
        if family["without_truth"]:
            lost = ", ".join(f"{name} ({status})" for name, status in family["without_truth"].items())
            console.print(f"without a truth, not counted: {lost}", highlight=False, markup=False)
        console.print()
    for name in results["left_out"]:
        console.print(f"{name}: left out, the search of its base has no answer", highlight=False)
