"""`evenstep nas`: NAS-Bench-201 sampled, trained in several ways, and compared."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.errors import InputError
from evenstep_research.cli.measuring import AsJson, Device, Pages, bar, make_folder

if TYPE_CHECKING:
    from evenstep_research.study.nas.compare import Comparison

nas = typer.Typer(name="nas", help="Train NAS-Bench-201 fairly, and compare.", no_args_is_help=True)


@nas.command()
def sample(
    table: Annotated[str, typer.Argument(help="The table: a file .parquet, its folder, or NATS-Bench's files.")],
    *,
    count: Annotated[int, typer.Option(help="How many cells.")] = 24,
    seed: Annotated[int, typer.Option(help="What the draw follows from.")] = 0,
    data_set: Annotated[str, typer.Option(help="cifar10, cifar100 or imagenet16_120.")] = "cifar10",
    epochs: Annotated[int, typer.Option(help="12 or 200.")] = 12,
    of: Annotated[str | None, typer.Option(help="File of cells to draw from, - for standard input; else all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print cells spread over the table's range of accuracy, one a line."""
    from evenstep_research.study.nas.options import read_codes, text_of
    from evenstep_research.study.nas.sample import sample_of_table, spread_sample
    from evenstep_research.study.nas.table import NasBench201Table

    known = NasBench201Table.load(table)
    accuracies = known.by_code(data_set, epochs=epochs)
    draw = random.Random(seed)
    if (text := text_of(of)) is None:
        codes = sample_of_table(known, count, draw=draw, dataset=data_set, epochs=epochs)
    else:
        among = {code: accuracies[code] for code in read_codes(text) if code in accuracies}
        codes = spread_sample(among, count, draw=draw)
    if as_json:
        print(json.dumps({"codes": list(codes), "accuracies": [accuracies[code] for code in codes]}))
        return
    for code in codes:
        print(f"{code}  # {accuracies[code]:.2f}")


