"""Run sweeps for real on digits: whole, cut, resumed, with a dead cell, searching a base's rate, and over Ray."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evenstep.errors import InputError, SearchError, StoreError
from evenstep.search.grid import rate_at
from evenstep_research.spaces.cells import parameter_count
from evenstep_research.study.nas import __main__, sweep
from evenstep_research.study.nas.captured import TrainingResult
from evenstep_research.study.nas.ledger import LedgerRow, Run, RunLedger, SweepSetting, key_of, read
from evenstep_research.study.nas.options import (
    PROTOCOLS,
    SMOKE,
    SMOKE_CODES,
    SweepOptions,
    read_codes,
    read_protocols,
    read_rates,
    run,
    setting_for,
    sweep_options,
)
from evenstep_research.study.nas.protocols import (
    BenchmarkProtocol,
    ConstantTunedProtocol,
    NetworkShape,
    PaperProtocol,
    WeightedProtocol,
)
from evenstep_research.study.nas.sweep import SweepResources, data_set_in, train_group, tune
from evenstep_research.study.progress import StudyProgress
from research.tests.data import made
from research.tests.study.nas.tiny import DEAD, LIGHT, SETTING

RESOURCES = SweepResources(device="cpu")
RATES = {"weighted": 0.3, "constant-tuned": 0.2}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Remember the runs that are trained."""
    seen: list[Run] = []

    def remembering(group: sweep.RunGroup, *others: Any) -> list[TrainingResult]:
        seen.extend(group)
        return train_group(group, *others)

    monkeypatch.setattr(sweep, "train_group", remembering)
    return seen


def asked(out: Path | None, codes: Sequence[str] = (LIGHT, DEAD, "101001"), **options: Any) -> SweepOptions:
    protocols = ("benchmark", "weighted")
    return replace(SweepOptions(tuple(codes), protocols, SETTING, RESOURCES, seeds=2, rates=RATES, out=out), **options)


def test_a_sweep_trains_everything_once_and_goes_on_where_it_was_cut(tmp_path: Path, trained: list[Run]) -> None:
    said: list[StudyProgress] = []
    found = run(asked(tmp_path), said.append)
    assert found.skipped == (DEAD,)
    assert any(f"{DEAD} skipped: no live path" in progress.message for progress in said)
    names = [(one.code, one.protocol["name"], one.seed) for one in found.entries]
    assert names == [(c, p, s) for c in (LIGHT, "101001") for s in (0, 1) for p in ("benchmark", "weighted")]
    assert said[-1].done == said[-1].total == len(trained) == 8
    ledger = tmp_path / "ledger.jsonl"
    text = ledger.read_text()
    assert not (tmp_path / "checkpoint.pt").exists()

    trained.clear()
    assert run(asked(tmp_path)).entries == found.entries
    assert trained == []
    assert ledger.read_text() == text

    lines = text.splitlines(keepends=True)
    ledger.write_text("".join(lines[:5]) + lines[5][:40])
    again = run(asked(tmp_path))
    assert [(one.code, one.seed, one.protocol.name) for one in trained] == [
        ("101001", 0, "weighted"),
        ("101001", 1, "benchmark"),
        ("101001", 1, "weighted"),
    ]
    key = [(one.key, one.outcome.accuracy, one.outcome.train_losses) for one in found.entries]
    assert sorted((one.key, one.outcome.accuracy, one.outcome.train_losses) for one in again.entries) == sorted(key)


def test_an_entry_tells_all_that_matters(tmp_path: Path) -> None:
    (entry,) = run(asked(tmp_path, [LIGHT], protocols=("weighted",), seeds=1)).entries
    (line,) = (tmp_path / "ledger.jsonl").read_text().splitlines()
    values = json.loads(line)
    assert LedgerRow.from_dict(values) == entry
    assert values["protocol"] == {"name": "weighted", "lr": 0.3, "base": "303101"}
    assert values["setting"]["data"] == "digits"
    assert values["setting"]["training"]["epochs"] == 1
    assert values["parameters"] == parameter_count(LIGHT, channels=4, cells=1)
    assert values["provenance"]["precision"] == "float32"
    assert "topology" in values["note"]
    diverged = replace(entry, outcome=TrainingResult(10.0, float("inf"), (float("inf"),), 1.0))
    assert LedgerRow.from_dict(json.loads(json.dumps(diverged.to_dict(), allow_nan=False))) == diverged


def test_one_training_of_two_names_is_trained_once(tmp_path: Path, trained: list[Run]) -> None:
    """The rate that a constant was tuned to may be the benchmark's."""
    first = run(asked(tmp_path, [LIGHT], protocols=("benchmark",), seeds=1))
    both = ("benchmark", "constant-tuned")
    more = run(asked(tmp_path, [LIGHT], protocols=both, rates={"constant-tuned": 0.1}, seeds=1))
    assert len(trained) == 1
    assert [one.protocol["name"] for one in more.entries] == list(both)
    assert more.entries[1].outcome == first.entries[0].outcome
    assert [entry.protocol["name"] for entry in read(tmp_path / "ledger.jsonl")] == list(both)


