"""Check what a study asks for, against losses made up from curves that are known, cut off and gone on with."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenstep.errors import StoreError
from evenstep_research.study.real.answers import Answers, Question, answers
from evenstep_research.study.real.benchmark import RealResult
from evenstep_research.study.real.plans import PLANNED
from evenstep_research.study.real.results import results_of, table_row
from evenstep_research.study.real.runs import RealLedger, Run
from evenstep_research.study.real.scales import REAL_SCALES, rows_at

FULL = REAL_SCALES["full"]


def question(*, networks: tuple[str, ...] = (), seeds: int = 2, rule: str = "first") -> Question:
    """Ask about networks of the full scale, with plans of a made-up rule."""
    names = [network.name for network in (*FULL.networks, *FULL.bases.values())]
    prints = {
        (name, optimizer, planned): f"{name} {planned} {rule if planned == 'weighted' else ''}"
        for name in names
        for optimizer in ("adam", "momentum")
        for planned in PLANNED
    }
    return Question(FULL, rows_at(FULL, networks=networks), seeds, prints, "bfloat16")


def optimum(run: Run) -> float:
    """Return the best rate of a network, optimiser and treatment: anywhere within five octaves of the default."""
    words = f"{run.network} {run.optimizer} {run.treatment} {run.steps}"
    draw = random.Random(hashlib.sha256(words.encode()).digest())
    return float({"adam": 1e-3, "momentum": 0.1}[run.optimizer] * 2 ** draw.uniform(-5, 5))


def loss(run: Run) -> float:
    """Return a noisy loss, the same whenever it is asked for; far above the best rate training diverges."""
    draw = random.Random(hashlib.sha256(repr(run).encode()).digest())
    if run.optimizer == "prodigy":
        return 1.5 + 0.1 * draw.random()
    octaves = math.log2(run.lr / optimum(run))
    return math.inf if octaves > 4.5 else math.exp(0.03 * octaves**2 + 0.02 * draw.gauss(0, 1))


def measured(asked: Question, ledger: RealLedger, *, order: random.Random, most: int | None = None) -> list[Run]:
    """Run what is wanted as several workers do, results coming back in any order; stop after so many."""
    under_way: list[Run] = []
    done: list[Run] = []
    while most is None or len(done) < most:
        waiting = [run for run in answers(asked, ledger.losses).wanted if run not in under_way]
        under_way += waiting[: 14 - len(under_way)]
        if not under_way:
            break
        run = under_way.pop(order.randrange(len(under_way)))
        assert run not in ledger.losses
        ledger.note(run, loss(run), 0.1)
        done.append(run)
    return done


def result(asked: Question, ledger: RealLedger) -> dict[str, Any]:
    known = answers(asked, ledger.losses)
    return results_of(RealResult(asked, known, tuple(ledger.origins(known.used))))


def test_a_study_ends_and_says_what_the_losses_say() -> None:
    asked, ledger = question(networks=("resnet18", "gpt2*")), RealLedger(None)
    done = measured(asked, ledger, order=random.Random(1))
    assert len(done) == len(set(done)) == len(ledger.losses)
    known = answers(asked, ledger.losses)
    assert not known.wanted
    for answer in known.rows:
        row = answer.row
        base = FULL.bases[row.network.kind].name
        assert answer.tuned.best is not None
        assert answer.multiples is not None
        assert answer.multiples.best is not None
        tuned = optimum(asked.run(row, 0, "own", 1.0))
        assert abs(math.log2(answer.tuned.best[0] / tuned)) < 1.6  # an octave's grid, and noise
        for rule, curve in answer.bases.items():
            true = optimum(replace(asked.run(row, 0, rule, 1.0), network=base))
            assert curve.rate is not None
            assert abs(math.log2(curve.rate / true)) < 0.8
            assert curve.rate == float(f"{curve.rate:.4g}")
            name = "plan" if rule == "weighted" else rule
            assert answer.cells[name].losses == tuple(loss(asked.run(row, seed, rule, curve.rate)) for seed in range(2))
        start = {"adam": 1e-3, "momentum": 0.1}[row.optimizer]
        assert answer.cells["default"].losses == tuple(loss(asked.run(row, seed, "own", start)) for seed in range(2))
        assert answer.multiples.start == answer.bases["weighted"].rate
    assert not result(asked, ledger)["missing"]


def test_one_run_of_prodigy_serves_both_optimizers() -> None:
    asked, ledger = question(networks=("vgg11",)), RealLedger(None)
    done = measured(asked, ledger, order=random.Random(1))
    assert len([run for run in done if run.treatment == "prodigy"]) == 2  # seeds
    one, other = (row["cells"]["prodigy"] for row in result(asked, ledger)["rows"])
    assert one == other
    assert one["n"] == 2


def test_a_base_is_searched_once_for_all_networks_of_its_kind() -> None:
    asked, ledger = question(networks=("vit*",)), RealLedger(None)
    of_both = [run for run in measured(asked, ledger, order=random.Random(1)) if run.network == "vit base"]
    one, alone = RealLedger(None), question(networks=("vit 6*",))
    of_one = [run for run in measured(alone, one, order=random.Random(2)) if run.network == "vit base"]
    assert set(of_both) == set(of_one)
    assert {run.steps for run in of_one} == {300, 1500}  # as long as the networks that are planned from it


@pytest.mark.parametrize("cut", [1, 40, 150])
def test_a_study_that_stopped_goes_on_to_the_same_record(tmp_path: Path, cut: int) -> None:
    asked = question(networks=("resnet18", "llama 12*"))
    whole = RealLedger(tmp_path / "whole.jsonl")
    measured(asked, whole, order=random.Random(3))
    path = tmp_path / "cut.jsonl"
    before = measured(asked, RealLedger(path), order=random.Random(4), most=cut)
    assert len(before) == cut
    path.write_text(path.read_text() + '{"network": "resn')  # killed while it wrote
    gone_on = RealLedger(path)
    assert set(gone_on.losses) == set(before)
    after = measured(asked, gone_on, order=random.Random(5))
    assert not set(before) & set(after)
    assert result(asked, gone_on) == result(asked, whole)
    assert result(asked, RealLedger(path)) == result(asked, whole)  # and read once more from its file
    assert len(path.read_text().splitlines()) == len(before) + len(after)


def test_a_cut_study_leaves_cells_empty_and_says_which() -> None:
    asked, ledger = question(networks=("vgg11", "vgg13_bn")), RealLedger(None)
    everything = len(measured(asked, RealLedger(None), order=random.Random(6)))
    measured(asked, ledger, order=random.Random(6), most=everything - 30)
    cut = result(asked, ledger)
    rows = [table_row(row) for row in cut["rows"]]
    empty = [row for row in rows if None in row.values()]
    assert 0 < len(empty) < len(rows)  # row by row: some are whole
    assert len(cut["missing"]) == len(empty)
    assert all(line.startswith(row["network"]) for line, row in zip(cut["missing"], empty, strict=True))
    nothing = result(asked, RealLedger(None))
    assert nothing["summary"][0]["n"] == 0
    assert nothing["summary"][0]["mean_above_tuned"] is None
    json.dumps(nothing, allow_nan=False)


def test_a_changed_rule_makes_its_own_lines_stale_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    old = question(networks=("convnext*",))
    measured(old, RealLedger(path), order=random.Random(7))
    assert not answers(old, RealLedger(path).losses).wanted
    new = question(networks=("convnext*",), rule="second")
    again = measured(new, RealLedger(path), order=random.Random(8))
    assert again
    assert {run.treatment for run in again} == {"weighted"}
    assert measured(old, RealLedger(path), order=random.Random(9)) == []  # and back: both are in the ledger


def test_more_seeds_use_what_is_known() -> None:
    ledger = RealLedger(None)
    measured(question(networks=("vgg11",), seeds=1), ledger, order=random.Random(7))
    before = dict(ledger.losses)
    more = measured(question(networks=("vgg11",), seeds=2), ledger, order=random.Random(7))
    assert more
    assert not set(before) & set(more)


def test_a_run_of_another_setting_is_another_run() -> None:
    asked, ledger = question(networks=("vgg11",)), RealLedger(None)
    measured(asked, ledger, order=random.Random(7))
    other = replace(asked, precision="float32")
    assert not set(answers(other, ledger.losses).wanted) & set(ledger.losses)


def made_up(change: Callable[[Run], float]) -> tuple[Question, Answers, RealLedger]:
    asked, ledger = question(networks=("llama 12*",)), RealLedger(None)
    while wanted := answers(asked, ledger.losses).wanted:
        for run in wanted:
            ledger.note(run, change(run), 0.1)
    return asked, answers(asked, ledger.losses), ledger


def test_a_plan_that_diverges_is_told_and_counts_as_guessing() -> None:
    asked, known, ledger = made_up(
        lambda run: math.inf if run.treatment == "weighted" and "base" not in run.network else loss(run)
    )
    assert not known.wanted
    values = result(asked, ledger)
    for row in values["rows"]:
        assert row["cells"]["plan"] == {"mean": None, "spread": None, "n": 2, "diverged": 2}
        assert row["cells"]["best_multiple_loss"] is None
        assert table_row(row)["plan"] == math.inf
    for line, row in zip(values["summary"], values["rows"], strict=True):
        assert line["diverged"] == 1
        assert line["mean_above_tuned"] == pytest.approx(math.log(256) - row["cells"]["tuned"]["mean"])
        assert line["beats_default"] == [0, 1]
    assert "the best multiple: all diverged" in values["missing"][0]
    json.dumps(values, allow_nan=False)


def test_a_base_that_never_trains_leaves_its_columns_empty() -> None:
    asked, known, ledger = made_up(lambda run: math.inf if "base" in run.network else loss(run))
    assert not known.wanted
    values = result(asked, ledger)
    assert [table_row(row)["plan"] for row in values["rows"]] == [None, None]
    assert table_row(values["rows"][0])["tuned"] is not None
    assert "the base's rate for 'weighted'" in values["missing"][0]


def test_the_summary_is_the_rows_in_short() -> None:
    asked, ledger = question(), RealLedger(None)
    while wanted := answers(asked, ledger.losses).wanted:  # all at once: as good, and sooner done
        for run in wanted:
            ledger.note(run, loss(run), 0.1)
    values = result(asked, ledger)
    assert len(values["rows"]) == 2 * (11 + 4)
    rows = [table_row(row) for row in values["rows"]]
    for line in values["summary"]:
        some = [row for row in rows if (row["optimizer"], row["steps"]) == (line["optimizer"], line["steps"])]
        above = [
            (
                math.log(256 if row["network"].startswith(("gpt2", "llama")) else 10)
                if math.isinf(row["plan"])
                else row["plan"]
            )
            - row["tuned"]
            for row in some
        ]
        assert line["n"] == len(some) == {300: 11, 1500: 4}[line["steps"]]
        assert line["mean_above_tuned"] == pytest.approx(sum(above) / len(above))
        assert line["worst_above_tuned"] == pytest.approx(max(above))
        assert line["worst_network"] == some[above.index(max(above))]["network"]
        assert line["beats_prodigy"] == [sum(row["plan"] < row["prodigy"] for row in some), len(some)]


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"network": "vgg11"}\n{"loss": 1}\n')
    with pytest.raises(StoreError, match="line 1 of the ledger"):
        RealLedger(path)
