"""The three lines: a plan from nothing but a model and its data."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import evenstep as es
from evenstep.data.digits import digits
from evenstep.planning import Plan
from evenstep.search import LocalEngine
from evenstep.search.auto import says_too_little
from evenstep.search.copying import require_copies
from evenstep.search.held import report_held, require_apart
from evenstep.search.result import chosen
from tests.search.test_resume import await_rows, finished, rows, started

torch.set_num_threads(1)
ENGINE = LocalEngine(workers=1)
WIDTH, DEPTH, TOKENS, LENGTH = 32, 4, 11, 8


class Block(nn.Module):
    """A pre-norm residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + added


class Classifier(nn.Module):
    """Residual blocks on the digits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.readout = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images.flatten(1))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.readout(x)
        return logits


class Language(nn.Module):
    """A tied language model that computes its own loss, as transformers' do."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.readout = nn.Linear(WIDTH, TOKENS, bias=False)
        self.readout.weight = self.tokens.weight

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.tokens(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.readout(self.norm(x))
        if labels is None:
            return {"logits": logits}
        return {"logits": logits, "loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class Walks(Dataset[dict[str, Tensor]]):
    """Walks over tokens, each one or two on from the last, and what follows."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        walk = torch.cumsum(torch.randint(1, 3, (LENGTH + 1,), generator=generator), 0) % TOKENS
        return {"input_ids": walk[:-1], "labels": walk[1:]}


def loader() -> DataLoader[Any]:
    images, labels = digits().train
    return DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=32, shuffle=True)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any, steps: int) -> list[float]:
    losses: list[float] = []
    while len(losses) < steps:
        for batch in batches:
            loss = model(**batch)["loss"] if isinstance(batch, dict) else F.cross_entropy(model(batch[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def test_a_classifier_from_a_loader_trains_at_once() -> None:
    torch.manual_seed(0)
    model = Classifier()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan = es.auto_plan(model, loader(), optimizer="adam", train_steps=200, engine=ENGINE)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    searched, refined = plan.history
    assert searched.startswith("base: Classifier with 1 of its 4 blocks 'blocks.*'; rate ")
    assert refined.startswith("refined: rates x ")
    assert [factor.name for factor in plan.factors][-1:] == ["refined"]
    es.initialize_(model, plan)
    losses = trained(model, plan.optimizer(model), loader(), 120)
    assert sum(losses[-20:]) / 20 < 0.3 < losses[0]


def test_a_language_model_from_dictionaries_trains_at_once() -> None:
    torch.manual_seed(0)
    model = Language()
    batches = DataLoader(Walks(), batch_size=32)
    plan = es.auto_plan(model, batches, optimizer=torch.optim.AdamW, train_steps=100, engine=ENGINE)
    assert "1 of its 4 blocks" in plan.history[0]
    es.initialize_(model, plan)
    assert model.readout.weight is model.tokens.weight
    losses = trained(model, plan.optimizer(model), batches, 64)
    assert losses[-1] < 1.2 < losses[0]  # each token is one of two: the logarithm of 2 is the least


def test_a_network_that_repeats_nothing_is_searched_itself() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    plan = es.auto_plan(model, loader(), optimizer="momentum", train_steps=100, engine=ENGINE)
    assert len(plan.history) == 1
    assert "Sequential" in plan.history[0]


def small() -> nn.Sequential:
    hidden = [layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), *hidden, nn.Linear(16, 10))


def planned(model: nn.Module, data: Any = None, **options: Any) -> Plan:
    defaults: dict[str, Any] = {"train_steps": 40, "engine": ENGINE, "progress": False}
    return es.auto_plan(model, loader() if data is None else data, **defaults | options)


def test_weight_decay_is_searched_with_and_trained_with() -> None:
    model = small()
    instance = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.8, weight_decay=0.02)
    for given, decay in ((instance, 0.02), ("momentum", 0.0)):
        own = planned(model, optimizer=given)
        other = planned(model, optimizer=given, weight_decay=0.3)
        assert own.optimizer(model).param_groups[0]["weight_decay"] == decay
        assert other.optimizer(model).param_groups[0]["weight_decay"] == 0.3
        assert own.base != other.base


@pytest.mark.parametrize(("mean", "spread"), [(300.0, 12.0), (0.0, 100.0)])
def test_targets_far_from_where_outputs_start_are_said(mean: float, spread: float) -> None:
    images = digits().train[0][:256]
    targets = mean + spread * images.flatten(1)[:, 20:21]
    with pytest.warns(es.SearchWarning, match=r"the targets have mean .* train on \(target - ") as warned:
        es.auto_plan(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1)),
            (images, targets),
            optimizer="adam",
            loss=F.mse_loss,
            train_steps=100,
            engine=ENGINE,
        )
    assert {warning.filename for warning in warned} == {__file__}  # the caller's line, not one of ours


@pytest.mark.parametrize(
    ("losses", "untrained", "longer"),
    [
        ((0.674, 0.671, 0.670, 0.753, 0.650, 0.666, 0.684, 0.688, 0.675), 0.693, True),  # all noise
        ((0.540, 0.530, 0.510, 0.560, 0.500, 0.510, 0.550, 0.560, 0.540), 0.693, False),  # jagged, but it has learnt
        ((0.690, 0.680, 0.660, 0.645, 0.640, 0.645, 0.660, 0.680, 0.690), 0.693, False),  # little, but told apart
    ],
)
def test_a_base_that_learnt_little_at_rates_that_noise_tells_apart_trains_longer(
    losses: tuple[float, ...], untrained: float, longer: bool
) -> None:
    rates = tuple(0.002 * 2.0**octave for octave in (0, 1, 2, 3, 3.5, 4, 4.5, 5, 6))
    graph = es.trace(Classifier(), torch.zeros(2, 64))
    found = chosen(rates, tuple((loss,) for loss in losses), graph, (untrained,))
    assert found.status == "ok"
    assert says_too_little(found) == longer


def test_wrappers_are_taken_off() -> None:
    model = small()
    assert planned(nn.DataParallel(model)).parameters == planned(model).parameters


def test_nothing_depends_on_whether_gradients_are_off_around_it() -> None:
    model = small()
    with torch.no_grad():
        within = planned(model)
    assert within.parameters == planned(model).parameters


class Penalty:
    """A trainer's loss, as scripts have it."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.weight = model, torch.ones(2)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def squares(self) -> Tensor:
        return torch.stack([p.square().sum() for p in self.model.parameters()]).sum()

    def with_squares(self, output: Tensor, target: Tensor) -> Tensor:
        return self.plain(output, target) + self.squares()

    def plain(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, weight=self.weight)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.with_squares(output, target)


def sum_of(parameters: list[nn.Parameter]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: F.cross_entropy(output, target) + torch.stack([p.norm() for p in parameters]).sum()


def by_default(
    output: Tensor, target: Tensor, held: dict[str, list[nn.Parameter]] | None = None, scale: float = 1.0
) -> Tensor:
    norms = [p.norm() for p in (held or {}).get("all", [])]
    return F.cross_entropy(output, target) + scale * torch.stack(norms).sum()


LOSSES: dict[str, Callable[[nn.Module], Any]] = {
    "a module closed over": lambda model: lambda o, t: F.cross_entropy(o, t) + next(model.parameters()).norm(),
    "a list closed over": lambda model: sum_of(list(model.parameters())),
    "a partial": lambda model: functools.partial(by_default, held={"all": list(model.parameters())}),
    "a function inside": lambda model: functools.partial(lambda inner, o, t: inner(o, t), Penalty(model).with_squares),
    "a method": lambda model: Penalty(model).with_squares,
    "an object": Penalty,
    "the model's own": lambda model: functools.partial(lambda held, o, t: F.cross_entropy(o, t), model),
}


@pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)
def test_a_loss_that_reads_the_model_is_refused(make: Callable[[nn.Module], Any]) -> None:
    model = small()
    words = "the loss reads (the Sequential|a parameter of the network) that is to be planned, but trials train copies"
    with pytest.raises(es.InputError, match=words):
        planned(model, loss=make(model))


def test_a_loss_may_hold_constants_and_stand_beside_the_model() -> None:
    """A trainer's method that reads class weights alone is no reason to refuse, though the trainer has the model."""
    model = small()
    held = Penalty(model)
    for loss in (held.plain, nn.CrossEntropyLoss(held.weight), functools.partial(F.cross_entropy, weight=held.weight)):
        require_apart(loss, model)
        report_held(loss)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.last(self.norm(self.first(images.flatten(1))).relu())
        return output


def with_steps(model: Chain) -> str:
    model.steps = [{"norm": lambda h: model.norm(h)}]  # type: ignore[assignment]
    return "'steps' of Chain is or has a function that holds the network itself"


def with_hook(model: Chain) -> str:
    model.last.register_forward_hook(lambda module, inputs, output: output + model.norm.weight.sum())
    return "a hook on 'last' of Chain holds modules or parameters of the network itself"


def with_partial(model: Chain) -> str:
    model.register_forward_pre_hook(functools.partial(lambda scale, module, inputs: model.norm(inputs[0]), 2.0))
    return "a hook on Chain holds modules or parameters of the network itself"


@pytest.mark.parametrize("change", [with_steps, with_hook, with_partial])
def test_functions_in_a_model_that_hold_it_are_refused_before_anything_runs(change: Callable[[Chain], str]) -> None:
    model = Chain()
    words = change(model)
    with pytest.raises(es.InputError, match=words):
        planned(model)
    with pytest.raises(es.InputError, match=words):
        es.base_of(model, torch.zeros(4, 64))
    assert int(model.norm.num_batches_tracked or 0) == 0  # the user's own


def test_functions_in_a_model_that_hold_nothing_of_it_are_copied() -> None:
    model, seen = Chain(), []
    model.steps = [F.relu, lambda h: h + 1, model.first.forward]  # type: ignore[assignment]
    model.last.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    require_copies(model)


def test_a_model_that_needs_its_labels_is_planned_with_them() -> None:
    class Needy(Language):
        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            return super().forward(input_ids, labels)

    batches = DataLoader(Walks(), batch_size=32)
    assert "1 of its 4 blocks" in planned(Needy(), batches).history[0]


def test_only_what_is_trained_on_is_read() -> None:
    read = set()

    class Counted(Walks):
        def __len__(self) -> int:
            return 10**6

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            read.add(index)
            return super().__getitem__(index)

    planned(Language(), DataLoader(Counted(), batch_size=4))
    assert len(read) <= 4 * 40 + 4


SCRIPT = """
import json, sys, torch
import evenstep as es
from evenstep.search import LocalEngine
from evenstep.search.auto import says_too_little
from evenstep.search.result import chosen
from tests.search.test_auto import Classifier, loader
torch.set_num_threads(1)
torch.manual_seed(0)
plan = es.auto_plan(Classifier(), loader(), optimizer="momentum", train_steps=400, store=sys.argv[1],
                    engine=LocalEngine(workers=1))
print(json.dumps(plan.to_dict()))
"""


def test_a_call_killed_again_and_again_answers_the_same(tmp_path: Path) -> None:
    """Kill it once while it searches the base and once while it refines; then let it end."""
    answer = finished(SCRIPT, tmp_path / "undisturbed.db")
    undisturbed = rows(tmp_path / "undisturbed.db")
    path = tmp_path / "killed.db"
    base_config = _configs(undisturbed, answer)[0]
    of_base = sum(row[0] == base_config for row in undisturbed)
    assert 2 < of_base < len(undisturbed) - 2
    for count in (2, of_base + 2):
        process = started(SCRIPT, path)
        assert await_rows(process, path, count)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
    assert finished(SCRIPT, path) == answer
    assert rows(path) == undisturbed


def _configs(stored: list[tuple[Any, ...]], answer: dict[str, Any]) -> list[str]:
    """Return the stored searches, that of the base first: it has as many rates as the history says."""
    counts = {config: sum(row[0] == config for row in stored) for config in {row[0] for row in stored}}
    runs = int(answer["history"][0].partition(" runs of ")[0].rpartition(" ")[2])
    return sorted(counts, key=lambda config: counts[config] != runs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "net"}, "the model is str; give the torch.nn.Module that you will train"),
        ({"data": None}, "data is NoneType; give a pair"),
        ({"train_steps": 0}, "train_steps is 0"),
        ({"cost": 0}, "cost is 0"),
        ({"optimizer": "magic"}, "magic"),
        ({"loss": 3}, "loss is 3"),
    ],
)
def test_bad_input_is_one_line(change: dict[str, Any], message: str) -> None:
    images, labels = digits().train
    given: dict[str, Any] = {"model": Classifier(), "data": (images[:64], labels[:64]), "engine": ENGINE} | change
    with pytest.raises(es.EvenstepError, match=message) as raised:
        es.auto_plan(given.pop("model"), given.pop("data"), **given)
    assert "\n" not in str(raised.value)