def test_the_key_knows_whatever_changes_an_outcome() -> None:
    one = Run(LIGHT, WeightedProtocol(0.3), 0)
    other_shape, longer = replace(SETTING.shape, channels=8), replace(SETTING.training, epochs=2)
    keys = [
        key_of(one, SETTING),
        key_of(replace(one, seed=1), SETTING),
        key_of(replace(one, code="000200"), SETTING),
        key_of(replace(one, protocol=WeightedProtocol(0.31)), SETTING),
        key_of(one, replace(SETTING, training=longer)),
        key_of(one, replace(SETTING, shape=other_shape)),
        key_of(one, replace(SETTING, data="cifar10")),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(replace(one, tuning=True), SETTING) == keys[0]
    assert key_of(replace(one, protocol=WeightedProtocol(0.3 * (1 + 1e-14))), SETTING) == keys[0]


def test_a_group_that_memory_has_no_room_for_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def cramped(group: sweep.RunGroup, *_: Any) -> list[TrainingResult]:
        sizes.append(len(group))
        if len(group) > 2:
            raise torch.cuda.OutOfMemoryError
        return [TrainingResult(50.0, 1.0, (1.0,), 1.0)] * len(group)

    monkeypatch.setattr(sweep, "train_group", cramped)
    runs = [Run(LIGHT, BenchmarkProtocol(), seed) for seed in range(5)]
    resources = replace(RESOURCES, together=4)
    entries = list(sweep.sweep(runs, SETTING, resources, RunLedger(None)))
    assert sizes == [4, 2, 2, 1]
    assert [entry.seed for entry in entries] == [0, 1, 2, 3, 4]


def valley(at: float, floor: float = 1.0) -> Any:
    """Stand for training: a loss with its minimum at a rate, a parabola in octaves."""
    from math import log2

    def loss(run: Run) -> float:
        lr = run.protocol.lr
        return float("inf") if lr > 10 else floor * 1.01 ** (log2(lr / at) ** 2)

    def trained(group: sweep.RunGroup, *_: Any) -> list[TrainingResult]:
        return [TrainingResult(50.0, 1.0, (3.0, loss(run)), 1.0) for run in group]

    return trained


@pytest.mark.parametrize("at", [0.13, 0.02, 2.0])
def test_a_search_finds_the_bottom_even_beyond_the_first_octaves(at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "train_group", valley(at))
    ledger = RunLedger(None)
    found = tune(PaperProtocol, SETTING, RESOURCES, ledger, seeds=2)
    assert found.lr == pytest.approx(at, rel=0.02)
    assert (found.protocol, found.base) == ("paper", "101001")
    assert all(entry.tuning and entry.code == "101001" for entry in ledger.entries.values())
    assert len(ledger.entries) == 2 * len(found.losses)
    assert all(lr in {rate_at(0.1, resources) for resources in range(-40, 40, 2)} for lr in found.losses)
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_search_without_an_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "train_group", valley(0.1, floor=float("inf")))
    with pytest.raises(SearchError, match="every rate diverged for 'weighted' on its base cell 303101"):
        tune(WeightedProtocol, SETTING, RESOURCES, RunLedger(None))
    with pytest.raises(InputError, match="'benchmark' has no base cell"):
        tune(BenchmarkProtocol, SETTING, RESOURCES, RunLedger(None))


def test_base_rates_are_searched_where_none_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sweep, "train_group", valley(0.2))
    names = tuple(PROTOCOLS)
    training = replace(SETTING.training, epochs=30)
    given = asked(tmp_path, [LIGHT], protocols=names, rates={"paper": 0.46}, tune_epochs=4)
    found = run(replace(given, setting=replace(SETTING, training=training)))
    assert [one.protocol for one in found.tuned] == ["constant-tuned", "weighted"]
    rates = {entry.protocol["name"]: entry.protocol["lr"] for entry in found.entries}
    assert rates == pytest.approx(
        {"benchmark": 0.1, "constant-tuned": 0.2, "paper": 0.46, "weighted": 0.2, "mup": 0.1}, rel=0.02
    )
    epochs = {(e.tuning, e.setting["training"]["epochs"]) for e in read(tmp_path / "ledger.jsonl")}
    assert epochs == {(True, 4), (False, 30)}


@pytest.mark.exhaustive
def test_a_cluster_trains_the_same() -> None:
    pytest.importorskip("ray")
    runs = [Run(LIGHT, BenchmarkProtocol(), seed) for seed in range(2)]
    here = list(sweep.sweep(runs, SETTING, RESOURCES, RunLedger(None)))
    there = list(sweep.sweep(runs, SETTING, replace(RESOURCES, engine="ray"), RunLedger(None)))
    found, expected = ({one.seed: one.outcome.train_losses for one in entries} for entries in (there, here))
    assert found == {seed: pytest.approx(losses, rel=1e-3) for seed, losses in expected.items()}


