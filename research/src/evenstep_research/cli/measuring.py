"""What commands that measure share: where they run, how they show progress, where they write."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from evenstep.arguments import require_choice
from evenstep.errors import InputError

if TYPE_CHECKING:
    from evenstep_research.study.real.benchmark import RealResources
    from evenstep_research.study.transfer.benchmark import BenchmarkResources


class BarProgress(Protocol):
    """How work stands: what is done and to do, and what has just happened."""

    @property
    def done(self) -> int:
        """How many are done."""

    @property
    def total(self) -> int:
        """How many there are."""

    @property
    def message(self) -> str:
        """What has just happened."""


Device = Annotated[str | None, typer.Option(help="cpu or cuda, else a GPU if there is one.")]
Precision = Annotated[str, typer.Option(help="float32, tf32 or bfloat16, on a GPU.")]
Workers = Annotated[int | None, typer.Option(help="Processes; if not given, one a core on a CPU, one on a GPU.")]
GpuWorkers = Annotated[int | None, typer.Option(help="Processes; if not given, 1 on a CPU, 14 on a GPU.")]
Minutes = Annotated[float | None, typer.Option(help="Stop after so many minutes, and write what is complete.")]
ResumedOut = Annotated[
    Path | None, typer.Option(help="Folder for record, table and picture; a run that stopped goes on from it.")
]
Pages = Annotated[list[Path] | None, typer.Option(help="Pages of Markdown to write the tables into.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
PRECISIONS = ("float32", "tf32", "bfloat16")
_ON_A_GPU = 14  # processes: small networks leave most of a GPU idle


class WithWork(Protocol):
    """What is known of a study, and the runs that are still wanted."""

    @property
    def wanted(self) -> Sequence[Any]:
        """The runs that can be asked for now."""


class Answered(Protocol):
    """What a study of networks gives."""

    @property
    def answers(self) -> WithWork:
        """All that is known."""


AnsweredT = TypeVar("AnsweredT", bound=Answered)


def names_in(given: str | None) -> tuple[str, ...]:
    """Return the names in a list with commas."""
    return tuple(part.strip() for part in (given or "").split(",") if part.strip())


def require_minutes(minutes: float | None) -> None:
    """Refuse a time that is none."""
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise InputError(f"--minutes is {minutes:g}; give a number above 0")


def resumable(
    data: Path | None, device: str | None, workers: int | None, out: Path | None, minutes: float | None
) -> RealResources:
    """Return where a study of networks runs; the folder of `out`, in which its ledger is, is made."""
    from evenstep_research.study.real.benchmark import RealResources

    named = device_of(device)
    if out is not None:
        make_folder(out)
    return RealResources(
        named,
        workers or (_ON_A_GPU if named.startswith("cuda") else 1),
        None if data is None else str(data),
        None if out is None else out / "ledger.jsonl",
        minutes,
    )


def answered(
    study: Callable[[Callable[[BarProgress], None]], AnsweredT], resources: RealResources, *, quiet: bool
) -> AnsweredT:
    """Return what a study measures, with a bar on standard error; say where it can go on if it stops."""
    goes_on = "the same command goes on from what is measured"
    with bar(quiet=quiet) as show:
        try:
            result = study(show)
        except KeyboardInterrupt:
            if resources.ledger is not None:
                print(f"interrupted; {goes_on}", file=sys.stderr)
            raise
    if result.answers.wanted and resources.ledger is not None:
        print(f"stopped after {resources.minutes:g} minutes; {goes_on}", file=sys.stderr)
    return result


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Refuse a folder that results cannot be written to."""
    try:
        yield
    except OSError as error:
        raise InputError(f"the results cannot be written to '{out}' ({error}); give another --out") from None


def require_counts(options: Mapping[str, int | None]) -> None:
    """Refuse numbers below 1, by their options' names."""
    for option, value in options.items():
        if value is not None and value < 1:
            raise InputError(f"{option} is {value}; give a whole number from 1 up")


def resources_of(
    data: Path | None, device: str | None, precision: str, workers: int | None, out: Path | None, *, source: str
) -> BenchmarkResources:
    """Return where a study runs; `source` names the data set in the folder, `digits` where there is none."""
    from evenstep_research.study.transfer.benchmark import BenchmarkResources

    require_choice("--precision", precision, PRECISIONS)
    kind = device_of(device).split(":")[0]
    if precision != "float32" and kind == "cpu":
        raise InputError(f"--precision is '{precision}', which is for a GPU; leave it out on a CPU")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = workers or (1 if kind == "cuda" else cores)
    ledger = None if out is None else out / "ledger.jsonl"
    folder = str(data) if data is not None else None
    return BenchmarkResources(folder, device, precision, processes, ledger, source)  # type: ignore[arg-type]


def device_of(device: str | None) -> str:
    """Return the device's name: the one asked for, else a GPU if there is one."""
    import torch

    named = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        kind = torch.device(named).type
    except RuntimeError:
        raise InputError(f"--device is '{named}'; give cpu or cuda") from None
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"--device is '{named}', which this machine has not; give {_devices()}")
    return named


def require_data(scale: str, source: str, data: Path | None) -> None:
    """Refuse a folder where digits are trained on, and its absence where they are not."""
    name, needed = {
        "cifar10": ("CIFAR-10", "the folder of CIFAR-10"),
        "imagenet": ("ImageNet", "the folder with ImageNet's train and val"),
    }.get(source, ("digits", ""))
    if source == "digits" and data is not None:
        raise InputError(f"the scale '{scale}' trains on digits, which need no files; leave --data out")
    if source != "digits" and data is None:
        raise InputError(f"the scale '{scale}' trains on {name}; give {needed} as --data")
    if data is not None and not os.path.isdir(data):
        raise InputError(f"there is no folder '{data}'; give {needed} as --data")


def _devices() -> str:
    import torch

    return "cpu or cuda" if torch.cuda.is_available() else "cpu"


def make_folder(out: Path) -> None:
    """Make the folder of --out."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder '{out}' cannot be made ({error.strerror}); give another --out") from None


@contextmanager
def bar(*, quiet: bool = False) -> Iterator[Callable[[BarProgress], None]]:
    """Give the function that shows progress: a bar on a terminal, else a line a network, or nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    if quiet:
        yield lambda _: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: print(f"[{progress.done}/{progress.total}] {progress.message}", file=sys.stderr)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=None)
        yield lambda progress: shown.update(
            task, completed=progress.done, total=progress.total, description=progress.message
        )
