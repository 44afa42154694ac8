"""Check the table's readers: on made files and objects with figures known by hand, and on the published table."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from evenstep.errors import InputError
from evenstep_research.spaces import NasBench201
from evenstep_research.spaces.cells import CLASS_COUNT, all_cells, canonical_cell, cell_string, is_live, parameter_count
from evenstep_research.study.nas.table import CLASSES, DATASETS, Column, NasBench201Table
from research.tests.study.nas.real import FOLDER, needs_table, real_table

ROWS: dict[str, list[Any]] = {
    "arch_str": [cell_string(code) for code in ("333333", "111111", "000000")],
    "op_code": ["333333", "111111", "000000"],
    "test12_cifar10": [88.0, 60.5, 10.0],
    "val12_cifar10": [80.0, 55.5, 10.0],
    "test200_mean_cifar10": [94.0, 70.0, 10.0],
    "test200_oneseed_cifar10": [94.1, 70.1, 10.0],
    "val200_trial0_cifar100": [70.0, 40.0, 1.0],
    "val200_trial2_cifar100": [71.0, None, 1.0],
    "params_M_cifar10": [1.531546, 0.073306, 0.073306],
    "latency_s_cifar10": [0.1, 0.1, 0.1],
}


def made() -> NasBench201Table:
    return NasBench201Table.from_rows(ROWS)


def test_accuracies_by_data_set_epochs_split_and_seed() -> None:
    table = made()
    assert table.codes == ("333333", "111111", "000000")
    assert table.accuracies("cifar10", epochs=12).tolist() == [88.0, 60.5, 10.0]
    assert table.accuracies("cifar10", epochs=12, split="valid").tolist() == [80.0, 55.5, 10.0]
    assert table.accuracies("cifar10", epochs=200).tolist() == [94.0, 70.0, 10.0]
    assert table.accuracies("cifar100", epochs=200, split="valid", seed=0).tolist() == [70.0, 40.0, 1.0]
    assert table.accuracy("3_33_333", "cifar10", epochs=200) == 94.0
    assert table.accuracy(cell_string("111111"), "cifar10", epochs=12) == 60.5
    assert table.seeds("cifar100", epochs=200, split="valid") == (0, 2)
    assert table.seeds("cifar10", epochs=12) == ()
    assert len(table.columns) == 5  # neither the unnamed seed nor the latency


def test_a_missing_run_is_left_out_by_code_and_named_when_asked_for() -> None:
    table = made()
    assert math.isnan(table.accuracies("cifar100", epochs=200, split="valid", seed=2)[1])
    assert table.by_code("cifar100", epochs=200, split="valid", seed=2) == {"333333": 71.0, "000000": 1.0}
    with pytest.raises(InputError, match=r"no accuracy of the cell 111111 \(cifar100, 200 epochs, valid, seed 2\)"):
        table.accuracy("111111", "cifar100", epochs=200, split="valid", seed=2)
    with pytest.raises(InputError, match=r"no accuracy of the cell 222222 \(cifar10, 12 epochs, test, mean\)"):
        table.accuracy("222222", "cifar10", epochs=12)


@pytest.mark.parametrize(
    "asked",
    [
        {"dataset": "cifar10", "epochs": 12, "seed": 0},
        {"dataset": "cifar100", "epochs": 200, "split": "valid", "seed": 1},
        {"dataset": "cifar100", "epochs": 12},
        {"dataset": "mnist", "epochs": 12},
        {"dataset": "cifar10", "epochs": 90},
        {"dataset": "cifar10", "epochs": 12, "split": "train"},
    ],
)
def test_a_missing_column_is_named_with_those_there_are(asked: dict[str, Any]) -> None:
    whose = f"seed {asked['seed']}" if "seed" in asked else "mean"
    what = f"{asked['dataset']}, {asked['epochs']} epochs, {asked.get('split', 'test')}, {whose}"
    with pytest.raises(InputError) as caught:
        made().accuracies(**asked)
    assert str(caught.value).startswith(f"the table has no accuracies of {what}; it has cifar10, 12 epochs, test, mean")
    assert "cifar100, 200 epochs, valid, seed 2" in str(caught.value)


def test_counts_that_are_another_networks_are_told() -> None:
    assert made().miscounted() == frozenset()
    wrong = {**ROWS, "params_M_cifar10": [1.531546, 0.073306, 0.101306]}
    assert NasBench201Table.from_rows(wrong).miscounted() == {"000000"}
    unknown = {**ROWS, "params_M_cifar10": [1.531546, None, 0.073306]}
    assert NasBench201Table.from_rows(unknown).miscounted() == frozenset()


def test_a_table_at_odds_with_itself_is_refused() -> None:
    with pytest.raises(InputError, match=r"op_code of '.*' is '111112'; its digits are '111111'"):
        NasBench201Table.from_rows({**ROWS, "op_code": ["333333", "111112", "000000"]})
    with pytest.raises(InputError, match="the cell 333333 twice"):
        NasBench201Table.from_rows({"arch_str": ["333333", "111111", "333333"]})
    with pytest.raises(InputError, match=r"'cifar10, 12 epochs, test, mean' has shape \(2,\); give one value .* 3"):
        NasBench201Table.from_rows({"arch_str": ROWS["arch_str"], "test12_cifar10": [1.0, 2.0]})
    with pytest.raises(InputError, match="no column 'arch_str', only op_code"):
        NasBench201Table.from_rows({"op_code": ["333333"]})
    with pytest.raises(InputError, match="the table holds '33', which is no cell of NAS-Bench-201"):
        NasBench201Table.from_rows({"arch_str": ["33"]})


def test_a_parquet_file_and_its_folder(tmp_path: Path) -> None:
    parquet.write_table(pa.table(ROWS), tmp_path / "table.parquet")
    for path in (tmp_path, tmp_path / "table.parquet", str(tmp_path)):
        table = NasBench201Table.load(path)
        assert table.codes == made().codes
        assert table.columns.keys() == made().columns.keys()
        for column, values in made().columns.items():
            np.testing.assert_array_equal(table.columns[column], values)
        assert table.parameters["cifar10"].tolist() == [1_531_546, 73_306, 73_306]


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no table")
    for path in (tmp_path, tmp_path / "notes.txt", tmp_path / "nowhere.parquet"):
        with pytest.raises(InputError, match=r"holds no table of NAS-Bench-201; give a file .parquet"):
            NasBench201Table.load(path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"broken.parquet' cannot be read as Parquet"):
        NasBench201Table.load(tmp_path / "broken.parquet")


@pytest.mark.parametrize(
    ("package", "name", "remedy"),
    [
        ("pyarrow", "table.parquet", "pip install pyarrow"),
        ("nats_bench", "NATS-tss-v1_0.pickle.pbz2", "pip install nats_bench"),
    ],
)
def test_a_missing_package_is_named(
    package: str, name: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"needs the package {package}; install it with {remedy}"):
        NasBench201Table.load(tmp_path / name)


# A stand-in for the package's objects: the two methods and their results as nats_bench 1.8 has them, with made figures.
# It checks which questions are asked and where the answers go, not that the official files say what is expected.


@dataclass(frozen=True)
class MadeResults:
    runs: Mapping[tuple[str, str], Mapping[int, float]]
    params: float

    def get_dataset_names(self) -> Sequence[str]:
        return sorted({dataset for dataset, _ in self.runs})

    def get_dataset_seeds(self, dataset: str) -> Sequence[int]:
        return sorted({seed for (name, _), by_seed in self.runs.items() if name == dataset for seed in by_seed})

    def get_metrics(self, dataset: str, setname: str, *, is_random: bool | int) -> Mapping[str, Any]:
        by_seed = self.runs[dataset, setname]
        if is_random is False:
            return {"accuracy": sum(by_seed.values()) / len(by_seed)}
        assert not isinstance(is_random, bool), "a run chosen at random is no figure"
        return {"accuracy": by_seed[is_random]}

    def get_compute_costs(self, dataset: str) -> Mapping[str, Any]:
        assert dataset in self.get_dataset_names()
        return {"params": self.params}


class MadeBenchmark:
    cells = ("333333", "421211")

    def __len__(self) -> int:
        return len(self.cells)

    def arch(self, index: int) -> str:
        return cell_string(self.cells[index])

    def query_meta_info_by_index(self, arch_index: int, hp: str) -> MadeResults:
        if hp == "12":
            if arch_index == 1:
                raise ValueError("The 1-th architecture only has hyper-parameters of ['200'] instead of 12.")
            runs: dict[tuple[str, str], dict[int, float]] = {
                ("cifar10", "ori-test"): {777: 88.5},
                ("cifar10-valid", "x-valid"): {777: 80.0},
            }
        else:
            runs = {
                ("cifar10", "ori-test"): {777: 94.0 - arch_index, 888: 95.0 - arch_index},
                ("cifar100", "x-test"): {777: 70.0, 888: 71.0} if arch_index == 0 else {777: 60.0},
                ("ImageNet16-120", "x-valid"): {777: 40.0},
            }
        return MadeResults(runs, (1.531546, 0.129306)[arch_index])


def test_official_figures_are_read_through_the_package_interface() -> None:
    read: list[int] = []
    table = NasBench201Table.from_nats_bench(MadeBenchmark(), notify=read.append)
    assert read == [1, 2]
    assert table.codes == ("333333", "421211")
    assert table.accuracies("cifar10", epochs=200).tolist() == [94.5, 93.5]
    assert table.accuracies("cifar10", epochs=200, seed=888).tolist() == [95.0, 94.0]
    assert table.by_code("cifar10", epochs=12) == {"333333": 88.5}
    assert table.by_code("cifar10", epochs=12, split="valid", seed=777) == {"333333": 80.0}
    assert table.by_code("cifar100", epochs=200, seed=888) == {"333333": 71.0}
    assert table.by_code("imagenet16_120", epochs=200, split="valid") == {"333333": 40.0, "421211": 40.0}
    assert table.seeds("cifar10", epochs=200) == (777, 888)
    assert Column("imagenet16_120", 200, "test") not in table.columns
    assert table.parameters["cifar10"].tolist() == [1_531_546, 129_306]
    assert table.miscounted() == {"333333", "421211"}  # the made counts are CIFAR-10's on every data set
    one = NasBench201Table.from_nats_bench(MadeBenchmark(), indexes=[1])
    assert one.codes == ("421211",)
    assert one.accuracies("cifar10", epochs=200).tolist() == [93.5]


def test_official_files_are_read_by_the_package_itself(tmp_path: Path) -> None:
    """Write a file of two architectures with the package's own classes, then load it as any user would."""
    nats_bench = pytest.importorskip("nats_bench", reason="the package nats_bench is not installed")
    infos = {}
    for index, cell in enumerate(("333333", "421211")):
        results = nats_bench.ArchResults(index, cell_string(cell))
        for dataset, images in (("cifar10", ["ori-test"]), ("cifar100", ["x-valid", "x-test"])):
            for seed in (777, 888):
                params = parameter_count(cell, classes=10 if dataset == "cifar10" else 100) / 1e6
                run = nats_bench.ResultsCount(dataset, None, {0: 1.0}, {0: 1.0}, params, 1.0, {}, seed, 1, [0.1])
                for place, name in enumerate(images):
                    key = f"{name}@0"
                    accuracy = 10.0 * index + place + seed / 1000
                    run.update_eval({key: accuracy}, {key: 0.0}, {key: 0.0})
                results.update(dataset, seed, run)
        infos[index] = {"200": results.state_dict()}
    content = {
        "meta_archs": [cell_string("333333"), cell_string("421211")],
        "arch2infos": infos,
        "evaluated_indexes": [0, 1],
    }
    nats_bench.pickle_save(content, str(tmp_path / "NATS-tss.pickle"))
    table = NasBench201Table.load(tmp_path / "NATS-tss.pickle.pbz2")
    assert table.codes == ("333333", "421211")
    assert table.accuracies("cifar10", epochs=200, seed=777).tolist() == [0.777, 10.777]
    assert table.accuracies("cifar10", epochs=200) == pytest.approx([0.8325, 10.8325])
    assert table.accuracies("cifar100", epochs=200, seed=888).tolist() == [1.888, 11.888]
    assert table.accuracies("cifar100", epochs=200, split="valid", seed=888).tolist() == [0.888, 10.888]
    assert {column.epochs for column in table.columns} == {200}
    assert table.miscounted() == frozenset()