def test_codes_protocols_and_rates_in_words() -> None:
    assert read_codes(
        "# these\n3_24_440\n\n|nor_conv_3x3~0|+|none~0|none~1|+|none~0|skip_connect~1|none~2|\n324440 # again"
    ) == (
        "324440",
        "300010",
    )
    assert read_protocols("weighted, benchmark,weighted") == ("weighted", "benchmark")
    assert read_rates(None) == {}
    assert read_rates("0.5") == {"constant-tuned": 0.5, "paper": 0.5, "weighted": 0.5}
    assert read_rates("mup=0.2, paper=0.46") == {"mup": 0.2, "paper": 0.46}
    for wrong, message in (("x", "--base-lr is 'x'"), ("a=1", "there is no protocol 'a'"), ("paper=", "--base-lr is")):
        with pytest.raises(InputError, match=message):
            read_rates(wrong)
    with pytest.raises(InputError, match="line 2 of the codes is no cell"):
        read_codes("324440\nnonsense")
    with pytest.raises(InputError, match="there are no codes"):
        read_codes("# nothing")
    with pytest.raises(InputError, match="there is no protocol 'fast'; choose from benchmark"):
        read_protocols("fast")
    with pytest.raises(InputError, match="there are no protocols"):
        read_protocols(",")


def test_the_setting_is_the_data_sets(tmp_path: Path) -> None:
    folder = made.cifar10_binary(tmp_path)
    setting = setting_for(str(folder.parent), epochs=200)
    assert setting == SweepSetting(
        NetworkShape(16, 5, 10, 32),
        replace(SMOKE.training, epochs=200, batch_size=256, padding=4, flip=True),
        "cifar10",
    )
    assert data_set_in(str(folder)).name == "cifar10"
    with pytest.raises(InputError, match="holds no data set of the benchmark"):
        data_set_in(str(tmp_path / "cifar-10-batches-bin" / ".." / ".."))
    with pytest.raises(InputError, match="there is no folder 'nowhere'"):
        data_set_in("nowhere")


def test_a_tiny_cifar_trains_with_the_same_code(tmp_path: Path) -> None:
    folder = str(made.cifar10_binary(tmp_path))
    setting = replace(setting_for(folder, epochs=1), shape=NetworkShape(channels=2, cells=1))
    resources = SweepResources(folder, "cpu")
    runs = [Run(LIGHT, protocol, 0) for protocol in (BenchmarkProtocol(), ConstantTunedProtocol(0.2))]
    for entry in sweep.sweep(runs, setting, resources, RunLedger(None)):
        assert 0 <= entry.outcome.accuracy <= 100
        assert entry.setting["data"] == "cifar10"
    sweep.images_at.cache_clear()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "huge"}, "scale is 'huge'; choose smoke or full"),
        ({"data": "x"}, "leave --data out"),
        ({"scale": "full"}, "--data is missing"),
        ({"device": "toaster"}, "--device is 'toaster'; give cpu or cuda"),
        ({"precision": "half"}, "--precision is 'half'; choose one of float32, tf32, bfloat16"),
        ({"device": "cpu", "precision": "bfloat16"}, "which is for a GPU"),
        ({"engine": "steam"}, "--engine is 'steam'; choose local or ray"),
        ({"seeds": 0}, "seeds is 0; give a whole number from 1 up"),
        ({"together": 0}, "together is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"tune_seeds": -1}, "tune_seeds is -1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sweep_options(**{"scale": "smoke", **options})


def test_a_smoke_run_asks_for_little() -> None:
    small = sweep_options(scale="smoke", device="cpu")
    assert (small.codes, small.setting, small.resources.together) == (SMOKE_CODES, SMOKE, 1)
    assert sweep_options(scale="smoke", epochs=7).setting.training.epochs == 7


def test_a_ledger_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text("nonsense\n{}\n")
    with pytest.raises(StoreError, match="line 1 of the ledger"):
        RunLedger(path)
    with pytest.raises(StoreError, match="cannot be written"):
        RunLedger(tmp_path / "no" / "l.jsonl").note(
            Run(LIGHT, BenchmarkProtocol(), 0), SETTING, TrainingResult(1.0, 1.0, (1.0,), 1.0)
        )


def test_the_entry_without_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "codes.txt").write_text(f"{LIGHT}\n{DEAD}\n")
    arguments = ["--scale", "smoke", "--codes", str(tmp_path / "codes.txt"), "--out", str(tmp_path / "out")]
    few = ["--protocols", "benchmark", "--epochs", "1", "--seeds", "1", "--device", "cpu"]
    assert __main__.main([*arguments, *few]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [row["code"] for row in found["runs"]] == [LIGHT]
    assert found["skipped"] == [DEAD]
    assert "[1/1]" in err
    assert (tmp_path / "out" / "ledger.jsonl").exists()
    assert __main__.main([*arguments, "--protocols", "none"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no protocol 'none'")
