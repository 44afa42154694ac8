"""The accuracies that NAS-Bench-201 publishes, from the project's Parquet table or the official NATS-Bench files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from evenstep.errors import GraphError, InputError
from evenstep_research.spaces.cells import cell_digits, parameter_count
from evenstep_research.study.statistics import Array

CLASSES: Mapping[str, int] = MappingProxyType({"cifar10": 10, "cifar100": 100, "imagenet16_120": 120})
DATASETS = tuple(CLASSES)
# What the benchmark calls a data set, and the images it is measured on. Validation on CIFAR-10 is another training
# than the test: on half of the 50,000 images.
OFFICIAL: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        ("cifar10", "valid"): ("cifar10-valid", "x-valid"),
        ("cifar10", "test"): ("cifar10", "ori-test"),
        ("cifar100", "valid"): ("cifar100", "x-valid"),
        ("cifar100", "test"): ("cifar100", "x-test"),
        ("imagenet16_120", "valid"): ("ImageNet16-120", "x-valid"),
        ("imagenet16_120", "test"): ("ImageNet16-120", "x-test"),
    }
)
OFFICIAL_EPOCHS = (12, 200)
_SPLITS = {"val": "valid", "test": "test"}
_ACCURACY = re.compile(rf"(test|val)(12|200)(?:_(?:mean|trial(\d+)))?_({'|'.join(DATASETS)})")
_PARAMETERS = re.compile(rf"params_M_({'|'.join(DATASETS)})")


@dataclass(frozen=True, slots=True)
class Column:
    """Name one accuracy of every architecture; without a seed it is the mean over the source's runs.

    Seeds are the source's own: the Parquet table numbers its trials 0, 1, 2; the official files say 777 and so on.
    """

    dataset: str
    epochs: int
    split: str
    seed: int | None = None

    def __str__(self) -> str:
        whose = "mean" if self.seed is None else f"seed {self.seed}"
        return f"{self.dataset}, {self.epochs} epochs, {self.split}, {whose}"


class NatsResults(Protocol):
    """What nats_bench holds of one architecture trained for so many epochs."""

    def get_dataset_names(self) -> Sequence[str]:
        """Return the benchmark's names of the data sets trained on."""

    def get_dataset_seeds(self, dataset: str) -> Sequence[int]:
        """Return the seeds of a data set's runs."""

    def get_metrics(self, dataset: str, setname: str, *, is_random: bool | int) -> Mapping[str, Any]:
        """Return `accuracy` in percent after the last epoch: of a seed, or with False the mean over all."""

    def get_compute_costs(self, dataset: str) -> Mapping[str, Any]:
        """Return `params` in millions."""


class NatsBench(Protocol):
    """What is used of the interface to the topology space in the package nats_bench."""

    def __len__(self) -> int: ...

    def arch(self, index: int) -> str:
        """Return the string of an architecture."""

    def query_meta_info_by_index(self, arch_index: int, hp: str) -> NatsResults:
        """Return the results after '12' or '200' epochs; a ValueError where there are none."""