@needs_table
def test_the_published_table_holds_every_cell() -> None:
    table = real_table()
    assert sorted(table.codes) == list(all_cells())
    assert len(table.columns) == 3 * 6
    for dataset, best in zip(DATASETS, (94.37, 73.51, 47.31), strict=True):
        assert table.accuracies(dataset, epochs=200).max() == pytest.approx(best, abs=0.005)
        for split in ("valid", "test"):
            assert not np.isnan(table.accuracies(dataset, epochs=12, split=split)).any()
        assert table.seeds(dataset, epochs=200, split="valid") == (0, 1, 2)
        assert len(table.by_code(dataset, epochs=200, split="valid", seed=2)) == 8_169
    assert table.accuracy("421211", "cifar10", epochs=12) == 69.55
    with pytest.raises(InputError, match=r"no accuracies of cifar10, 12 epochs, test, seed 777; it has"):
        table.accuracies("cifar10", epochs=12, seed=777)


@needs_table
def test_digits_and_classes_are_those_the_published_table_writes() -> None:
    rows = parquet.read_table(FOLDER / "table.parquet", columns=["arch_str", "op_code", "unique_str"]).to_pydict()
    assert [cell_string(code) for code in rows["op_code"]] == rows["arch_str"]
    assert [canonical_cell(code) for code in rows["op_code"]] == rows["unique_str"]
    assert len(set(rows["unique_str"])) == CLASS_COUNT


