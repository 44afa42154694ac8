"""Check what the study of axes asks for and says, against losses made up from best rates that are known."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenstep.errors import InputError
from evenstep.rules.batch import BATCH_RULES
from evenstep_research.study.axes.answers import AxesAnswers, Question, answers
from evenstep_research.study.axes.benchmark import AxesResult
from evenstep_research.study.axes.plans import PlanName, Plans, is_planned, traced
from evenstep_research.study.axes.powers import Power, fitted, powers, summaries
from evenstep_research.study.axes.results import results_of
from evenstep_research.study.axes.scales import AXES_SCALES, OWN, Axis, AxisName, Line, Size
from evenstep_research.study.real.runs import RealLedger, Run

CPU = AXES_SCALES["cpu"]
BEST = 0.01  # of the smallest cell, in the middle of the octaves that climbing begins with


def question(*, axes: tuple[str, ...], optimizers: tuple[str, ...] = ("adam",), muon: bool = False) -> Question:
    """Ask about lines of the scale cpu, with every plan another."""
    lines = tuple(line for line in CPU.lines() if line.axis.name in axes and line.optimizer in optimizers)
    prints: dict[PlanName, str] = {}
    for line in lines:
        base = line.setup(line.axis.values[0]).network
        for value in line.axis.values:
            for shape in line.axis.shapes:
                name = line.setup(value).network, base, line.optimizer, shape
                prints[name] = f"{line.optimizer} {shape} {name[0]}"
    for row in CPU.muon if muon else ():
        network, base = row.setup.network, row.base.network
        for about in ((base, base, "weighted"), (network, base, "weighted"), (network, network, "own")):
            prints[*about[:2], "muon", about[2]] = f"muon {about}"
        prints[network, network, "muon", "usual"] = f"muon usual {network}"
    return Question(CPU, lines, muon, prints, "float32")


def valley(run: Run, best: float) -> float:
    """Return the loss of a parabola over octaves, lowest at the best rate."""
    return 2.0 + 0.1 * math.log2(run.lr / best) ** 2


def measured(asked: Question, loss: Callable[[Run], float], ledger: RealLedger, most: int | None = None) -> AxesAnswers:
    """Run what is wanted, each round in any order, until nothing is, or so many."""
    draw, left = random.Random(0), math.inf if most is None else most
    while (known := answers(asked, ledger.losses)).wanted and left:
        wanted = draw.sample(known.wanted, int(min(left, len(known.wanted))))
        for run in wanted:
            assert run not in ledger.losses
            ledger.note(run, loss(run), 0.1)
        left -= len(wanted)
    return known


def results(asked: Question, ledger: RealLedger) -> dict[str, Any]:
    known = answers(asked, ledger.losses)
    return results_of(AxesResult(asked, known, tuple(ledger.origins(known.used))))


def batch_of(run: Run) -> int:
    return int(run.setting.split("batch ")[1].split(",")[0])


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_the_power_that_best_rates_follow_is_found_and_the_rule_that_follows_it_loses_nothing(power: float) -> None:
    asked, ledger = question(axes=("batch",)), RealLedger(None)
    known = measured(asked, lambda run: valley(run, BEST * (batch_of(run) / 4) ** power), ledger)
    for found in powers(known.lines):
        assert found.power == pytest.approx(power, abs=0.01)
        assert found.misfit < 0.02
    for line in results(asked, ledger)["lines"]:
        for cell in line["cells"][1:]:
            for name, rule in cell["rules"].items():
                factor = (
                    1.0
                    if name == "none"
                    else BATCH_RULES[name].factor(cell["value"], searched=4, optimizer="adam").value
                )
                off = math.log2(factor) - power * math.log2(cell["value"] / 4)
                assert rule["octaves"] == pytest.approx(off, abs=0.05)
                loss = 2 + 0.1 * off**2
                assert rule["losses"]["mean"] == pytest.approx(loss, abs=0.02)
                least = min(mean for _, losses in cell["curves"]["weighted"] for mean in losses)
                assert rule["above_own_best"] >= rule["losses"]["mean"] - least - 1e-12  # rules' rates were tried too


def test_a_rule_is_scored_against_its_own_shape_and_against_all() -> None:
    asked, ledger = question(axes=("width",)), RealLedger(None)

    def loss(run: Run) -> float:
        shape, width = run.plan.split()[1] if run.plan else OWN, int(run.network.split()[-1])
        better = {"mup": 0.5}.get(shape, 0.0)  # of all shapes one is better, wherever its rate is
        falls = 2.0 if shape == "constant" else 0.0  # in octaves a doubling
        return valley(run, BEST * (width / 32) ** -falls) - better

    measured(asked, loss, ledger)
    for line in results(asked, ledger)["lines"]:
        for cell in line["cells"][1:]:
            rules, doublings = cell["rules"], math.log2(cell["value"] / 32)
            assert rules["weighted"]["above_own_best"] == pytest.approx(0, abs=1e-3)
            assert rules["weighted"]["above_best_of_all"] == pytest.approx(0.5, abs=1e-3)
            assert rules["mup"]["above_best_of_all"] == pytest.approx(0, abs=1e-3)
            assert rules["constant"]["above_own_best"] == pytest.approx(0.1 * (2 * doublings) ** 2, abs=0.05)
            assert rules["constant"]["octaves"] == pytest.approx(2 * doublings, abs=0.1)
            assert set(rules) == set(line["cells"][0]["curves"])
    found = {(r["rule"], r["optimizer"]): r for r in results(asked, ledger)["regrets"]}
    assert found["constant", "all"]["worst_above_own_best"] == pytest.approx(1.6, abs=0.1)
    assert found["constant", "adam"] == {**found["constant", "all"], "optimizer": "adam"}
    targets = {target["what"]: target for target in results(asked, ledger)["targets"]}
    assert targets["width: mean regret of `weighted`"]["reached"]


def test_a_rate_that_diverges_counts_as_guessing_and_is_told() -> None:
    asked, ledger = question(axes=("width",)), RealLedger(None)

    def loss(run: Run) -> float:
        wide = not run.network.endswith("x 32")
        return math.inf if wide and run.plan.startswith("adam constant") and run.lr > BEST / 4 else valley(run, BEST)

    measured(asked, loss, ledger)
    values = results(asked, ledger)
    json.dumps(values, allow_nan=False)
    rule = values["lines"][0]["cells"][1]["rules"]["constant"]
    assert rule["losses"] == {"mean": None, "spread": None, "n": 1, "diverged": 1}
    least = values["lines"][0]["cells"][1]["best"]["constant"]["loss"]
    assert rule["above_own_best"] == pytest.approx(math.log(256) - least)


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_study_that_stopped_goes_on_to_the_same_results(tmp_path: Path, cut: int) -> None:
    asked = question(axes=("length", "depth"), muon=True)

    def loss(run: Run) -> float:
        return valley(run, BEST * (1 + 0.1 * run.seed + run.steps / 1000)) + 0.01 * len(run.plan)

    whole = RealLedger(None)
    measured(asked, loss, whole)
    path = tmp_path / "ledger.jsonl"
    measured(asked, loss, RealLedger(path), most=cut)
    path.write_text(path.read_text() + '{"network": "gpt2')  # killed while it wrote
    json.dumps(results(asked, RealLedger(path)), allow_nan=False)
    assert results(asked, RealLedger(path))["missing"]
    measured(asked, loss, RealLedger(path))
    assert results(asked, RealLedger(path)) == results(asked, whole)
    assert not results(asked, whole)["missing"]


def test_nothing_is_the_best_of_all_before_all_shapes_are_known() -> None:
    asked, ledger = question(axes=("batch",)), RealLedger(None)
    while wanted := [run for run in answers(asked, ledger.losses).wanted if run.treatment != OWN]:
        for run in wanted:
            ledger.note(run, valley(run, BEST), 0.1)
    values = results(asked, ledger)
    for line in values["lines"]:
        for rule in (rule for cell in line["cells"] for rule in cell["rules"].values()):
            assert rule["above_own_best"] is not None
            assert rule["above_best_of_all"] is None
    assert len(values["missing"]) == 3 * 3
    assert all(words.endswith(": own") for words in values["missing"])


def test_muons_table_holds_what_was_trained() -> None:
    asked, ledger = question(axes=(), muon=True), RealLedger(None)
    measured(asked, lambda run: valley(run, BEST) + (run.treatment == "usual") + 0.1 * run.seed, ledger)
    for row, setup in zip(results(asked, ledger)["muon"], CPU.muon, strict=True):
        assert row["network"] == setup.setup.network
        assert row["base_lr"] == pytest.approx(BEST, rel=0.01)
        assert row["cells"]["planned"]["mean"] == pytest.approx(2.05, abs=0.01)
        assert row["cells"]["one rate"]["mean"] == pytest.approx(2.05 + 0.1)
        assert row["cells"]["usual"]["mean"] == pytest.approx(3.05 + 0.1 * math.log2(100) ** 2)
        assert 2.05 <= row["cells"]["tuned AdamW"]["mean"] < 2.05 + 0.1 * 0.5**2


def test_the_interval_over_networks_is_students() -> None:
    found = [
        Power("batch", "adam", "weighted", kind, (1.0,), p, 0.0) for kind, p in zip("abc", (0.1, 0.2, 0.6), strict=True)
    ]
    (summary,) = summaries(found)
    assert (summary.n, summary.least, summary.most) == (3, 0.1, 0.6)
    assert summary.mean == pytest.approx(0.3)
    error = math.sqrt(((0.2) ** 2 + (0.1) ** 2 + (0.3) ** 2) / 2 / 3)
    assert summary.high == pytest.approx(0.3 + 4.302653 * error)  # of two degrees of freedom
    assert summary.low == pytest.approx(0.3 - 4.302653 * error)
    (alone,) = summaries(found[:1])
    assert (alone.low, alone.high) == (None, None)
    assert fitted([2, 4, 8, 16], [1, 4, 4, 16])[0] == pytest.approx(1.2)  # by hand: logs 0, 2, 2, 4 over 1 to 4


def smoke_plans(*names: str) -> tuple[Plans, dict[AxisName, Line]]:
    smoke = AXES_SCALES["smoke"]
    lines: dict[AxisName, Line] = {
        line.axis.name: line for line in smoke.lines() if line.axis.name in names and line.optimizer == "adam"
    }
    return Plans.of(smoke, list(lines.values()), lambda wanted: [traced("smoke", n) for n in wanted], muon=False), lines


def test_rules_whose_plans_agree_share_their_runs_and_others_do_not() -> None:
    plans, lines = smoke_plans("width", "depth")
    # Without a change of width u-muP is depth-muP; without one of depth CompleteP's alpha is nothing. muP is one rate
    # for all there, but its branches start as large as the base's.
    shared = {"depth": [{"depth-mup", "u-mup"}], "width": [{"constant", "am-mup"}]}
    shared["width"].append({"completep", "depth-mup"})
    for axis, line in lines.items():
        expected = shared[axis]
        base, network = (line.setup(value).network for value in line.axis.values)
        groups: dict[str, set[str]] = {}
        for shape in line.axis.shapes:
            if is_planned("adam", shape):
                groups.setdefault(plans.fingerprints[network, base, "adam", shape], set()).add(shape)
        assert [group for group in groups.values() if len(group) > 1] == expected
        assert all(plans.plans[name].optimizer_name == "adam" for name in groups)


def test_a_smallest_network_is_its_own_base() -> None:
    plans, lines = smoke_plans("width")
    base = lines["width"].setup(16).network
    for rule in ("constant", "mup", "completep", "depth-mup"):
        plan = plans.plans[plans.fingerprints[base, base, "adam", rule]]
        assert {p.lr_scale for p in plan} == {1.0}


def test_the_full_scale_covers_what_is_promised() -> None:
    values = {axis.name: axis.values for axis in AXES_SCALES["full"].axes}
    assert (values["width"][0], values["width"][-1]) == (64, 1024)
    assert (values["depth"][0], values["depth"][-1]) == (2, 24)
    assert (values["batch"][0], values["batch"][-1]) == (16, 256)
    assert (values["length"][0], values["length"][-1]) == (250, 4000)
    for scale in AXES_SCALES.values():
        for line in scale.lines():
            for value in line.axis.values:
                setup = line.setup(value)
                assert scale.network(setup.network).name == setup.network
                assert str(setup.batch) in scale.source(setup).words
        for row in scale.muon:
            assert scale.network(row.setup.network).kind.split()[0] == scale.network(row.base.network).kind


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InputError, match="'mop' is no rule"):
        Axis("width", (1, 2), Size(1, 1, 1, 1), ("gpt2",), ("adam",), ("mop",))
    assert replace(CPU.axes[0], seeds=1).seeds == 1
