"""`evenstep study`: whole experiments, recorded."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.errors import InputError

if TYPE_CHECKING:
    from evenstep.study.transfer.benchmark import FamilyResult, Place, Progress
    from evenstep.study.transfer.families import Family
    from evenstep.study.transfer.measure import Training
    from evenstep.study.transfer.scales import Scale

study = typer.Typer(name="study", help="Run whole experiments and record them.", no_args_is_help=True)
PRECISIONS = ("float32", "tf32", "bfloat16")


@study.callback()
def _study() -> None:
    """Keep `study` a group while it has one command."""


@study.command()
def transfer(
    more: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="NAME")] = None,
    *,
    scale: Annotated[str, typer.Option(help="smoke, cpu or full.")] = "smoke",
    data: Annotated[Path | None, typer.Option(help="Folder of CIFAR-10's binary version, for the scale full.")] = None,
    families: Annotated[list[str] | None, typer.Option(help="Families to run, else the scale's own.")] = None,
    epochs: Annotated[int, typer.Option(help="Epochs to train for; more than one decay along a cosine.")] = 1,
    seeds: Annotated[int | None, typer.Option(help="Seeds for each learning rate, else the scale's own.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes; if not given, one a core on a CPU, one on a GPU.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda, else a GPU if there is one.")] = None,
    precision: Annotated[str, typer.Option(help="float32, tf32 or bfloat16, on a GPU.")] = "float32",
    out: Annotated[
        Path | None, typer.Option(help="Folder for record, pictures and table; a run that stopped goes on from it.")
    ] = None,
    page: Annotated[list[Path] | None, typer.Option(help="Pages of Markdown to write the tables into.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    as_list: Annotated[bool, typer.Option("--list", help="List the families of the scale and stop.")] = False,
) -> None:
    """Measure how well learning rates transfer from a base alone, for families of architectures."""
    from evenstep.study.transfer.scales import families_at, scale_named

    chosen = scale_named(scale)
    names = tuple(name for given in (*(families or ()), *(more or ())) for name in given.split(",") if name)
    selected = families_at(chosen, names)
    if as_list:
        _list(selected, as_json=as_json)
        return
    for option, value in (("--epochs", epochs), ("--seeds", seeds), ("--workers", workers)):
        if value is not None and value < 1:
            raise InputError(f"{option} is {value}; give a whole number from 1 up")
    if precision not in PRECISIONS:
        raise InputError(f"--precision is '{precision}'; choose one of {', '.join(PRECISIONS)}")
    training = replace(chosen.training, epochs=epochs, cosine=epochs > 1, seeds=seeds or chosen.training.seeds)
    for path in page or ():
        _update(path, None)
    _require_rivals(selected)
    place = _place(chosen, data, device, precision, workers, out)
    asked = _Asked(chosen, selected, training, place)
    if out is not None:
        _make_folder(out)
    results = _measured(asked)
    record = asked.record(results)
    if out is not None:
        _write(record, results, out)
    for path in page or ():
        _update(path, record)
    if as_json:
        print(json.dumps(record["results"]))
    else:
        _print(record["results"])


@dataclass(frozen=True)
class _Asked:
    """What a run is to do."""

    scale: Scale
    families: Sequence[Family]
    training: Training
    place: Place

    def record(self, results: Sequence[FamilyResult]) -> dict[str, Any]:
        """Return the run's record, as it is written."""
        from evenstep.study.record import as_record

        measured = {result.family.name: result.to_dict() for result in results}
        config = {
            "scale": self.scale.name,
            "data": self.scale.data,
            "training": asdict(self.training),
            "precision": self.place.precision,
            "families": [family.name for family in self.families],
        }
        names = [family.name for family in self.families]
        found = {
            "families": [measured[name] for name in names if name in measured],
            "left_out": [name for name in names if name not in measured],
        }
        return as_record(config=config, results=found)


