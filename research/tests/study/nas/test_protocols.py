"""Check what protocols say: rates and starts against literal formulas, plans, and the mup package's own."""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import evenstep as es
from evenstep.errors import EvenstepError, InputError, PlanError
from evenstep.graph import nasbench201_graph
from evenstep_research.spaces.cells import all_cells, cell_string, is_live, parameter_count
from evenstep_research.study.nas import muparam
from evenstep_research.study.nas.muparam import MupProtocol
from evenstep_research.study.nas.options import PROTOCOLS
from evenstep_research.study.nas.protocols import (
    RESIDUAL_CELL,
    SKIPS_CELL,
    BenchmarkProtocol,
    ConstantTunedProtocol,
    NetworkShape,
    Pace,
    PaperProtocol,
    Treatment,
    WeightedProtocol,
    graph_of,
    of_plan,
    path_depths,
)
from research.tests.study.nas.tiny import DEAD, LIGHT, SHAPE

DENSE = "333333"
MIXED = "302140"  # 0-1 conv, 1-2 conv 1x1, 0-3 skip, 1-3 pool; vertex 2 leads nowhere


def brute_force_depths(code: str) -> list[int]:
    """List the convolutions on every path, found by trying all ways to walk."""
    ops: dict[tuple[int, int], str] = {}
    for target, row in enumerate(cell_string(code).split("+"), 1):
        for source, cell in enumerate(row.strip("|").split("|")):
            ops[source, target] = cell.split("~")[0]
    found = []

    def walk(vertex: int, depth: int) -> None:
        if vertex == 3:
            found.append(depth)
            return
        for after in range(vertex + 1, 4):
            if ops[vertex, after] != "none":
                walk(after, depth + ("conv" in ops[vertex, after]))

    walk(0, 0)
    return found


def test_the_depths_of_all_cells_are_those_of_their_paths() -> None:
    for code in list(all_cells())[::7]:
        if is_live(code):
            assert sorted(path_depths(code).elements()) == sorted(brute_force_depths(code)), code
    with pytest.raises(InputError, match="no live path leads through the cell 333000"):
        path_depths(DEAD)


def test_the_benchmark_has_one_rate_for_all_and_torchs_start() -> None:
    treatment = BenchmarkProtocol().treatment(DENSE, SHAPE)
    torch.manual_seed(5)
    expected = SHAPE.network(DENSE).state_dict()
    model = treatment.start(lambda: SHAPE.network(DENSE), 5)
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    (group,) = treatment.param_groups(model, weight_decay=5e-4)
    assert (group["lr"], group["weight_decay"]) == (0.1, 5e-4)
    assert len(group["params"]) == len(list(model.parameters()))
    assert {pace.lr for pace in ConstantTunedProtocol(0.3).treatment(DENSE, SHAPE).paces} == {0.3}


def test_starting_leaves_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    for protocol in (BenchmarkProtocol(), WeightedProtocol(0.5)):
        protocol.treatment(LIGHT, SHAPE).start(lambda: SHAPE.network(LIGHT), 1)
    assert torch.equal(torch.random.get_rng_state(), before)


# Depths plus one. Dense: 3-edge path 4, two 2-edge paths 3, the direct one 2. Mixed: skip 1, conv and pool 2.
@pytest.mark.parametrize(
    ("code", "total"), [(DENSE, 4**3 + 3**3 + 3**3 + 2**3), (MIXED, 1**3 + 2**3), (SKIPS_CELL, 1), (RESIDUAL_CELL, 28)]
)
def test_the_papers_rate_is_by_the_cells_paths(code: str, total: int) -> None:
    assert sum((depth + 1) ** 3 for depth in brute_force_depths(code)) == total
    (rate,) = {pace.lr for pace in PaperProtocol(0.46).treatment(code, SHAPE).paces}
    assert rate == pytest.approx(0.46 / math.sqrt(total))


