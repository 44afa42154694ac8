"""Every rule on a script with its fault and on the same without; and no finding in what plans build over the zoo."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

import evenstep as es
from evenstep.graph.matrices import hidden_matrices
from evenstep.graph.roles import roles
from evenstep.lint import Finding, lint
from evenstep.lint.linting import RULES
from evenstep.optim import Lion, Muon
from tests.zoo import ZOO, ZooEntry

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")

TOKENS = torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(0))


class Language(nn.Module):
    """A table, a block, a norm and a readout: all that the rules tell apart."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.block = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.norm = nn.LayerNorm(16)
        self.readout = nn.Linear(16, 11, bias=False)
        if tied:
            self.readout.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        logits: Tensor = self.readout(self.norm(x + self.block(x)))
        return logits


WEIGHTS = ("block.0.weight", "block.2.weight", "readout.weight")
SPARED = ("table.weight", "block.0.bias", "block.2.bias", "norm.weight", "norm.bias")


def split(model: nn.Module, decaying: tuple[str, ...] = WEIGHTS, **options: Any) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    return [
        {"params": [p for name, p in named.items() if name in decaying], "weight_decay": 0.1, **options},
        {"params": [p for name, p in named.items() if name not in decaying], "weight_decay": 0.0, **options},
    ]


def broken(findings: tuple[Finding, ...]) -> dict[str, set[str]]:
    """Return the parameters that each rule names."""
    names: dict[str, set[str]] = {}
    for finding in findings:
        names.setdefault(finding.rule, set()).update(finding.parameters)
    return names


def test_what_is_as_it_should_be_has_no_finding() -> None:
    for tied in (False, True):
        model = Language(tied=tied)
        optimizer = AdamW(split(model, (*WEIGHTS, "table.weight") if tied else WEIGHTS))
        schedule = CosineAnnealingLR(optimizer, T_max=5)
        assert lint(model, optimizer, schedule) == ()
        assert lint(model, optimizer, schedule, example_inputs=TOKENS) == ()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, as it compiles
def test_a_compiled_model_is_looked_through() -> None:
    model = Language()
    compiled: Any = torch.compile(model)
    assert lint(compiled, AdamW(split(model)), example_inputs=TOKENS) == ()
    every = AdamW(compiled.parameters(), weight_decay=0.1)
    for inputs in (None, TOKENS):
        assert broken(lint(compiled, every, example_inputs=inputs)) == {"decay": set(SPARED)}


def test_ungrouped() -> None:
    model = Language()
    optimizer = SGD(model.block.parameters(), lr=0.1)
    assert broken(lint(model, optimizer)) == {
        "ungrouped": {"table.weight", "norm.weight", "norm.bias", "readout.weight"}
    }
    for module in (model.table, model.norm, model.readout):
        module.requires_grad_(False)
    assert lint(model, optimizer) == ()
    model = Language()
    optimizer = SGD(model.parameters(), lr=0.1)
    model.readout = nn.Linear(16, 5, bias=False)  # a head changed after the optimizer was built
    assert broken(lint(model, optimizer)) == {"ungrouped": {"readout.weight"}}


def test_what_a_plan_has_frozen_is_in_no_group() -> None:
    model = Language()
    plan = es.plan(model, TOKENS, base=0.01, optimizer="adam").freeze("block.*")
    assert lint(model, plan.optimizer(model), plan=plan) == ()
    assert broken(lint(model, plan.optimizer(model))) == {
        "ungrouped": {name for name in dict(model.named_parameters()) if name.startswith("block.")}
    }


def test_grouped_twice() -> None:
    model = Language()
    one, two = SGD(model.parameters(), lr=0.1), Adam(model.norm.parameters(), lr=0.01)
    (finding,) = lint(model, [one, two])
    assert (finding.rule, finding.parameters) == ("grouped-twice", ("norm.weight", "norm.bias"))
    assert "with learning rates 0.1 and 0.01" in finding.value
    rest = [p for name, p in model.named_parameters() if not name.startswith("norm")]
    assert lint(model, [SGD(rest, lr=0.1), two]) == ()


