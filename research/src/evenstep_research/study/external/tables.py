"""The tables: cells of trainings that differ in their rate alone, each of a network of known shape."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from evenstep.errors import InputError
from evenstep_research.study.external.columns import read_rows
from evenstep_research.study.external.curves import BestBy, Curve
from evenstep_research.study.external.shapes import Shape


@dataclass(frozen=True)
class Cell:
    """Hold trainings of one network that differ in their rate alone.

    `batch` (in any unit that the whole table shares) and `steps` are None where the table does not say them. Rates are
    carried between cells of one `group` only.
    """

    shape: Shape
    curve: Curve
    batch: float | None = None
    steps: int | None = None
    group: str = ""


@dataclass(frozen=True)
class Table:
    """Hold the cells of one optimiser; `best_by` says how a cell's best rate is found."""

    name: str
    optimizer: str
    cells: tuple[Cell, ...]
    best_by: BestBy = "parabola"

    @property
    def knows_batch(self) -> bool:
        """Whether every cell says its batch."""
        return all(cell.batch is not None for cell in self.cells)

    @property
    def knows_steps(self) -> bool:
        """Whether every cell says its number of steps."""
        return all(cell.steps is not None for cell in self.cells)


@dataclass(frozen=True)
class TableSource:
    """Name a table's file, and what reads it."""

    file: str
    read: Callable[[Path], tuple[Table, ...]]


FEWEST_RATES = 4  # of a cell of Step Law's, else it has no curve


def read_steplaw(path: Path) -> tuple[Table, ...]:
    """Return the dense models of Step Law (Li et al. 2025, arXiv 2503.04715), trained by AdamW."""
    sizes = ("width", "layers", "ffn_width", "heads")
    points: dict[tuple[Shape, float, int], list[tuple[float, float]]] = defaultdict(list)
    for row in read_rows(path, (*sizes, "batch_sequences", "steps", "lr", "loss")):
        key = (Shape(*(row.whole(size) for size in sizes)), row.number("batch_sequences"), row.whole("steps"))
        points[key].append((row.number("lr"), row.number("loss")))
    curves = {key: Curve.of(points[key]) for key in sorted(points)}
    cells = tuple(
        Cell(shape, curve, batch, steps)
        for (shape, batch, steps), curve in curves.items()
        if len(curve.losses) >= FEWEST_RATES
    )
    if len(cells) < 2:
        raise InputError(f"'{path}' has {len(cells)} cells of {FEWEST_RATES} rates or more; two are the least")
    return (Table("Step Law, dense", "adam", cells),)


_SIZES = {name: Shape(width, 32, 4 * width, width // 64) for name, width in
          (("130m", 512), ("300m", 768), ("520m", 1024), ("1.2b", 1536))}  # fmt: skip
_SWEEPS = {"adamw": "adam", "muon": "muon"}  # the optimisers that are read, as evenstep names them


def read_fantastic(path: Path) -> tuple[Table, ...]:
    """Return the sweeps of *Fantastic Pretraining Optimizers* (Wen et al. 2025, arXiv 2509.02046), by optimiser.

    A cell is a size at one multiple of Chinchilla's tokens: the base line, and the runs that changed the rate alone.
    Runs without a loss are left out. The table says no batch, and many neighbours of the best rate diverged, so the
    best is the best measured.
    """
    points: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = {name: defaultdict(list) for name in _SWEEPS}
    for row in read_rows(path, ("optimizer", "size", "chinchilla", "changed", "value", "loss", "lr")):
        name, size, changed = row.text("optimizer"), row.text("size"), row.text("changed")
        if name not in _SWEEPS or changed not in ("Baseline", "learning_rate"):
            continue
        if size not in _SIZES:
            raise InputError(f"size in line {row.line} of '{path}' is '{size}'; choose one of {', '.join(_SIZES)}")
        loss = row.optional("loss")
        if loss is not None:
            rate = row.number("lr" if changed == "Baseline" else "value")
            points[name][size, row.text("chinchilla")].append((rate, loss))
    tables = []
    for name, cells in points.items():
        if cells:
            listed = tuple(Cell(_SIZES[size], Curve.of(runs), group=times) for (size, times), runs in cells.items())
            tables.append(Table(f"Fantastic, {name}", _SWEEPS[name], listed, "measured"))
    if not tables:
        raise InputError(f"'{path}' has no sweep of {' or '.join(_SWEEPS)}; give the file whole")
    return tuple(tables)


SOURCES: tuple[TableSource, ...] = (
    TableSource("steplaw_dense.csv", read_steplaw),
    TableSource("fantastic.csv", read_fantastic),
)


def read_tables(folder: Path) -> tuple[Table, ...]:
    """Return all tables whose files are in a folder."""
    present = [source for source in SOURCES if (folder / source.file).is_file()]
    if not present:
        names = ", ".join(source.file for source in SOURCES)
        raise InputError(
            f"the folder '{folder}' holds none of the tables; give one that holds any of {names} as --data"
        )
    return tuple(table for source in present for table in source.read(folder / source.file))


def fingerprints(folder: Path) -> Mapping[str, str]:
    """Return what the files of tables in a folder are known by: their SHA-256."""
    files = (folder / source.file for source in SOURCES)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}