@nas.command()
def train(
    *,
    scale: Annotated[str, typer.Option(help="full, or smoke: digits and tiny networks, in under a minute.")] = "full",
    data: Annotated[str | None, typer.Option(help="Folder of CIFAR-10, CIFAR-100 or ImageNet16.")] = None,
    codes: Annotated[str | None, typer.Option(help="File with one cell a line; - reads standard input.")] = None,
    protocols: Annotated[
        str, typer.Option(help="Names, joined by commas.")
    ] = "benchmark,constant-tuned,paper,weighted,mup",
    epochs: Annotated[int | None, typer.Option(help="Epochs to train for: 12 or 200 in the table.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds for each cell and protocol.")] = 2,
    base_lr: Annotated[
        str | None,
        typer.Option(help="Rate of the base cell: a number, or weighted=0.5,paper=0.46; else searched."),
    ] = None,
    tune_epochs: Annotated[int | None, typer.Option(help="Epochs of the search on the base cell, at most.")] = None,
    tune_seeds: Annotated[int, typer.Option(help="Seeds for each rate of that search.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of the ledger; a run that stopped goes on from it.")] = None,
    device: Device = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32 or bfloat16, on a GPU.")] = None,
    together: Annotated[int | None, typer.Option(help="Runs side by side; if not given, 8 on a GPU.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    as_json: AsJson = False,
) -> None:
    """Train cells with the benchmark's recipe, each protocol at its own rates and initialisation."""
    from evenstep_research.study.nas.options import run, sweep_options, text_of

    options = sweep_options(
        scale=scale,
        data=data,
        codes=text_of(codes),
        protocols=protocols,
        epochs=epochs,
        seeds=seeds,
        base_lr=base_lr,
        tune_epochs=tune_epochs,
        tune_seeds=tune_seeds,
        out=out,
        device=device,
        precision=precision,
        together=together,
        engine=engine,
    )
    if out is not None:
        make_folder(out)
    with bar() as show:
        try:
            result = run(options, show)
        except KeyboardInterrupt:
            if out is not None:
                print("interrupted; the same command goes on from what is trained", file=sys.stderr)
            raise
    values = result.to_dict()
    if as_json:
        print(json.dumps(values))
        return
    for tuned in values["tuned"]:
        print(f"{tuned['protocol']}: rate {tuned['lr']:.4g} on the base cell {tuned['base']}")
    for name in options.protocols:
        accuracies = [row["accuracy"] for row in values["runs"] if row["protocol"] == name]
        if accuracies:
            print(f"{name}: mean accuracy {sum(accuracies) / len(accuracies):.2f}% of {len(accuracies)} runs")
    for code in values["skipped"]:
        print(f"{code}: skipped, no live path leads through it")


@nas.command()
def compare(
    folder: Annotated[Path, typer.Argument(help="Folder of ledgers that `evenstep nas train` wrote.")],
    *,
    table: Annotated[str | None, typer.Option(help="The published table, to compare with it too.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for record and pictures, else that of the ledgers.")] = None,
    page: Pages = None,
    as_json: AsJson = False,
) -> None:
    """Compare protocols: accuracy, gains, rankings and gaps, with each other and with the published table."""
    from evenstep.report.marks import update_page
    from evenstep_research.report.nas import MARKS, markdown
    from evenstep_research.study.nas.compare import compare as compared
    from evenstep_research.study.nas.compare import entries_in
    from evenstep_research.study.nas.table import NasBench201Table
    from evenstep_research.study.record import as_record

    for path in page or ():
        update_page(path, MARKS, None)
    if not os.path.exists(folder):
        raise InputError(f"there is no folder '{folder}'; give the one that evenstep nas train wrote to")
    comparisons = compared(entries_in(folder), None if table is None else NasBench201Table.load(table))
    results = {"comparisons": [comparison.to_dict() for comparison in comparisons]}
    record = as_record(
        config={"protocols": sorted({name for comparison in comparisons for name in comparison.results})},
        results=results,
    )
    _write(record, comparisons, out or (folder if folder.is_dir() else folder.parent))
    for path in page or ():
        update_page(path, MARKS, record)
    print(json.dumps(results) if as_json else markdown(record))


@nas.command()
def table(
    table: Annotated[str, typer.Argument(help="The table: a file .parquet, its folder, or NATS-Bench's files.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Folder for the record.")] = None,
    page: Annotated[list[Path] | None, typer.Option(help="Pages of Markdown to write the tables into.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what the whole table holds without training: how far its seeds agree, and what searches find in it."""
    from evenstep.report.marks import update_page
    from evenstep_research.report.nas_table import MARKS, searches, seeds
    from evenstep_research.study.nas.table import NasBench201Table
    from evenstep_research.study.nas.whole import BUDGETS, SEARCHES, whole_table
    from evenstep_research.study.record import as_record

    for path in page or ():
        update_page(path, MARKS, None)
    record = as_record(
        config={"budgets": BUDGETS, "searches": SEARCHES, "command": "evenstep nas table TABLE"},
        results=whole_table(NasBench201Table.load(table)),
    )
    if out is not None:
        _write(record, (), out)
    for path in page or ():
        update_page(path, MARKS, record)
    print(json.dumps(record["results"]) if as_json else f"{seeds(record)}\n\n{searches(record)}")


def _write(record: dict[str, Any], comparisons: Sequence[Comparison], out: Path) -> None:
    from evenstep_research.report.nas import draw_comparison
    from evenstep_research.study.record import write

    make_folder(out)
    try:
        write(out / "record.json", record)
        for comparison in comparisons:
            draw_comparison(
                comparison, out, stem=f"{comparison.setting['data']}-{comparison.setting['training']['epochs']}"
            )
    except OSError as error:
        raise InputError(f"the results cannot be written to '{out}' ({error}); give another --out") from None
