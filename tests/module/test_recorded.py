"""Networks whose export gives up: a recorded run is read instead, and says what an export would have said."""

import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenstep as es
import evenstep.module.trace
from evenstep.module.draws import HIGH, LOW
from evenstep.module.recorded import record
from tests.zoo import ZOO

torch.set_num_threads(1)
READER = sys.modules["evenstep.module.trace"]
ENTRIES = {entry.name: entry for entry in ZOO}
X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


# Networks that both ways can read


@pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")
@pytest.mark.parametrize(
    ("name", "training"),
    [
        *((name, True) for name in ("squeeze_excite", "instance_norm", "transformer_pre_norm", "lstm", "rms_norm")),
        *((name, True) for name in ("tied_language_model", "unused_parameter", "frozen_parts", "bilinear")),
        *((name, False) for name in ("attention", "recurrent_depth", "keyword_input", "dict_output")),
    ],
)
def test_a_recording_gives_the_plan_of_the_export(name: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ENTRIES[name]
    model, args = entry.make()
    model.train(training)
    exported = es.plan(model, args, example_kwargs=dict(entry.kwargs))
    monkeypatch.setattr(READER, "program_of", record)
    assert es.plan(model, args, example_kwargs=dict(entry.kwargs)) == exported


@pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")
def test_inputs_given_by_name_in_another_order_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Linear(12, 8), nn.Linear(4, 8)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            out: Tensor = torch.relu(self.wide(first)) + self.narrow(second)
            return out

    inputs = {"second": X, "first": torch.randn(8, 12)}
    exported = es.plan(Two(), example_kwargs=inputs)
    monkeypatch.setattr(READER, "program_of", record)
    recorded = es.plan(Two(), example_kwargs=inputs)
    assert {v.name: v.measured for v in recorded.vertices} == {v.name: v.measured for v in exported.vertices}
    assert set(recorded.graph.inputs) == {"input.first", "input.second"}


# Layers that are dropped at random


class Drops(nn.Module):
    """Skip blocks where `skips` says so, which draws; `skips` None keeps them all."""

    def __init__(self, skips: Callable[[], Any] | None) -> None:
        super().__init__()
        self.skips = skips
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.stem, self.head = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if self.skips is None or not self.skips():
                x = x + torch.relu(block(x))
        y: Tensor = self.head(x)
        return y


@pytest.mark.parametrize(
    "skips",
    [
        lambda: torch.rand([]) < 0.5,
        lambda: torch.rand(1).item() >= 0.5,  # the rate is that of keeping
        lambda: random.random() < 0.5,
        lambda: random.uniform(0, 1) > 0.5,
        lambda: np.random.uniform(0, 1) < 0.5,
        lambda: np.random.random() > 0.5,
    ],
)
def test_layers_dropped_at_random_are_planned_as_present(skips: Callable[[], Any]) -> None:
    dropped, kept = es.plan(Drops(skips), X), es.plan(Drops(None), X)
    assert [(p.name, p.std, p.lr_scale) for p in dropped.parameters] == [
        (p.name, p.std, p.lr_scale) for p in kept.parameters
    ]
    assert dropped.warnings == ()


# What else makes an export give up


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        return self.second(torch.relu(self.first(x)))


class ChecksFinite(Chain):
    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        x = self.first(x)
        if not torch.isfinite(x).all():
            x = torch.zeros_like(x)
        if torch.isinf(x).any() or torch.isnan(x).any():
            x = x.clamp(-1, 1)
        return self.second(torch.relu(x))


class SplitsAsTold(Chain):
    """Cut the batch where an input of whole numbers says, and put it together again."""

    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        assert sizes is not None
        parts = torch.split(torch.relu(self.first(x)), sizes.tolist())
        assert int(sizes[0]) == len(parts[0])
        return torch.cat([self.second(part) for part in parts])


class Splits(Chain):
    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        return torch.cat([self.second(part) for part in torch.split(torch.relu(self.first(x)), [3, 5])])


class ReturnsACache(Chain):
    class Cache:
        def __init__(self, held: Tensor) -> None:
            self.held = held

    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        x = torch.relu(self.first(x))
        return {"out": self.second(x), "cache": self.Cache(x)}


@dataclass
class Answer:
    out: Tensor


class ReturnsADataclass(Chain):
    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        return Answer(self.second(torch.relu(self.first(x))))


@pytest.mark.parametrize(
    ("kind", "twin"),
    [(ChecksFinite, Chain), (SplitsAsTold, Splits), (ReturnsACache, Chain), (ReturnsADataclass, Chain)],
)
def test_what_says_nothing_of_the_data_is_planned_without_a_word(kind: type[nn.Module], twin: type[nn.Module]) -> None:
    sizes = {"sizes": torch.tensor([3, 5])}
    plan = es.plan(kind(), X, example_kwargs=sizes)
    plain = es.plan(twin(), X, example_kwargs=sizes)
    assert plan.warnings == ()
    for p in plain.parameters:
        assert (plan[p.name].std, plan[p.name].lr_scale) == pytest.approx((p.std, p.lr_scale), rel=1e-6)


class BranchesOnData(Chain):
    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        x = self.first(x)
        return self.second(torch.relu(x) if x.sum() < torch.inf else torch.tanh(x))


class SizeFromData(Chain):
    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        x = self.first(x)
        return self.second(torch.relu(x[x[:, 0] < torch.inf]))


class Counts(Chain):
    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        x = self.first(x)
        return self.second(torch.relu(x[: len((x[:, 0] < torch.inf).nonzero())]))


class AsksData(Chain):
    """Ask the numbers of a signal past autograd."""

    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        x = self.first(x)
        return self.second(torch.relu(x) if x.data.norm() < torch.inf else torch.tanh(x))


class AsksWhetherClose(Chain):
    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
        x = self.first(x)
        return self.second(torch.tanh(x) if torch.allclose(x, x + 1) else torch.relu(x))


@pytest.mark.parametrize("kind", [BranchesOnData, SizeFromData, Counts, AsksData, AsksWhetherClose])
def test_what_depends_on_the_data_is_read_as_it_ran_and_said(kind: type[nn.Module]) -> None:
    with pytest.warns(es.PlanWarning, match=rf"what {kind.__name__} does depends on its data .* \({kind.__name__}\)"):
        plan = es.plan(kind(), X)
    plain = es.plan(Chain(), X)
    for p in plain.parameters:
        assert (plan[p.name].std, plan[p.name].lr_scale) == pytest.approx((p.std, p.lr_scale), rel=1e-6)
    with pytest.raises(es.PlanError, match="read as it ran on the example inputs"):
        es.plan(kind(), X, strict=True)


# Experts


class Experts(nn.Module):
    """Route every row to two of four experts, in one of the ways that people write."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.stem, self.router, self.head = nn.Linear(4, 32), nn.Linear(32, 4), nn.Linear(32, 3)
        self.up, self.down = nn.Parameter(torch.randn(4, 32, 64)), nn.Parameter(torch.randn(4, 64, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        gates, chosen = self.router(x).softmax(-1).topk(2, -1)
        y: Tensor = self.head(x + getattr(self, self.way)(x, gates, chosen))
        return y

    def by_index(self, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        rows = x.repeat_interleave(2, 0).unsqueeze(1)
        hidden = torch.relu(torch.bmm(rows, self.up[chosen.flatten()]))
        out = torch.bmm(hidden, self.down[chosen.flatten()]).view(len(x), 2, -1)
        return (out * gates.unsqueeze(-1)).sum(1)

    def by_loop(self, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, 4).permute(2, 1, 0)
        for expert in mask.sum((-1, -2)).nonzero().flatten().tolist():
            place, row = torch.where(mask[expert])
            made = torch.relu(x[row] @ self.up[expert]) @ self.down[expert]
            out.index_add_(0, row, made * gates[row, place, None])
        return out

    def by_group(self, x: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        order = chosen.flatten().argsort()
        ends = torch.histc(chosen.flatten().float(), 4, 0, 3).cumsum(0).to(torch.int32)
        rows = x.repeat_interleave(2, 0)[order].bfloat16()
        hidden = torch.relu(torch._grouped_mm(rows, self.up.bfloat16(), offs=ends))
        out = torch._grouped_mm(hidden, self.down.bfloat16(), offs=ends).float()[order.argsort()]
        return (out.view(len(x), 2, -1) * gates.unsqueeze(-1)).sum(1)


@pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")
@pytest.mark.parametrize("way", ["by_index", "by_loop", "by_group"])
def test_tables_of_experts_are_weights(way: str) -> None:
    model = Experts(way)
    if way == "by_group":
        try:
            model(X)
        except (NotImplementedError, RuntimeError) as error:
            pytest.skip(f"this torch has no grouped product here: {error}")
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    plan = es.plan(model, x)
    assert not any("could not be run" in remark for remark in plan.remarks)
    for name, reads in (("up", 32), ("down", 64)):
        assert plan[name].role == "weight"
        assert not plan[name].kept
        assert 0.5 < plan[name].std ** 2 * reads < 4
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert 0.1 < float(model(x).square().mean().sqrt()) < 10


# The module and the world around it stay as they are


class Busy(nn.Module):
    """Draw, count, remember, write into buffers and inputs, and branch on data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1.0)
        self.calls.add_(1)
        self.seen.append(x)
        if random.random() + np.random.random() + float(torch.rand([])) < 0:
            return x
        y: Tensor = F.dropout(self.norm(self.layer(x)), 0.5)
        return y if y.sum() < torch.inf else -y