@needs_table
def test_dead_cells_are_those_at_chance_in_the_published_table() -> None:
    table = real_table()
    dead = [code for code in table.codes if not is_live(code)]
    for dataset, chance in (("cifar10", 10.0), ("cifar100", 1.0)):
        known = table.by_code(dataset, epochs=200)
        assert {known[code] for code in dead} == {chance}
        assert min(value for code, value in known.items() if is_live(code)) > 2 * chance


@needs_table
def test_the_published_counts_are_our_networks_but_for_runs_moved_within_a_class() -> None:
    table = real_table()
    moved = table.miscounted()
    assert len(moved) == 150
    mates: dict[str, set[int]] = {}
    for code in table.codes:
        mates.setdefault(canonical_cell(code), set()).add(parameter_count(code))
    for code, count in zip(table.codes, table.parameters["cifar10"], strict=True):
        own = parameter_count(code)
        assert (int(count) == own) == (code not in moved)
        assert int(count) in mates[canonical_cell(code)]
    for dataset in DATASETS:
        extra = 65 * (CLASSES[dataset] - 10)
        assert (table.parameters[dataset] - table.parameters["cifar10"] == extra).all()


def modules_parameters(code: str, *, classes: int) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in NasBench201(code, classes=classes, keep_dead=True).parameters())


@needs_table
def test_networks_have_the_published_parameter_counts() -> None:
    table, moved = real_table(), real_table().miscounted()
    checked = 0
    for place in range(0, len(table.codes), 400):
        code = table.codes[place]
        if not is_live(code) or code in moved:
            continue
        checked += 1
        for dataset, classes in CLASSES.items():
            assert modules_parameters(code, classes=classes) == table.parameters[dataset][place]
    assert checked >= 30


@needs_table
@pytest.mark.exhaustive
def test_all_networks_have_the_published_parameter_counts() -> None:
    table, moved = real_table(), real_table().miscounted()
    wrong = {
        code
        for code, count in zip(table.codes, table.parameters["cifar10"], strict=True)
        if is_live(code) and modules_parameters(code, classes=10) != count
    }
    assert wrong == {code for code in moved if is_live(code)}
