"""`evenstep runs`: the trials in a store."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.cli.saying import say
from evenstep.errors import InputError, StoreError

if TYPE_CHECKING:
    from evenstep.search.store import Store, StoreRow

runs = typer.Typer(name="runs", help="List, show and export the trials in a store.", no_args_is_help=True)

StorePath = Annotated[Path, typer.Argument(help="The store's file.")]


@runs.command("list")
def list_searches(
    store: StorePath, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False
) -> None:
    """List the searches of a store."""
    for search in _open(store).searches():
        if as_json:
            print(json.dumps(search))
            continue
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(search["started"]))
        recipe = search["description"].get("recipe")
        what = f"{recipe.get('optimizer')}, batch {recipe.get('batch_size')}" if isinstance(recipe, dict) else "unknown"
        print(
            f"{search['config'][:12]}  {started}  {search['copies']:5d} trials, {search['diverged']} diverged  {what}"
        )


@runs.command()
def show(
    store: StorePath,
    config: Annotated[
        str | None, typer.Argument(help="Beginning of a search's hash; default: the latest search.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the finished trials of a search."""
    opened = _open(store)
    if config is None:
        config = _latest(opened, store)
    for row in _rows(opened, config):
        if as_json:
            print(json.dumps(_plain(row)))
        else:
            loss = f"{row.loss:.5f}" if math.isfinite(row.loss) else "diverged"
            print(f"lr {row.lr:<12.5g} seed {row.seed:<4d} {loss}")


@runs.command()
def export(
    store: StorePath,
    output: Annotated[Path, typer.Argument(help="A .csv or .parquet file; '-' prints CSV.")],
    config: Annotated[str | None, typer.Option(help="Beginning of a search's hash; default: all searches.")] = None,
) -> None:
    """Export trials to CSV or Parquet."""
    opened = _open(store)
    configs = [search["config"] for search in opened.searches()] if config is None else [config]
    rows = [_plain(row) for name in configs for row in _rows(opened, name)]
    for row in rows:
        row["curve"], row["provenance"] = json.dumps(row["curve"]), json.dumps(row["provenance"])
    if str(output) == "-":
        _write_csv(rows, sys.stdout)
        return
    if output.suffix not in (".csv", ".parquet"):
        raise InputError(f"output is '{output}'; give a file that ends in .csv or .parquet, or '-'")
    try:
        if output.suffix == ".csv":
            with output.open("w", newline="") as file:
                _write_csv(rows, file)
        else:
            _write_parquet(rows, output)
    except OSError as error:
        raise InputError(
            f"output '{output}' cannot be written ({error.strerror or error}); give another file"
        ) from None


_COLUMNS = ("config", "lr", "seed", "loss", "status", "seconds", "curve", "provenance")


def _open(path: Path) -> Store:
    if not os.path.isfile(path):  # not path.is_file(), which raises for names too long for a file system
        raise StoreError(f"there is no store '{path}'; a search writes one with --store FILE")
    from evenstep.search.store import Store  # here: it imports torch, which help and completion do not need

    return Store(path, read_only=True)


def _latest(store: Store, path: Path) -> str:
    """Return the configuration of the search that began last, and print it if there are others."""
    searches = store.searches()
    if not searches:
        raise InputError(f"the store '{path}' holds no search; `evenstep search --store` writes one")
    config = str(searches[-1]["config"])
    if len(searches) > 1:
        say(
            f"the latest of {len(searches)} searches, {config[:12]}; for another: evenstep runs show {path} CONFIG",
            to=sys.stderr,
        )
    return config


def _rows(store: Store, config: str) -> list[StoreRow]:
    matching = [search["config"] for search in store.searches() if search["config"].startswith(config)]
    if len(matching) != 1:
        raise InputError(f"{len(matching)} searches begin with '{config}'; list them with `evenstep runs list`")
    return store.rows(matching[0])


def _plain(row: StoreRow) -> dict[str, Any]:
    from evenstep.search.plain_values import finite_or_none

    return {
        "config": row.config,
        "lr": row.lr,
        "seed": row.seed,
        "loss": finite_or_none(row.loss),
        "status": row.status,
        "seconds": row.seconds,
        "curve": [finite_or_none(value) for value in row.curve],
        "provenance": row.provenance,
    }


def _write_csv(rows: list[dict[str, Any]], file: Any) -> None:
    writer = csv.DictWriter(file, _COLUMNS)
    writer.writeheader()
    writer.writerows(rows)


def _write_parquet(rows: list[dict[str, Any]], output: Path) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet needs the package pyarrow; install it with pip install 'evenstep[parquet]'") from None
    # Types are given because they cannot be inferred from missing losses or from no rows.
    kinds = {"lr": pa.float64(), "seed": pa.int64(), "loss": pa.float64(), "seconds": pa.float64()}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in _COLUMNS])
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), output)