def test_the_papers_start_is_by_in_degrees() -> None:
    paces = {pace.name: pace for pace in PaperProtocol(1.0).treatment(DENSE, SHAPE).paces}
    expected = {
        "stem.conv.weight": math.sqrt(2 / 27),
        "cells.0.edges.0_1.conv.weight": math.sqrt(2 / 36),  # read from the input, whose in-degree counts as one
        "cells.0.edges.0_3.conv.weight": math.sqrt(2 / 36),
        "cells.0.edges.1_2.conv.weight": math.sqrt(2 / 36),  # vertex 1 has one edge
        "cells.0.edges.2_3.conv.weight": math.sqrt(2 / (2 * 36)),  # vertex 2 has two
        "cells.1.first.conv.weight": math.sqrt(2 / (2 * 36)),
        "cells.1.second.conv.weight": math.sqrt(2 / 72),
        "cells.1.shortcut.conv.weight": math.sqrt(2 / (2 * 4)),
        "readout.weight": 2 / 16,
        "readout.bias": 0.0,
        "norm.bias": 0.0,
    }
    for name, std in expected.items():
        assert paces[name].std == pytest.approx(std), name
        assert paces[name].mean == 0.0, name
    assert (paces["stem.norm.weight"].std, paces["norm.weight"].mean) == (0.0, 1.0)
    model = (
        PaperProtocol(1.0)
        .treatment(DENSE, NetworkShape(channels=32, cells=1, side=8))
        .start(lambda: NetworkShape(channels=32, cells=1, side=8).network(DENSE), 0)
    )
    drawn = dict(model.named_parameters())["cells.0.edges.2_3.conv.weight"]
    assert float(drawn.detach().std()) == pytest.approx(math.sqrt(2 / (2 * 288)), rel=0.05)


@pytest.mark.parametrize("code", [DENSE, MIXED])
def test_weighted_is_the_plan_of_the_whole_network(code: str) -> None:
    model = SHAPE.network(code)
    base = es.trace(SHAPE.network(RESIDUAL_CELL), torch.zeros(2, 3, 8, 8))
    planned = es.plan(model, torch.zeros(2, 3, 8, 8), base=0.7, base_graph=base, optimizer="momentum")
    treatment = WeightedProtocol(0.7).treatment(code, SHAPE)
    expected = {p.name: 0.7 * p.lr_scale for p in planned.parameters}
    assert {pace.name: pace.lr for pace in treatment.paces} == pytest.approx(expected)
    es.initialize_(model, planned, generator=torch.Generator().manual_seed(3))
    for name, value in treatment.start(lambda: SHAPE.network(code), 3).state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    assert {"stem.conv.weight", "cells.1.shortcut.conv.weight"} < {pace.name for pace in treatment.paces}
    own = WeightedProtocol(0.7).treatment(RESIDUAL_CELL, SHAPE)
    assert {p.name: p.lr for p in own.paces}["cells.0.edges.0_1.norm.weight"] == pytest.approx(0.7)


def test_networks_have_the_benchmarks_parameters() -> None:
    whole = NetworkShape()
    for code in (DENSE, MIXED, LIGHT):
        assert whole.parameters(code) == parameter_count(code)
    assert whole.parameters(MIXED) > sum(p.numel() for p in whole.network(MIXED).parameters())
    with pytest.raises(EvenstepError, match="no live path"):
        whole.parameters(DEAD)


def test_our_rule_stands_in_for_the_package_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muparam, "is_installed", lambda: False)
    treatment = MupProtocol().treatment(DENSE, SHAPE)
    planned = es.plan(
        graph_of(DENSE, SHAPE), rule="spectral", base=0.1, optimizer="sgd", base_graph=graph_of(RESIDUAL_CELL, SHAPE)
    )
    expected = {p.name: 0.1 * p.lr_scale for p in planned.parameters}
    assert {pace.name: pace.lr for pace in treatment.paces} == pytest.approx(expected)
    assert len({pace.lr for pace in treatment.paces}) > 2
    assert "not installed" in treatment.note
    assert MupProtocol().to_dict()["way"] == treatment.note


class _Shape(tuple[tuple[int | None, int], ...]):
    """What the package hangs on a parameter: pairs (base, own) of sizes, base None where both are one."""

    def mults(self) -> list[float]:
        return [own / base for base, own in self if base is not None]


class _Readout(nn.Linear):
    def width_mult(self) -> float:
        found: _Shape = self.weight.infshape  # type: ignore[attr-defined]
        return found.mults()[-1]