def test_tied() -> None:
    model = Language()
    model.readout.weight = nn.Parameter(model.table.weight.detach())  # the same numbers, and another parameter
    apart: list[Any] = [
        {"params": [*model.table.parameters()]},
        {"params": [*model.block.parameters(), *model.norm.parameters()]},
    ]
    groups = [*apart, {"params": [model.readout.weight], "lr": 0.01}]
    assert broken(lint(model, SGD(groups, lr=0.1))) == {"tied": {"readout.weight", "table.weight"}}
    assert lint(model, SGD(model.parameters(), lr=0.1)) == ()
    model.readout.weight = model.table.weight
    assert lint(model, SGD(apart, lr=0.1)) == ()


def test_pieces_of_one_block_of_memory_are_not_tied() -> None:
    pieces = torch.randn(2, 256)
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    for layer, piece in zip(model, pieces, strict=True):
        layer.register_parameter("weight", nn.Parameter(piece.view(16, 16)))
    groups = [{"params": [p]} for p in model.parameters()]
    assert lint(model, SGD(groups, lr=0.1)) == ()
    assert lint(model.to("meta"), SGD(model.parameters(), lr=0.1)) == ()


def test_frozen() -> None:
    model = Language()
    model.table.requires_grad_(False)
    assert broken(lint(model, SGD(model.parameters(), lr=0.1, weight_decay=0.1))) == {"frozen": {"table.weight"}}
    assert lint(model, SGD(model.parameters(), lr=0.1)) == ()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert lint(model, SGD(trained, lr=0.1, weight_decay=0.1)) == ()


@pytest.mark.parametrize("inputs", [None, TOKENS])
def test_decay(inputs: Any) -> None:
    model = Language()
    for kind in (AdamW, Lion):
        optimizer: Any = kind(model.parameters(), lr=0.1, weight_decay=0.1)
        assert broken(lint(model, optimizer, example_inputs=inputs)) == {"decay": set(SPARED)}
        assert lint(model, kind(split(model)), example_inputs=inputs) == ()
    # They add decay to the gradient, and usually decay everything.
    for coupled in (SGD, Adam):
        assert lint(model, coupled(model.parameters(), lr=0.1, weight_decay=0.1), example_inputs=inputs) == ()


def test_kinds_of_modules_and_the_graph_agree_on_what_decays() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.Flatten()
    ).append(nn.Linear(8 * 16, 4))
    optimizer = AdamW(model.parameters(), weight_decay=0.1)
    inputs = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    by_graph = broken(lint(model, optimizer, example_inputs=inputs))
    assert broken(lint(model, optimizer)) == by_graph
    assert by_graph == {"decay": {n for n, p in model.named_parameters() if p.ndim == 1}}


def test_muon() -> None:
    model = Language()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "muon": True}, {"params": others, "muon": False}]
    every = lint(model, Muon(groups), example_inputs=TOKENS)
    assert broken(every) == {"muon": {"table.weight", "readout.weight"}}
    assert {finding.value.split(" of shape")[0] for finding in every} == {"an embedding", "a readout"}
    # Without the graph a readout is a matrix like others.
    assert broken(lint(model, Muon(groups))) == {"muon": {"table.weight"}}
    plan = es.plan(model, TOKENS, base=0.01, optimizer="muon")
    for inputs in (None, TOKENS):
        assert lint(model, plan.optimizer(model, weight_decay=0.1), example_inputs=inputs) == ()


def test_a_tied_table_is_a_readout_for_muon() -> None:
    model = Language(tied=True)
    groups = [{"params": [p], "muon": p.ndim == 2} for p in model.parameters()]
    (finding,) = lint(model, Muon(groups), example_inputs=TOKENS)
    assert (finding.rule, finding.parameters) == ("muon", ("table.weight",))
    assert finding.value.startswith("a readout")


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_of_torch_beside_adamw() -> None:
    model = Language()
    named = dict(model.named_parameters())

    def pair(*names: str) -> list[Any]:
        rest = [p for name, p in named.items() if name not in names]
        muon = torch.optim.Muon([named[name] for name in names], lr=0.1, weight_decay=0.1)
        return [muon, AdamW(rest, weight_decay=0.0)]

    assert lint(model, pair("block.0.weight", "block.2.weight"), example_inputs=TOKENS) == ()
    assert broken(lint(model, pair("block.0.weight", "readout.weight"), example_inputs=TOKENS)) == {
        "muon": {"readout.weight"}
    }


