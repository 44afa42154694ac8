"""Check which parameters decay and how decays go with rates: against sums written out, and plain steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, NAdam
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

import evenstep as es
from evenstep.optim import Lion, Muon

# A small network's weight norm is more than a tenth of it.
pytestmark = pytest.mark.filterwarnings("ignore:.*parameter values are kept as they are:evenstep.PlanWarning")
torch.set_num_threads(1)
IDS = torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(0))


class Words(nn.Module):
    """A network with all that does not decay: embedding, positions, gate, norms, biases."""

    def __init__(self, width: int = 8, *, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(11, width)
        self.positions = nn.Parameter(0.1 * torch.randn(5, width))
        self.gate = nn.Parameter(torch.full((width,), 0.5))
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(width, width))
        self.last = nn.Linear(width, 11, bias=False)
        if tied:
            self.last.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids) + self.positions
        x = x + self.gate * self.down(torch.relu(self.up(self.norm(x))))
        logits: Tensor = self.last(torch.relu(self.normed(x)))
        return logits


DECAY = {"up.weight", "down.weight", "last.weight", "normed.parametrizations.weight.original1"}


def planned(optimizer: Any = "adam", **options: Any) -> tuple[nn.Module, es.Plan]:
    torch.manual_seed(0)
    model = Words(**options)
    return model, es.plan(model, IDS, base=0.02, optimizer=optimizer)


def by_name(model: nn.Module, groups: list[dict[str, Any]], key: str) -> dict[str, float]:
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: group.get(key) for group in groups for p in group["params"]}  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["adam", "muon", "lion", AdamW, partial(NAdam, decoupled_weight_decay=True)])
def test_norms_biases_gates_tables_and_embeddings_do_not_decay(kind: Any) -> None:
    model, plan = planned(kind)
    for groups in (
        plan.optimizer(model, weight_decay=0.1).param_groups,
        plan.param_groups(model, weight_decay=0.1),
    ):
        decays = by_name(model, groups, "weight_decay")
        assert {name for name, decay in decays.items() if decay} == DECAY
        assert set(decays.values()) == {0.0, 0.1}
    assert set(
        by_name(model, plan.optimizer(model, weight_decay=0.1, no_decay=False).param_groups, "weight_decay").values()
    ) == {0.1}
    without = plan.optimizer(model, weight_decay=0.0)
    assert es.check_groups(model, plan, without) == pytest.approx(0.02)
    assert {group["weight_decay"] for group in without.param_groups} == {0.0}


@pytest.mark.parametrize("kind", ["sgd", "momentum", Adam, SGD])
def test_where_decay_is_added_to_the_gradient_all_decay_unless_asked(kind: Any) -> None:
    model, plan = planned(kind)
    assert set(by_name(model, plan.optimizer(model, weight_decay=0.1).param_groups, "weight_decay").values()) == {0.1}
    decays = by_name(model, plan.optimizer(model, weight_decay=0.1, no_decay=True).param_groups, "weight_decay")
    assert {name for name, decay in decays.items() if decay} == DECAY


def test_a_table_that_is_the_readout_too_decays() -> None:
    model, plan = planned(tied=True)
    decays = by_name(model, plan.param_groups(model, weight_decay=0.1), "weight_decay")
    assert {name for name, decay in decays.items() if decay} == (DECAY - {"last.weight"}) | {"table.weight"}


@pytest.mark.parametrize("kind", ["adam", "muon", "lion", "momentum"])
@pytest.mark.parametrize("decay", ["coupled", "even", "independent", "even_decay"])
def test_what_a_step_takes_of_a_weight(kind: Any, decay: str) -> None:
    """With gradients of zero only the decay moves weights: what it takes is read off a step."""
    model, plan = planned(kind)
    how: dict[str, Any] = {"even_decay": True} if decay == "even_decay" else {"decay": decay}
    optimizer = plan.optimizer(model, weight_decay=0.25, no_decay=False, **how)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    if kind == "momentum":
        optimizer.param_groups[:] = [{**g, "momentum": 0.0, "nesterov": False} for g in optimizer.param_groups]
    if kind == "momentum" or kind in ("adam", "muon", "lion"):
        optimizer.step()
    scale = plan.lr_scale
    for name, p in model.named_parameters():
        expected = {
            "coupled": 0.25 * 0.02 * plan[name].lr_scale,
            "even": 0.25 * 0.02 * scale,
            "even_decay": 0.25 * 0.02 * scale,
            "independent": 0.25,
        }[decay]
        torch.testing.assert_close(p.detach(), before[name] * (1 - expected), rtol=1e-5, atol=1e-7)
    assert len({plan[name].lr_scale for name in before}) > 2


def test_even_decays_keep_rate_times_decay_between_widths_and_independent_ones_decay_itself() -> None:
    paces: dict[str, list[float]] = {"coupled": [], "even": [], "independent": []}
    base = es.trace(Words(8), IDS)
    for width in (8, 64):
        model = Words(width)
        plan = es.plan(model, IDS, base=0.02, base_graph=base, optimizer="adam")
        for decay, found in paces.items():
            groups = plan.param_groups(model, weight_decay=0.1, decay=decay)  # type: ignore[arg-type]
            rates, decays = by_name(model, groups, "lr"), by_name(model, groups, "weight_decay")
            found.append(rates["up.weight"] * decays["up.weight"] / plan.lr_scale ** (decay != "independent"))
    assert paces["even"] == pytest.approx([0.002, 0.002])
    assert paces["independent"] == pytest.approx([0.1, 0.1])
    assert paces["coupled"][0] > 4 * paces["coupled"][1]


WRONG: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = {
    "no such decay": ({"decay": "linear"}, es.InputError, ("decay is 'linear'", "coupled, even, independent")),
    "no decay": (
        {"decay": "independent", "weight_decay": None},
        es.InputError,
        ("weight_decay is None", "leave decay"),
    ),
    "more than all": (
        {"decay": "independent", "weight_decay": 1.5},
        es.InputError,
        ("weight_decay is 1.5", "below 1"),
    ),
    "two answers": ({"decay": "coupled", "even_decay": True}, es.InputError, ("decay is 'coupled'", "even_decay")),
    "spared nothing": ({"no_decay": True, "weight_decay": 0.0}, es.InputError, ("no_decay is True", "above 0")),
    "no truth value": ({"no_decay": "norms"}, es.InputError, ("no_decay is 'norms'", "True, False")),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_decays_are_said(name: str) -> None:
    options, error, words = WRONG[name]
    model, plan = planned()
    for make in (plan.param_groups, plan.optimizer):
        with pytest.raises(error) as caught:
            make(model, **{"weight_decay": 0.1, **options})
        assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_a_decay_needs_a_rate() -> None:
    model = Words()
    plan = es.plan(model, IDS, optimizer="adam")
    with pytest.raises(es.PlanError, match="factors only"):
        plan.optimizer(model, weight_decay=0.1, decay="independent")
    with pytest.raises(es.InputError, match="leave decay out"):
        plan.param_groups(model, lr=0.1, decay="independent")


def test_dividing_a_decay_that_adam_normalises_is_warned_of() -> None:
    model, plan = planned(Adam)
    with pytest.warns(es.PlanWarning, match=r"Adam adds decay to the gradient.*AdamW"):
        plan.optimizer(model, weight_decay=0.1, decay="even")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan.optimizer(model, weight_decay=0.1)
        plan.optimizer(model, decay="even")


# Muon where it does not belong


@pytest.mark.parametrize("model", [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))])
def test_muon_needs_a_hidden_matrix(model: nn.Module) -> None:
    with pytest.raises(es.InputError, match=r"'muon', but the network has no hidden matrices.*optimizer='adam'"):
        es.plan(model, torch.zeros(3, 4), base=0.1, optimizer="muon")


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_torchs_muon_stands_for_the_one_that_steps_the_rest_too() -> None:
    from torch.optim import Muon as TorchsMuon

    given = TorchsMuon([torch.zeros(2, 2)], lr=9.0, momentum=0.8, eps=1e-5, adjust_lr_fn="match_rms_adamw")
    model, plan = planned(given)
    again = es.Plan.from_json(plan.to_json())
    assert again == plan
    built = again.optimizer(model)
    assert isinstance(built, Muon)
    assert {(g["momentum"], g["ns_eps"], g["eps"]) for g in built.param_groups} == {(0.8, 1e-5, 1e-8)}
    assert {g["weight_decay"] for g in built.param_groups} == {0.0, 0.1}  # torch's own default
    assert planned(partial(TorchsMuon, weight_decay=0.0))[1].optimizer_options["class"] == "Muon"
    with pytest.raises(es.InputError, match=r"adjust_lr_fn='original'.*match_rms_adamw"):
        planned(partial(TorchsMuon, adjust_lr_fn="original"))
    with pytest.raises(es.PlanError, match="without adjust_lr_fn"):
        es.check_groups(model, plan, TorchsMuon([g for g in plan.param_groups(model) if g["muon"]]))
    hidden = [g for g in plan.param_groups(model) if g["muon"]]
    with pytest.raises(es.PlanError, match="does not hold"):
        es.check_groups(model, plan, TorchsMuon(hidden, adjust_lr_fn="match_rms_adamw"))


@pytest.mark.parametrize("given", [Lion, Muon, partial(Lion, betas=(0.5, 0.9)), partial(Muon, momentum=0.5)])
def test_classes_and_instances_of_ours_are_planned_for(given: Any) -> None:
    model, plan = planned(given)
    built = es.Plan.from_json(plan.to_json()).optimizer(model)
    assert type(built) is getattr(given, "func", given)
    assert es.check_groups(model, plan, built) == pytest.approx(0.02)
    _, again = planned(built)
    assert again.optimizer_name == plan.optimizer_name
    assert again.optimizer(model).param_groups[0].keys() == built.param_groups[0].keys()
    if isinstance(given, partial):
        assert built.defaults[next(iter(given.keywords))] == next(iter(given.keywords.values()))


def test_a_plan_says_what_muon_steps() -> None:
    _, plan = planned("muon")
    assert {p.name: p.notes for p in plan if any("Muon" in note for note in p.notes)} == {
        "up.weight": ("stepped by Muon as a matrix of 24 x 8",),
        "down.weight": ("stepped by Muon as a matrix of 8 x 24",),
    }
    assert str(plan).count("stepped by Muon as a matrix of … x …") == 1


def test_frozen_matrices_are_not_stepped() -> None:
    model, plan = planned("muon")
    made = plan.freeze("up.*").freeze("down.*")
    optimizer = made.optimizer(model, weight_decay=0.1)
    assert not any(group["muon"] for group in optimizer.param_groups)
    assert es.check_groups(model, made, optimizer) == pytest.approx(0.02)


def test_muon_does_not_step_shards() -> None:
    model, plan = planned("muon")
    parameter = model.get_parameter("up.weight")
    parameter.device_mesh, parameter.placements = "mesh", ()  # type: ignore[attr-defined]
    with pytest.raises(es.PlanError, match=r"are sharded, but Muon needs whole matrices.*optimizer='adam'"):
        plan.optimizer(model)


def test_another_optimizer_than_the_plans_is_refused() -> None:
    model, plan = planned("muon")
    with pytest.raises(es.PlanError, match="optimizer is AdamW, but the plan is for 'muon'"):
        es.check_groups(model, plan, AdamW([{"params": g["params"], "lr": g["lr"]} for g in plan.param_groups(model)]))
    groups = plan.param_groups(model)
    for group in groups:
        group |= {"muon": False, "layouts": None}
    with pytest.raises(es.PlanError, match=r"Muon does not step 'up\.weight', which is a hidden matrix"):
        es.check_groups(model, plan, Muon(groups))
    with pytest.raises(es.InputError, match="option 'muon' is set by the plan"):
        plan.param_groups(model, muon=True)
    _, other = planned("lion")
    with pytest.raises(es.PlanError, match="optimizer is Muon, but the plan is for 'lion'"):
        es.check_groups(model, other, Muon(plan.param_groups(model)))


# Schedules


EVEN: dict[str, Callable[[Any], Any]] = {
    "cosine": lambda o: CosineAnnealingLR(o, T_max=50),
    "lambda": lambda o: LambdaLR(o, lambda step: 0.99**step),
    "one cycle": lambda o: OneCycleLR(o, max_lr=[g["lr"] for g in o.param_groups], total_steps=30),
    "warm-up": lambda o: SequentialLR(o, [LinearLR(o, 0.1, total_iters=5), CosineAnnealingLR(o, 20)], [5]),
    "plateau": lambda o: ReduceLROnPlateau(o, patience=2),
}
FLATTENING: dict[str, Callable[[Any], Any]] = {
    "floor": lambda o: CosineAnnealingLR(o, T_max=50, eta_min=1e-4),
    "warm-up": lambda o: SequentialLR(o, [LinearLR(o, 0.1, total_iters=5), CosineAnnealingLR(o, 20, 1e-4)], [5]),
    "one group's": lambda o: LambdaLR(o, [lambda step: 1.0, *[lambda step: 0.9**step] * (len(o.param_groups) - 1)]),
    "plateau": lambda o: ReduceLROnPlateau(o, patience=2, min_lr=1e-4),
}


@pytest.mark.parametrize("kind", ["adam", "muon"])
@pytest.mark.parametrize("name", EVEN)
def test_schedulers_that_scale_all_groups_pass(kind: str, name: str) -> None:
    model, plan = planned(kind)
    optimizer = plan.optimizer(model)
    scheduler = EVEN[name](optimizer)
    rates = [group["lr"] for group in optimizer.param_groups]
    state = {key: str(value) for key, value in scheduler.state_dict().items()}
    es.check_groups(model, plan, optimizer, scheduler)
    assert [group["lr"] for group in optimizer.param_groups] == rates
    assert {key: str(value) for key, value in scheduler.state_dict().items()} == state


@pytest.mark.parametrize("kind", ["adam", "muon"])
@pytest.mark.parametrize("name", FLATTENING)
def test_schedulers_that_will_make_rates_alike_are_found_before_they_do(kind: str, name: str) -> None:
    model, plan = planned(kind)
    optimizer = plan.optimizer(model)
    scheduler = FLATTENING[name](optimizer)
    es.check_groups(model, plan, optimizer)
    with pytest.raises(es.PlanError, match=r"changes the ratios of rates: \d+ steps ahead"):
        es.check_groups(model, plan, optimizer, scheduler)
    with pytest.raises(es.InputError, match="give one of this optimizer"):
        es.check_groups(model, plan, plan.optimizer(model), scheduler)