def _measured(asked: _Asked) -> list[FamilyResult]:
    """Return all results, with a bar on standard error."""
    from evenstep.study.transfer.benchmark import run

    with _bar() as show:
        try:
            return list(run(asked.families, asked.place, asked.training, show))
        except KeyboardInterrupt:
            if asked.place.ledger is not None:
                print("interrupted; the same command goes on from what is measured", file=sys.stderr)
            raise


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """Give the function that shows progress: a bar on a terminal, else a line a network."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: print(f"[{progress.done}/{progress.total}] {progress.message}", file=sys.stderr)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda progress: bar.update(
            task, completed=progress.done, total=progress.total, description=progress.message
        )


def _place(
    scale: Scale, data: Path | None, device: str | None, precision: str, workers: int | None, out: Path | None
) -> Place:
    import torch

    from evenstep.study.transfer.benchmark import Place

    if scale.data == "digits" and data is not None:
        raise InputError(f"the scale '{scale.name}' trains on digits, which need no files; leave --data out")
    if scale.data != "digits" and data is None:
        raise InputError(
            f"the scale '{scale.name}' trains on CIFAR-10; give the folder of its binary version as --data"
        )
    if data is not None and not data.is_dir():
        raise InputError(f"there is no folder '{data}'; give the one of CIFAR-10's binary version as --data")
    named = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        kind = torch.device(named).type
    except RuntimeError:
        raise InputError(f"--device is '{named}'; give cpu or cuda") from None
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"--device is '{named}', which this machine has not; give {_devices()}")
    if precision != "float32" and kind == "cpu":
        raise InputError(f"--precision is '{precision}', which is for a GPU; leave it out on a CPU")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = workers or (1 if kind == "cuda" else cores)
    ledger = None if out is None else out / "ledger.jsonl"
    return Place(str(data) if data else None, device, precision, processes, ledger)  # type: ignore[arg-type]


def _devices() -> str:
    import torch

    return "cpu or cuda" if torch.cuda.is_available() else "cpu"


def _require_rivals(families: Sequence[Family]) -> None:
    """Say before hours of training, not after, that a rival is not installed."""
    from importlib.util import find_spec

    if any("prodigy" in family.rivals for family in families) and find_spec("prodigyopt") is None:
        raise InputError("the rival Prodigy is not installed; install it with pip install 'evenstep[study]'")


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder '{out}' cannot be made ({error.strerror}); give another --out") from None


def _write(record: dict[str, Any], results: Sequence[FamilyResult], out: Path) -> None:
    from evenstep.report.transfer import draw_transfer, write_rows
    from evenstep.study.record import write

    try:
        write(out / "record.json", record)
        write_rows(results, out / "table.csv")
        for result in results:
            draw_transfer(result, out / f"{result.family.name}.png")
    except OSError as error:
        raise InputError(f"the results cannot be written to '{out}' ({error}); give another --out") from None


def _update(page: Path, record: Mapping[str, Any] | None) -> None:
    """Write a record's tables into a page; without a record, see that the page has a place for them."""
    from evenstep.report.transfer import filled

    try:
        changed = filled(page.read_text(), record)
        if record:
            page.write_text(changed)
    except OSError as error:
        raise InputError(f"the page '{page}' cannot be written ({error.strerror}); give another --page") from None


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

    from evenstep.report.transfer import shown

    console = Console() if sys.stdout.isatty() else Console(width=150)
    heads = ("method", "mean regret (95%)", "p90", "r", "r of logs", "tau", "|octaves|", "diverged", "target steps")
    for one in results["families"]:
        table = Table(title=f"{one['title']} ({one['family']})", title_justify="left", box=None, pad_edge=False)
        for head in heads:
            table.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
        for name, figures in (*one["methods"].items(), *one["rivals"].items()):
            row = [name, shown(figures["mean_regret"], interval=True), shown(figures["p90_regret"])]
            row += [
                shown(figures[key], 2) if key in figures else ""
                for key in ("pearson", "pearson_log", "kendall", "median_error")
            ]
            table.add_row(*row, str(figures["diverged"]), f"{figures['target_steps']:.0f}")
        console.print(table)
        base = f"n = {one['n']}; base's learning rate {one['base_lr']:.4g}"
        console.print(base, highlight=False)
        if one["drift"]:
            drifts = ", ".join(f"{shape} {octaves:.2f}" for shape, octaves in one["drift"].items())
            console.print(f"drift of the searched rate over width, octaves: {drifts}", highlight=False)
        if one["without_truth"]:
            lost = ", ".join(f"{name} ({status})" for name, status in one["without_truth"].items())
            console.print(f"without a truth, not counted: {lost}", highlight=False, markup=False)
        console.print()
    for name in results["left_out"]:
        console.print(f"{name}: left out, the search of its base has no answer", highlight=False)