@dataclass(frozen=True, eq=False)
class NasBench201Table:
    """Hold accuracies in percent, one array for each column, aligned with `codes`; not a number where one is missing.

    `codes` are the cells' six digits. `parameters` has the published counts by data set, where the source has them.
    """

    codes: tuple[str, ...]
    columns: Mapping[Column, Array]
    parameters: Mapping[str, Array]

    def __post_init__(self) -> None:
        if len(set(self.codes)) != len(self.codes):
            twice = next(code for place, code in enumerate(self.codes) if code in self.codes[:place])
            raise InputError(f"the table has the cell {twice} twice; give every architecture one row")
        for name, values in (*self.columns.items(), *self.parameters.items()):
            if values.shape != (len(self.codes),):
                raise InputError(
                    f"the column '{name}' has shape {values.shape}; give one value for each of {len(self.codes)} cells"
                )

    @classmethod
    def load(cls, path: Path | str) -> NasBench201Table:
        """Read a Parquet table (or the folder with `table.parquet`), or NATS-Bench's file or folder `NATS-tss-*`.

        The official files are pickles, which run code when they are read: load none that you do not trust.
        """
        given = Path(path)
        table = given / "table.parquet" if given.is_dir() else given
        if table.suffix == ".parquet" and table.is_file():
            return cls.from_rows(_parquet(table))
        if (given / "meta.pickle.pbz2").is_file():
            return cls.from_nats_bench(_official(given, fast=True))
        if given.is_file() and given.name.endswith(".pickle.pbz2"):
            return cls.from_nats_bench(_official(given, fast=False))
        raise InputError(
            f"'{given}' holds no table of NAS-Bench-201; give a file .parquet, a folder with table.parquet, "
            "or NATS-Bench's file NATS-tss-*.pickle.pbz2 or folder NATS-tss-*-simple"
        )

    @classmethod
    def from_rows(cls, rows: Mapping[str, Sequence[Any]]) -> NasBench201Table:
        """Read named columns: `arch_str`, `test12_cifar10`, `val200_trial0_cifar100`, `params_M_cifar10` and the like.

        `op_code`, where present, must agree with `arch_str`. Columns of other names are left unread, among them
        `test200_oneseed_*`, whose seed the table does not tell.
        """
        if "arch_str" not in rows:
            raise InputError(f"the table has no column 'arch_str', only {', '.join(rows) or 'none'}; give one")
        codes = tuple(_digits(text) for text in rows["arch_str"])
        for text, code, given in zip(rows["arch_str"], codes, rows.get("op_code", codes), strict=True):
            if given != code:
                raise InputError(
                    f"the table's op_code of '{text}' is '{given}'; its digits are '{code}': mend the table"
                )
        columns: dict[Column, Array] = {}
        parameters: dict[str, Array] = {}
        for name, values in rows.items():
            if found := _ACCURACY.fullmatch(name):
                split, epochs, trial, dataset = found.groups()
                seed = None if trial is None else int(trial)
                columns[Column(dataset, int(epochs), _SPLITS[split], seed)] = np.array(values, dtype=float)
            elif found := _PARAMETERS.fullmatch(name):
                parameters[found[1]] = np.round(1e6 * np.array(values, dtype=float))
        return cls(codes, columns, parameters)

    @classmethod
    def from_nats_bench(
        cls, benchmark: NatsBench, *, indexes: Iterable[int] | None = None, notify: Callable[[int], None] | None = None
    ) -> NasBench201Table:
        """Read the official files through `nats_bench.create(path, 'tss', ...)`: all, or those of some indexes.

        Columns hold the mean over the runs and every seed for itself. `notify` is called with how many are read.
        """
        chosen = tuple(range(len(benchmark)) if indexes is None else indexes)
        columns: dict[Column, Array] = {}
        parameters = {dataset: np.full(len(chosen), np.nan) for dataset in DATASETS}
        for place, index in enumerate(chosen):
            for epochs in OFFICIAL_EPOCHS:
                try:
                    results = benchmark.query_meta_info_by_index(index, str(epochs))
                except ValueError:
                    continue
                for column, accuracy in _accuracies(results, epochs):
                    columns.setdefault(column, np.full(len(chosen), np.nan))[place] = accuracy
                for dataset in DATASETS:
                    official = OFFICIAL[dataset, "test"][0]
                    if official in results.get_dataset_names():
                        parameters[dataset][place] = round(1e6 * results.get_compute_costs(official)["params"])
            if notify is not None:
                notify(place + 1)
        known = {dataset: values for dataset, values in parameters.items() if not np.isnan(values).all()}
        return cls(tuple(_digits(benchmark.arch(index)) for index in chosen), columns, known)

    def accuracies(self, dataset: str, *, epochs: int, split: str = "test", seed: int | None = None) -> Array:
        """Return a column [architectures] in percent."""
        column = Column(dataset, epochs, split, seed)
        if column not in self.columns:
            there = "; ".join(sorted(map(str, self.columns))) or "nothing"
            raise InputError(f"the table has no accuracies of {column}; it has {there}")
        return self.columns[column]

    def accuracy(self, code: str, dataset: str, *, epochs: int, split: str = "test", seed: int | None = None) -> float:
        """Return one architecture's accuracy in percent."""
        values = self.by_code(dataset, epochs=epochs, split=split, seed=seed)
        digits = cell_digits(code)
        if digits not in values:
            what = Column(dataset, epochs, split, seed)
            raise InputError(f"the table has no accuracy of the cell {digits} ({what}); choose one of those it has")
        return values[digits]

    def by_code(
        self, dataset: str, *, epochs: int, split: str = "test", seed: int | None = None
    ) -> Mapping[str, float]:
        """Return a column by the cells' digits, without those that have no figure."""
        values = self.accuracies(dataset, epochs=epochs, split=split, seed=seed)
        return {code: float(value) for code, value in zip(self.codes, values, strict=True) if not np.isnan(value)}

    def seeds(self, dataset: str, *, epochs: int, split: str = "test") -> tuple[int, ...]:
        """Return the seeds a column exists for; none where the source has the mean alone."""
        wanted = Column(dataset, epochs, split)
        return tuple(
            sorted(
                c.seed for c in self.columns if c.seed is not None and Column(c.dataset, c.epochs, c.split) == wanted
            )
        )

    def miscounted(self) -> frozenset[str]:
        """Return the cells whose published parameter count, of any data set, is not that of their network.

        The benchmark moved some runs from one cell to another with the same `canonical_cell`, and the counts with
        them (150 cells). Their accuracies are those of another network at least in part: leave them out of a sample.
        """
        return frozenset(
            code
            for dataset, values in self.parameters.items()
            for code, value in zip(self.codes, values, strict=True)
            if not np.isnan(value) and int(value) != parameter_count(code, classes=CLASSES[dataset])
        )


def _digits(text: object) -> str:
    try:
        return cell_digits(str(text))
    except GraphError as error:
        raise InputError(f"the table holds '{text}', which is no cell of NAS-Bench-201: {error}") from None


def _parquet(path: Path) -> Mapping[str, Sequence[Any]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ModuleNotFoundError:
        raise InputError("Parquet needs the package pyarrow; install it with pip install pyarrow") from None
    try:
        rows: Mapping[str, Sequence[Any]] = parquet.read_table(path).to_pydict()
    except ArrowInvalid as error:
        raise InputError(f"'{path}' cannot be read as Parquet ({error}); fetch it again") from None
    return rows


def _official(path: Path, *, fast: bool) -> NatsBench:
    try:
        nats_bench = import_module("nats_bench")
    except ModuleNotFoundError:
        raise InputError(
            f"'{path}' is of NATS-Bench, which needs the package nats_bench; install it with pip install nats_bench"
        ) from None
    benchmark: NatsBench = nats_bench.create(str(path), "tss", fast_mode=fast, verbose=False)
    return benchmark


def _accuracies(results: NatsResults, epochs: int) -> Iterable[tuple[Column, float]]:
    """Yield every figure of an architecture trained for so many epochs."""
    names = results.get_dataset_names()
    for (dataset, split), (official, images) in OFFICIAL.items():
        if official not in names:
            continue
        for seed in (None, *results.get_dataset_seeds(official)):
            try:
                metrics = results.get_metrics(official, images, is_random=False if seed is None else seed)
            except KeyError:  # not measured on these images
                continue
            yield Column(dataset, epochs, split, seed), float(metrics["accuracy"])
