"""`evenstep study NAME` for the paper's figures, and the list of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
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
from evenstep_research.study.figures.catalogue import DATA_TITLES, FIGURES, PaperFigure

if TYPE_CHECKING:
    from evenstep_research.study.figures.figure_result import FigureResult
    from evenstep_research.study.figures.networks import FigureScale
    from evenstep_research.study.transfer.benchmark import BenchmarkResources
    from evenstep_research.study.transfer.families import Family
    from evenstep_research.study.transfer.measure import TransferTraining


def command_for(figure: PaperFigure) -> Callable[..., None]:
    """Return the command that repeats one figure."""

    def run(
        *,
        scale: Annotated[str, typer.Option(help="smoke, cpu or paper.")] = "smoke",
        data: Annotated[Path | None, typer.Option(help="Folder of the data set, for the scale paper.")] = None,
        rates: Annotated[
            str, typer.Option(help="layers: times each layer's width factor; one: the same for all.")
        ] = "layers",
        seeds: Annotated[int | None, typer.Option(help="Seeds for each learning rate, else the scale's own.")] = None,
        workers: Workers = None,
        device: Device = None,
        precision: Precision = "float32",
        out: Annotated[
            Path | None, typer.Option(help="Folder for record, picture and table; a run that stopped goes on from it.")
        ] = None,
        as_json: AsJson = False,
        quiet: Quiet = False,
    ) -> None:
        from evenstep_research.study.figures.networks import family, scale_named

        size = scale_named(scale)
        if rates not in ("layers", "one"):
            raise InputError(f"--rates is '{rates}'; give layers or one")
        require_counts({"--seeds": seeds, "--workers": workers})
        require_data(scale, size.source(figure), data)
        resources = resources_of(data, device, precision, workers, out, source=size.source(figure))
        training = replace(size.training, seeds=seeds or size.training.seeds)
        if out is not None:
            make_folder(out)
        figure_result = _measured(
            figure, family(figure, size, "one" if rates == "one" else "layers"), resources, training, quiet=quiet
        )
        record = _record(figure_result, size, resources, training)
        if out is not None:
            _write(record, figure_result, out)
        _print(figure, record, as_json=as_json)

    data = DATA_TITLES[figure.data]
    run.__doc__ = (
        f"Repeat the paper's figure of {figure.titled(figure.data)} (r = {figure.paper_r}); on {data} at the scale "
        "paper only, else on digits."
    )
    return run


def list_figures(
    *,
    results: Annotated[Path, typer.Option(help="Folder of recorded runs, one folder a study.")] = Path("results"),
    page: Pages = None,
    as_json: AsJson = False,
) -> None:
    """List the paper's figures with the correlations the paper prints and those recorded here, on the same data."""
    records = recorded_figures(results)
    if page:
        _update(page, records)
    if as_json:
        print(json.dumps([_listed(figure, records.get(figure.name)) for figure in FIGURES]))
        return
    wide = max(len(figure.name) for figure in FIGURES)
    for figure in FIGURES:
        listed = _listed(figure, records.get(figure.name))
        r = listed["r"]
        ours = f"ours {_r(r['weighted'])}, its rates {_r(r['paths'])}" if r else "not run here"
        title = figure.titled(figure.data)
        print(f"{figure.name:<{wide}}  paper {figure.paper_r:.3f}  {ours:<32}  {title}")


def _r(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _listed(figure: PaperFigure, record: dict[str, Any] | None) -> dict[str, Any]:
    methods = record["results"]["methods"] if record else {}
    rates = {name: figures["pearson"]["value"] for name, figures in methods.items()}
    return {**asdict(figure), "r": rates or None, "n": record["results"]["n"] if record else None}


def recorded_figures(results: Path) -> dict[str, dict[str, Any]]:
    """Return the judged records of figures in a folder, those at one rate for all layers among them.

    A run on other data than the paper's, such as the digits of a small scale, does not count.
    """
    from evenstep_research.report.figures import ONE_RATE

    named = {figure.name + ending: figure for figure in FIGURES for ending in ("", ONE_RATE)}
    return {name: record for name, figure in named.items() if (record := _recorded(results / name, figure))}


def _recorded(folder: Path, figure: PaperFigure) -> dict[str, Any] | None:
    from evenstep_research.study.figures.judged import judged

    path = folder / "record.json"
    try:
        config = json.loads(path.read_text())["config"]
        counts = config["scale"] == "paper" and config["data"] == figure.data
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the record '{path}' cannot be read ({error}); remove it, or give other --results") from None
    return judged(folder) if counts else None


def _measured(
    figure: PaperFigure, family: Family, resources: BenchmarkResources, training: TransferTraining, *, quiet: bool
) -> FigureResult:
    from evenstep_research.study.figures.figure_result import FigureResult
    from evenstep_research.study.transfer.benchmark import run

    with bar(quiet=quiet) as show:
        try:
            results = list(run([family], resources, training, show))
        except KeyboardInterrupt:
            if resources.ledger is not None:
                print("interrupted; the same command goes on from what is measured", file=sys.stderr)
            raise
    if not results:
        raise InputError(f"the search of the base of '{figure.name}' has no answer; take another scale or more --seeds")
    return FigureResult(figure, results[0])


def _record(
    figure_result: FigureResult, scale: FigureScale, resources: BenchmarkResources, training: TransferTraining
) -> dict[str, Any]:
    from evenstep_research.study.record import as_record

    options = "" if resources.data is None else " --data DIR"
    options += "" if figure_result.family_result.family.setting.rates == "layers" else " --rates one"
    config = {
        "study": figure_result.figure.name,
        "scale": scale.name,
        "data": resources.data_set,
        "training": asdict(training),
        "precision": figure_result.family_result.precision,
        "command": f"evenstep study {figure_result.figure.name} --scale {scale.name}{options} --seeds {training.seeds}",
    }
    return as_record(config=config, results=figure_result.to_dict())


def _write(record: dict[str, Any], figure_result: FigureResult, out: Path) -> None:
    from evenstep_research.report.figures import draw_figure, write_rows
    from evenstep_research.study.record import write

    try:
        write(out / "record.json", record)
        write_rows(figure_result, out / "table.csv")
        draw_figure(figure_result, out / "figure.png")
    except OSError as error:
        raise InputError(f"the results cannot be written to '{out}' ({error}); give another --out") from None


def _update(pages: list[Path], records: dict[str, dict[str, Any]]) -> None:
    from evenstep.report.marks import update_page
    from evenstep_research.report.figures import MARKS

    for path in pages:
        update_page(path, MARKS, records)


def _print(figure: PaperFigure, record: dict[str, Any], *, as_json: bool) -> None:
    results = record["results"]
    if as_json:
        print(json.dumps(results))
        return
    from evenstep_research.report.figures import paper_r
    from evenstep_research.report.transfer import shown

    print(f"{results['title']}: n = {results['n']}, base's learning rate {results['base_lr']:.4g}")
    other = "" if record["config"]["data"] == figure.data else f"; these runs are on {record['config']['data']}"
    print(f"  {paper_r(figure)}{other}")
    for name, figures in results["methods"].items():
        r, regret = (shown(figures[key], interval=True) for key in ("pearson", "mean_regret"))
        print(f"  {name:<9} r {r:<24} mean regret {regret}")
    for name, status in results["without_truth"].items():
        print(f"  {name}: {status}, not counted")