@pytest.mark.filterwarnings("ignore::evenstep.PlanWarning")
def test_a_recording_touches_nothing() -> None:
    model, x = Busy(), X.clone()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    draws = random.random, np.random.random
    es.plan(model, x)
    assert torch.equal(x, X)
    assert model.seen == []
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # type: ignore[index]
    assert (random.random, np.random.random) == draws


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*kept as they are:evenstep.PlanWarning")
def test_a_tensor_that_a_weight_norm_has_left_is_no_hindrance() -> None:
    class Normed(Chain):
        def __init__(self) -> None:
            super().__init__()
            nn.utils.weight_norm(self.first)  # computes an attribute that cannot be copied

        def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
            x = self.first(x)
            return self.second(torch.relu(x) if torch.isfinite(x).all() else x)

    plan = es.plan(Normed(), X)
    assert {p.name for p in plan.parameters} >= {"first.weight_g", "first.weight_v", "second.weight"}
    assert not any("depends on its data" in remark for remark in plan.remarks)


def test_a_graph_alone_says_what_it_took_as_it_ran() -> None:
    with pytest.warns(es.PlanWarning, match="what BranchesOnData does depends on its data"):
        assert len(es.trace(BranchesOnData(), X).edges) == 2


def test_draws_of_other_threads_are_left_alone() -> None:
    drawn: list[float] = []

    class Threaded(Chain):
        def forward(self, x: Tensor, sizes: Tensor | None = None) -> Any:
            thread = threading.Thread(target=lambda: drawn.append(random.random()))
            thread.start()
            thread.join()
            assert random.random() in (LOW, HIGH)
            return super().forward(x)

    es.plan(Threaded(), X)
    assert drawn
    assert not {LOW, HIGH} & set(drawn)


def test_a_forward_that_fails_half_way_leaves_everything_as_it_was() -> None:
    class Breaks(Busy):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise ValueError("no more")

    model, state, draw = Breaks(), random.getstate(), random.random
    with pytest.raises(es.TraceError, match=r"does not run on the example inputs .* no more"):
        es.plan(model, X.clone())
    assert random.getstate() == state
    assert random.random is draw
    assert model.seen == []


class OwnNoise(nn.Module):
    """Noise from a generator that the module holds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.layer = torch.Generator().manual_seed(3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=self.generator)
        result: Tensor = self.layer(x + noise)
        return result


def test_a_generator_of_the_modules_own_stays_as_it_was() -> None:
    model = OwnNoise()
    before = model.generator.get_state()
    es.plan(model, torch.zeros(2, 4))
    assert torch.equal(model.generator.get_state(), before)