class ForeignMuon(SGD):
    """Stands for the many that sort groups by `use_muon`."""


def test_muon_of_others_says_by_its_groups() -> None:
    model = Language()
    for used in (True, False):
        groups = [{"params": [*model.parameters()], "use_muon": used}]
        assert bool(lint(model, ForeignMuon(groups, lr=0.1))) is used
    groups = [{"params": [*model.parameters()], "use_muon": True}]
    assert broken(lint(model, ForeignMuon(groups, lr=0.1)))["muon"] == set(SPARED)


def test_what_is_frozen_is_not_stepped_by_muon() -> None:
    model = Language()
    model.readout.requires_grad_(False)
    named = dict(model.named_parameters())
    groups = [{"params": [p], "muon": name in ("block.0.weight", "readout.weight")} for name, p in named.items()]
    assert lint(model, Muon(groups), example_inputs=TOKENS) == ()


class Private(LRScheduler):
    """Steps by what nobody else knows."""

    def get_lr(self) -> Any:
        if self.last_epoch > 0:
            raise RuntimeError("give me the metric")
        return list(self.base_lrs)


def test_a_scheduler_that_cannot_be_run_ahead_is_let_pass() -> None:
    model = Language()
    optimizer = SGD(split(model), lr=0.1)
    assert lint(model, optimizer, Private(optimizer)) == ()


SCHEDULES: list[tuple[Callable[[Any], LRScheduler], bool]] = [
    (lambda o: CosineAnnealingLR(o, T_max=5), True),
    (lambda o: CosineAnnealingLR(o, T_max=5, eta_min=0.001), False),
    (lambda o: LambdaLR(o, lambda step: min(1.0, step / 10)), True),  # a warm-up from nothing
    (lambda o: LambdaLR(o, [lambda step: step / 10, lambda step: (step / 10) ** 2]), False),
    (lambda o: OneCycleLR(o, max_lr=[0.1, 0.01], total_steps=20), True),
    (lambda o: OneCycleLR(o, max_lr=0.1, total_steps=20), True),  # flattened already: the plan's rule, not this one
    (lambda o: ReduceLROnPlateau(o), True),
    (lambda o: ReduceLROnPlateau(o, min_lr=0.001), False),
]


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
def test_schedule(number: int) -> None:
    make, even = SCHEDULES[number]
    model = Language()
    optimizer = SGD(split(model), lr=0.1, momentum=0.9)
    optimizer.param_groups[1]["lr"] = 0.01
    scheduler = make(optimizer)
    rates = [group["lr"] for group in optimizer.param_groups]
    findings = lint(model, optimizer, scheduler)
    assert [finding.rule for finding in findings] == ([] if even else ["schedule"])
    assert [group["lr"] for group in optimizer.param_groups] == rates
    if not even:
        assert type(scheduler).__name__ in findings[0].value
        assert "floors such as eta_min" in findings[0].remedy
    equal = SGD(split(model), lr=0.1, momentum=0.9)
    assert lint(model, equal, CosineAnnealingLR(equal, T_max=5, eta_min=0.001)) == ()  # one rate cannot be flattened


def test_plan() -> None:
    model = Language()
    plan = es.plan(model, TOKENS, base=0.01, optimizer="adam")
    (finding,) = lint(model, AdamW(model.parameters(), lr=0.01, weight_decay=0.0), plan=plan)
    assert finding.rule == "plan"
    assert "all parameters have the same learning rate 0.01" in finding.value
    unequal = {p.name for p in plan if p.lr_scale != max(p.lr_scale for p in plan)}
    assert set(finding.parameters) == unequal
    halved = plan.optimizer(model)
    for group in halved.param_groups:
        group["lr"] /= 2
    assert lint(model, halved, plan=plan) == ()
    (finding,) = lint(model, SGD(plan.param_groups(model)), plan=plan)
    assert "SGD without momentum" in finding.value