@pytest.fixture
def mup_package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stand in for the package: its three names, by the definitions of its documentation."""
    package: Any = ModuleType("mup")
    package.__spec__ = ModuleSpec("mup", None, origin="made up")
    package.MuReadout = _Readout

    def set_base_shapes(model: nn.Module, base: nn.Module, delta: nn.Module) -> None:
        small, other = dict(base.named_parameters()), dict(delta.named_parameters())
        for name, p in model.named_parameters():
            shapes = zip(p.shape, small[name].shape, other[name].shape, strict=True)
            p.infshape = _Shape((None if b == d else b, own) for own, b, d in shapes)  # type: ignore[attr-defined]

    def mu_sgd(parameters: Iterator[nn.Parameter], lr: float, weight_decay: float, **options: Any) -> Any:
        groups = []
        for p in parameters:
            mults = p.infshape.mults()  # type: ignore[attr-defined]
            factor = mults[0] if len(mults) == 1 else mults[0] / mults[1] if mults else 1.0
            groups.append({"params": [p], "lr": lr * factor, "weight_decay": weight_decay / factor})
        return torch.optim.SGD(groups, lr=lr, **options)

    package.set_base_shapes, package.MuSGD = set_base_shapes, mu_sgd
    monkeypatch.setitem(sys.modules, "mup", package)
    found: ModuleType = package
    return found


@pytest.mark.usefixtures("mup_package")
def test_the_packages_groups_are_read_and_its_readout_is_folded_in() -> None:
    """Half the channels are the base: vectors go at twice the rate, matrices at the same, the readout as below."""
    treatment = MupProtocol().treatment(LIGHT, SHAPE)
    paces = {pace.name: pace for pace in treatment.paces}
    assert "MuSGD" in treatment.note
    assert paces["cells.0.edges.0_3.conv.weight"] == Pace("cells.0.edges.0_3.conv.weight", 0.1)
    for name in ("stem.conv.weight", "norm.bias"):
        assert (paces[name].lr, paces[name].decay, paces[name].gain) == (0.2, 0.5, 1.0)
    # out = W x / m with W at rate 2 lr: W / m starts m^(1/2) / m as large and moves at 2 lr / m^2.
    readout = paces["readout.weight"]
    assert [readout.lr, readout.decay] == pytest.approx([0.05, 2.0])
    assert readout.gain == pytest.approx(2**-0.5)
    model = treatment.start(lambda: SHAPE.network(LIGHT), 2)
    plain = BenchmarkProtocol().treatment(LIGHT, SHAPE).start(lambda: SHAPE.network(LIGHT), 2)
    for name, factor in (("readout.weight", 2**-0.5), ("readout.bias", 2**0.5), ("stem.conv.weight", 1.0)):
        torch.testing.assert_close(model.state_dict()[name], factor * plain.state_dict()[name])


def test_groups_are_told_apart_by_rate_and_decay() -> None:
    model = nn.Linear(2, 2)
    treatment = Treatment((Pace("weight", 0.1, decay=2.0), Pace("bias", 0.1)), "")
    first, second = treatment.param_groups(model, weight_decay=0.5)
    assert (first["weight_decay"], second["weight_decay"]) == (1.0, 0.5)
    with pytest.raises(PlanError, match="'bias' is in one alone"):
        replace(treatment, paces=treatment.paces[:1]).matched(model)


def test_numbers_tell_trainings_apart() -> None:
    ways = [make(0.2).treatment(LIGHT, SHAPE).numbers() for make in PROTOCOLS.values()]
    assert ways[0] == ways[1]  # one constant rate is one training, whoever chose it
    assert len({str(way) for way in ways}) == 4
    assert WeightedProtocol(0.2 * (1 + 1e-15)).treatment(LIGHT, SHAPE).numbers() == ways[3]


@pytest.mark.parametrize("lr", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_none_is_refused(lr: float) -> None:
    for make in PROTOCOLS.values():
        with pytest.raises(InputError, match=r"the learning rate is .*; give a finite number above 0"):
            make(lr)


def test_a_plan_of_factors_only_is_refused() -> None:
    with pytest.raises(InputError, match="factors only"):
        of_plan(es.plan(graph_of(LIGHT, SHAPE)))


def test_the_rule_paths_of_a_whole_network_is_warned_of_and_the_cell_counts_as_the_authors_do() -> None:
    """Six convolutions in 15 cells have 4^16 paths; the remedy that the warning names is the authors' own count."""
    graph = graph_of(DENSE, NetworkShape())
    warning = r"rule 'paths' counts about 10\^9\.6 paths of the whole network.*evenstep\.graph\.nasbench201_graph"
    with pytest.warns(es.PlanWarning, match=warning):
        whole = es.plan(graph, rule="paths", base=1.0, optimizer="sgd", base_graph=graph_of(SKIPS_CELL, NetworkShape()))
    assert whole.path_count == 4**16
    base = nasbench201_graph(SKIPS_CELL)
    for code in (DENSE, MIXED, RESIDUAL_CELL):
        cell = es.plan(nasbench201_graph(code), rule="paths", base=1.0, optimizer="sgd", base_graph=base)
        authors = PaperProtocol(1.0).treatment(code, SHAPE).paces[0].lr
        assert cell.lr_scale == pytest.approx(authors)
