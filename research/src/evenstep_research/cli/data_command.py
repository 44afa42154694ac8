"""`evenstep data`: download data sets, list them, and check what lies in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from evenstep.errors import InputError
from evenstep_research.cli.measuring import AsJson, Quiet

data = typer.Typer(name="data", help="Download, list and check data sets.", no_args_is_help=True)


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(help="cifar10 or cifar100.")],
    *,
    out: Annotated[Path, typer.Option(help="Folder to put the data set's own folder into.")] = Path("data"),
    version: Annotated[str, typer.Option(help="binary or python.")] = "binary",
    url: Annotated[str | None, typer.Option(help="A mirror's address; the checksum stays the official one.")] = None,
    attempts: Annotated[int, typer.Option(help="How often to try before giving up.")] = 5,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Download an official archive, verify and unpack it; one that was cut off goes on where it was."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    from evenstep_research import data as sets

    known = {one.name: one for one in sets.DATA_SETS if any(form.archive for form in one.versions)}
    if name not in known:
        raise InputError(f"the data set is '{name}'; give {' or '.join(known)}")
    forms = {form.name: form for form in known[name].versions if form.archive}
    if version not in forms:
        raise InputError(f"version is '{version}'; give {' or '.join(forms)}")
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True, quiet=quiet), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        found = sets.fetch(forms[version], out, url=url, attempts=attempts, progress=show)
    fields = {"data_set": name, "version": version, "folder": str(found.folder), "downloaded": found.downloaded}
    if as_json:
        print(json.dumps(fields | {"already_there": found.already_there}))
    elif found.already_there:
        print(f"{known[name].title} is in '{found.folder}' already; nothing to do")
    else:
        print(f"{known[name].title} is in '{found.folder}', its checksum is the official one")


@data.command("list")
def list_data_sets(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False
) -> None:
    """List the data sets, and what each needs."""
    from evenstep_research.data import DATA_SETS

    rows: list[dict[str, Any]] = [
        {"name": "digits", "classes": 10, "image": [1, 8, 8], "folders": [], "checksums": False, "source": "built in"}
    ]
    for one in DATA_SETS:
        rows.append({"name": one.name, "classes": one.classes, "image": [3, one.side, one.side]})
        rows[-1] |= {"folders": [version.folder for version in one.versions], "checksums": True, "source": one.source}
    rows.append({"name": "imagenet", "classes": 1000, "image": None, "folders": ["train", "val"], "checksums": False})
    rows[-1] |= {"source": "image-net.org, sorted into train/CLASS/*.JPEG and val/CLASS/*.JPEG; needs Pillow"}
    for row in rows:
        if as_json:
            print(json.dumps(row))
            continue
        image = "any size" if row["image"] is None else " x ".join(map(str, row["image"]))
        official = "official checksums" if row["checksums"] else "no checksum"
        print(f"{row['name']:<15} {row['classes']:>4} classes  {image:<12} {official:<19} {row['source']}")


@data.command()
def check(
    folder: Annotated[Path, typer.Argument(help="The folder of a data set.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Read every file of a data set and compare checksums; exit code 1 where a file is not as it should be."""
    from evenstep_research.data import check_folder

    found = check_folder(folder)
    if as_json:
        files = [
            {"name": file.name, "images": file.images, "official": file.official, "problem": file.problem}
            for file in found.files
        ]
        fields = {"data_set": found.data_set, "version": found.version, "folder": str(found.folder), "ok": found.ok}
        print(json.dumps(fields | {"files": files}))
    else:
        print(f"{found.data_set}, {found.version} version, in '{found.folder}'")
        for file in found.files:
            print(f"{file.name:<20} {_said(file.images, file.official, file.problem)}")
    if not found.ok:
        raise typer.Exit(1)


def _said(images: int | None, official: bool | None, problem: str | None) -> str:
    if problem is not None:
        return problem
    return f"{images} images, {'no checksum to compare' if official is None else 'official'}"