def test_a_flattened_schedule_shows_against_the_plan() -> None:
    model = Language()
    plan = es.plan(model, TOKENS, base=0.01, optimizer="adam")
    optimizer = plan.optimizer(model)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
    assert {finding.rule for finding in lint(model, optimizer, scheduler, plan=plan)} == {"plan"}


def test_every_rule_is_tested_here() -> None:
    for rule in RULES:
        assert f"test_{rule.replace('-', '_')}" in globals(), rule


def test_every_rule_is_in_the_docs_in_its_own_words() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lint.md").read_text()
    rows = dict(line[3:].removesuffix(" |").split("` | ") for line in page.splitlines() if line.startswith("| `"))
    assert rows == RULES


def test_findings_of_a_kind_are_one_and_show_in_one_line() -> None:
    model = Language()
    findings = lint(model, AdamW(model.parameters(), weight_decay=0.1), example_inputs=TOKENS)
    assert [str(finding).split(" with weight_decay")[0] for finding in findings] == [
        "decay: 'table.weight': an embedding",
        "decay: 'block.0.bias' and 2 more: a bias",
        "decay: 'norm.weight': a norm's gain",
    ]
    assert findings[1].to_dict()["parameters"] == ["block.0.bias", "block.2.bias", "norm.bias"]


def test_bad_input_is_named() -> None:
    model = Language()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(es.InputError, match="the model is 3"):
        lint(3, optimizer)  # type: ignore[arg-type]
    with pytest.raises(es.InputError, match="the optimizer is 'adam'"):
        lint(model, "adam")  # type: ignore[arg-type]
    with pytest.raises(es.InputError, match=r"the optimizer is \[\]"):
        lint(model, [])
    with pytest.raises(es.InputError, match="the scheduler is 3"):
        lint(model, optimizer, 3)
    other = SGD(model.parameters(), lr=0.1)
    with pytest.raises(es.InputError, match="give one of this optimizer"):
        lint(model, optimizer, CosineAnnealingLR(other, T_max=3))
    lazy = nn.LazyLinear(3)
    with pytest.raises(es.InputError, match="'weight' has no shape yet"):
        lint(lazy, SGD(lazy.parameters(), lr=0.1))
    plan = es.plan(model, TOKENS, base=0.01, optimizer="sgd")
    with pytest.raises(es.InputError, match="a plan is for one optimizer, and there are 2"):
        lint(model, [optimizer, other], plan=plan)
    with pytest.raises(es.PlanError, match="the plan does not fit Linear"):
        lint(nn.Linear(3, 3), SGD(nn.Linear(3, 3).parameters(), lr=0.1), plan=plan)


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("of its own")


def test_a_model_that_cannot_be_read_says_what_else_to_do() -> None:
    model = Reading()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(es.TraceError, match="leave the example inputs out"):
        lint(model, optimizer, example_inputs=torch.zeros(2, 4))
    assert lint(model, optimizer) == ()


PRESENT = [entry for entry in ZOO if all(importlib.util.find_spec(name) for name in entry.requires)]


@pytest.mark.parametrize("entry", PRESENT, ids=lambda entry: entry.name)
def test_what_a_plan_builds_over_the_zoo_has_no_finding(entry: ZooEntry) -> None:
    torch.manual_seed(0)
    model, args = entry.make()
    first = es.plan(model, args, example_kwargs=entry.kwargs, base=0.01, optimizer="adam", measure=False)
    has_matrices = bool(hidden_matrices(first.graph.live(), roles(first.graph.live())))
    for optimizer in ("momentum", "adam", "lion", *(("muon",) if has_matrices else ())):
        plan = es.plan(first.graph, base=0.01, optimizer=optimizer)
        for options in ({}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decay": "even"}):
            built = plan.optimizer(model, **options)
            schedule = CosineAnnealingLR(built, T_max=10)
            for known in (None, plan):
                assert lint(model, built, schedule, plan=known) == ()
    if not entry.kwargs:
        assert lint(model, first.optimizer(model, weight_decay=0.1), example_inputs=args) == ()
