"""Check single runs: that a run is what a user would write, and that Muon's usual rates are those of its authors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import evenstep as es
from evenstep.planning import plan_graph
from evenstep_research.study.axes import work
from evenstep_research.study.axes.plans import traced, usual_muon
from evenstep_research.study.axes.scales import AXES_SCALES, Setup
from evenstep_research.study.real.runs import Run
from evenstep_research.study.real.training import train
from evenstep_research.study.real.work import Place

SMOKE = AXES_SCALES["smoke"]
SETUP = Setup("llama 1 x 16", 3, 6)
BASE = "llama 1 x 32"


@pytest.mark.parametrize("optimizer", ["adam", "momentum", "muon"])
def test_a_run_is_what_a_user_would_write(optimizer: str) -> None:
    plan = plan_graph(
        traced("smoke", SETUP.network),
        rule="completep",
        optimizer=optimizer,  # type: ignore[arg-type]
        base_graph=traced("smoke", BASE),
    )
    work.settle(Place("smoke", "cpu"))
    run = Run(SETUP.network, optimizer, SETUP.steps, 1, "planned", 0.01, "", "")
    loss, seconds = work.trained(run, work.Details(SETUP, plan))
    assert seconds > 0
    torch.manual_seed(1)
    model = SMOKE.network(SETUP.network).make()
    torch.manual_seed(1)
    es.initialize_(model, plan)
    batches = SMOKE.source(SETUP).load(torch.device("cpu"), None)
    assert batches.draw(torch.Generator())[0].shape == (3, 16)
    mine = train(model, plan.optimizer(model, lr=0.01), batches, steps=6, seed=1)
    assert loss == pytest.approx(mine, rel=1e-5)  # fused steps round otherwise


def test_a_run_from_torchs_own_start_is_that_of_the_study_of_real_networks() -> None:
    work.settle(Place("smoke", "cpu"))
    run = Run(SETUP.network, "adam", SETUP.steps, 2, "own", 0.01, "", "")
    loss, _ = work.trained(run, work.Details(SETUP, None))
    torch.manual_seed(2)
    model = SMOKE.network(SETUP.network).make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    assert loss == train(model, optimizer, SMOKE.source(SETUP).load(torch.device("cpu"), None), steps=6, seed=2)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_at_its_usual_rate_steps_as_torchs_own_with_adamw_for_the_rest() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 5), nn.Tanh(), nn.Linear(5, 3)
    )
    theirs = copy.deepcopy(model)
    own = es.plan(model, torch.zeros(2, 6), rule="constant", init="keep", optimizer="muon", base=1.0)
    optimizer = usual_muon(own).optimizer(model, lr=1.0)
    named = dict(theirs.named_parameters())
    hidden = [named["2.weight"], named["4.weight"]]  # a tall matrix and a wide one
    rest = [p for p in theirs.parameters() if all(p is not matrix for matrix in hidden)]
    others = [
        torch.optim.Muon(hidden, lr=0.02, weight_decay=0.0, adjust_lr_fn="original"),
        torch.optim.AdamW(rest, lr=3e-4, weight_decay=0.0),
    ]
    inputs, targets = torch.randn(7, 6), torch.randint(3, (7,))
    for _ in range(4):
        for network, steps in ((model, [optimizer]), (theirs, others)):
            for step in steps:
                step.zero_grad()
            functional.cross_entropy(network(inputs), targets).backward()  # type: ignore[no-untyped-call]
            for step in steps:
                step.step()
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
