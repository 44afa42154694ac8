"""Check that plans become weights and optimiser groups, and that both survive what people do with them."""

import copy
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

import evenstep as es

torch.set_num_threads(1)


class Net(nn.Module):
    """Layers of several kinds, widths apart, so that rates differ."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.hidden = nn.Conv2d(32, 64, 3, padding=1)
        self.wide = nn.Linear(64, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.hidden(F.relu(self.norm(self.stem(x))))).mean((2, 3))
        logits: Tensor = self.head(F.relu(self.wide(x)))
        return logits


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16, padding_idx=0)
        self.hidden = nn.Linear(16, 16)
        self.output = nn.Linear(16, 20, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.output(F.relu(self.hidden(self.embedding(x))))
        return logits


X = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randint(10, (8,), generator=torch.Generator().manual_seed(0))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planned(**options: Any) -> tuple[Net, es.Plan]:
    model = Net()
    return model, es.plan(model, X, **options)


# Initialisation


def test_weights_have_the_planned_size_and_biases_and_gains_their_values() -> None:
    model, plan = planned()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(7.0)  # nothing of what was there may remain
    es.initialize_(model, plan, generator=generator())
    for name, value in model.state_dict().items():
        if name not in dict(model.named_parameters()):
            continue
        if plan[name].role == "weight":
            count = value.numel()
            # The standard error of a sample deviation is std / sqrt(2 n), that of a mean std / sqrt(n).
            assert float(value.std()) == pytest.approx(plan[name].std, rel=5 / math.sqrt(2 * count))
            assert abs(float(value.mean())) < 5 * plan[name].std / math.sqrt(count)
        elif name == "norm.weight":
            assert torch.equal(value, torch.ones_like(value))
        else:
            assert name.endswith("bias")
            assert torch.equal(value, torch.zeros_like(value))


def test_known_sizes_of_a_plain_network() -> None:
    model = nn.Sequential(nn.Linear(50, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
    plan = es.plan(model, torch.zeros(1, 50))
    assert plan["0.weight"].std == pytest.approx(math.sqrt(1 / 50))
    assert plan["2.weight"].std == pytest.approx(math.sqrt(2 / 200))
    assert plan["4.weight"].std == pytest.approx(math.sqrt(1 / 3 / 200))
    assert es.plan(model, torch.zeros(1, 50), init="he")["0.weight"].std == pytest.approx(math.sqrt(2 / 50))


def test_the_same_generator_state_gives_the_same_weights() -> None:
    one, plan = planned()
    other = Net()
    es.initialize_(one, plan, generator=generator(3))
    first = {name: p.clone() for name, p in one.state_dict().items()}
    es.initialize_(other, plan, generator=generator(3))
    es.initialize_(one, plan, generator=generator(3))  # a second time
    for name, p in one.named_parameters():
        assert torch.equal(p, first[name]), name
        assert torch.equal(p, dict(other.named_parameters())[name]), name
    es.initialize_(one, plan, generator=generator(4))
    assert not torch.equal(one.stem.weight, first["stem.weight"])


def test_a_generator_leaves_the_global_state_alone_and_none_uses_it() -> None:
    model, plan = planned()
    before = torch.random.get_rng_state()
    es.initialize_(model, plan, generator=generator())
    assert torch.equal(before, torch.random.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        es.initialize_(model, plan)
        drawn = model.head.weight.clone()
        torch.manual_seed(5)
        es.initialize_(model, plan)
        assert torch.equal(drawn, model.head.weight)


def test_buffers_and_gradients_are_left_alone() -> None:
    model, plan = planned()
    model(X).sum().backward()
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    gradient = model.head.weight.grad
    es.initialize_(model, plan, generator=generator())
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
    assert model.head.weight.grad is gradient
    assert all(p.requires_grad for p in model.parameters())


def test_the_padding_row_of_an_embedding_stays_zero() -> None:
    model = nn.Sequential(nn.Embedding(50, 16, padding_idx=3), nn.Linear(16, 4))
    es.initialize_(model, es.plan(model, torch.zeros(2, 5, dtype=torch.long)), generator=generator())
    table = dict(model.named_parameters())["0.weight"].detach()
    zero = (table == 0).all(dim=1)
    assert zero.nonzero().flatten().tolist() == [3]


def test_kept_parameters_are_untouched() -> None:
    model, plan = planned(init="keep")
    before = copy.deepcopy(model.state_dict())
    assert all(p.kept for p in plan.parameters)
    for name, p in model.named_parameters():
        assert plan[name].std == pytest.approx(float(p.detach().square().mean().sqrt()), rel=1e-5)
    es.initialize_(model, plan, generator=generator())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_half_precision_model_is_initialised_in_its_own_type() -> None:
    model = Net().to(torch.bfloat16)
    plan = es.plan(model, X.to(torch.bfloat16))
    es.initialize_(model, plan, generator=generator())
    weight = model.wide.weight.detach()
    assert weight.dtype == torch.bfloat16
    assert float(weight.float().std()) == pytest.approx(plan["wide.weight"].std, rel=0.05)


# Groups


def test_groups_hold_real_rates_names_and_extra_keys() -> None:
    model, plan = planned(base=0.2, optimizer="sgd")
    groups = plan.param_groups(model, weight_decay=0.01, foreach=False)
    names = {id(p): name for name, p in model.named_parameters()}
    seen: list[str] = []
    for group in groups:
        assert set(group) == {"params", "lr", "name", "weight_decay", "foreach"}
        assert (group["weight_decay"], group["foreach"]) == (0.01, False)
        assert isinstance(group["lr"], float)
        own = [names[id(p)] for p in group["params"]]
        assert group["name"] == (own[0] if len(own) == 1 else f"{own[0]} (+{len(own) - 1})")
        for name in own:
            assert group["lr"] == pytest.approx(0.2 * plan[name].lr_scale, rel=1e-9)
        seen += own
    assert sorted(seen) == sorted(names.values())
    assert {len(group["params"]) > 1 for group in groups} == {True, False}


def test_equal_rates_are_merged_and_unequal_ones_are_not() -> None:
    model, plan = planned()
    groups = plan.param_groups(model, lr=1.0)
    rates = [group["lr"] for group in groups]
    assert len(set(rates)) == len(rates)
    assert len(rates) == len({f"{p.lr_scale:.10g}" for p in plan.parameters})
    assert 1 < len(rates) < len(plan.parameters)
    constant = es.plan(model, X, rule="constant")
    (only,) = constant.param_groups(model, lr=0.5)
    assert (only["lr"], len(only["params"])) == (0.5, len(plan.parameters))


def test_a_plan_of_factors_needs_a_rate_and_a_given_rate_overrides() -> None:
    model, plan = planned()
    with pytest.raises(es.PlanError, match=r"factors only.*lr="):
        plan.param_groups(model)
    based = es.plan(model, X, base=0.1, optimizer="sgd")
    one, other = based.param_groups(model), based.param_groups(model, lr=0.3)
    assert [g["lr"] * 3 for g in one] == pytest.approx([g["lr"] for g in other])


@pytest.mark.parametrize("rate", [0, -1.0, math.nan, math.inf, "0.1", True])
def test_bad_rates_are_refused(rate: Any) -> None:
    model, plan = planned()
    with pytest.raises(es.InputError, match="above 0"):
        plan.param_groups(model, lr=rate)
    with pytest.raises(es.InputError, match=r"base"):
        es.plan(model, X, base=rate, optimizer="sgd")


@pytest.mark.parametrize("key", ["params", "name"])
def test_keys_of_the_plan_cannot_be_overridden(key: str) -> None:
    model, plan = planned()
    with pytest.raises(es.InputError, match=key):
        plan.param_groups(model, lr=0.1, **{key: "mine"})  # type: ignore[arg-type]


def test_an_even_decay_is_the_same_for_all_parameters_whatever_their_rates() -> None:
    model, plan = planned()
    plain = plan.param_groups(model, lr=0.1, weight_decay=0.01)
    even = plan.param_groups(model, lr=0.1, weight_decay=0.01, even_decay=True)
    assert len({group["lr"] for group in plain}) > 1
    assert [group["lr"] for group in even] == [group["lr"] for group in plain]
    assert [g["lr"] * g["weight_decay"] for g in even] == pytest.approx([0.1 * plan.lr_scale * 0.01] * len(even))


@pytest.mark.parametrize("decay", [{}, {"weight_decay": -0.1}, {"weight_decay": True}, {"weight_decay": "a little"}])
def test_an_even_decay_needs_a_decay(decay: dict[str, Any]) -> None:
    model, plan = planned()
    with pytest.raises(es.InputError, match=r"weight_decay is .* from 0 up"):
        plan.param_groups(model, lr=0.1, even_decay=True, **decay)


class Scaled(nn.Module):
    """A layer before a norm that reads a field so many times as large."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.times = times
        self.stem, self.layer, self.norm = nn.Linear(8, 16), nn.Linear(16, 16, bias=False), nn.LayerNorm(16)
        self.readout = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.readout(self.norm(self.layer(self.times * self.stem(x))))
        return logits


def test_with_even_decay_a_layer_that_reads_more_trains_as_the_same_layer_in_another_unit() -> None:
    """Weights 1/times as large, rates 1/times^2, decays times^2: the function stays the same, step by step."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 8, dtype=torch.float64), torch.randint(4, (64,))
    outputs = []
    for times in (1.0, 100.0):
        model = Scaled(times).double()
        plan = es.plan(model, x, base=0.3, optimizer="momentum")
        es.initialize_(model, plan, generator=torch.Generator().manual_seed(1))
        groups = plan.param_groups(model, weight_decay=0.1, even_decay=True)
        stepper = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
        for _ in range(10):
            stepper.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            stepper.step()
        outputs.append(model(x).detach())
    assert torch.allclose(outputs[0], outputs[1], rtol=1e-3)


def schedulers() -> dict[str, Callable[[Optimizer], LRScheduler]]:
    return {
        "lambda": lambda o: LambdaLR(o, lambda step: 0.9**step),
        "cosine": lambda o: CosineAnnealingLR(o, T_max=20),
        "one cycle": lambda o: OneCycleLR(o, max_lr=[g["lr"] for g in o.param_groups], total_steps=20),
    }


@pytest.mark.parametrize("kind", schedulers())
def test_ratios_of_rates_survive_schedulers(kind: str) -> None:
    model, plan = planned(base=0.1, optimizer="sgd")
    optimizer = SGD(plan.param_groups(model), momentum=0.9)
    scheduler = schedulers()[kind](optimizer)
    scales = [plan[group["name"].split(" ")[0]].lr_scale for group in optimizer.param_groups]
    assert len(set(scales)) > 1
    moved = set()
    for _ in range(10):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
        rates = [group["lr"] for group in optimizer.param_groups]
        base = rates[0] / scales[0]
        moved.add(base)
        assert rates == pytest.approx([base * scale for scale in scales])
    assert len(moved) == 10


def test_one_step_of_sgd_moves_every_parameter_by_its_own_rate() -> None:
    model, plan = planned(base=0.05, optimizer="sgd")
    es.initialize_(model, plan, generator=generator())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    F.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
    SGD(plan.param_groups(model)).step()
    for name, p in model.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.detach(), before[name] - 0.05 * plan[name].lr_scale * p.grad)


# Wrappers


def test_a_compiled_model_takes_the_plan_of_the_plain_one() -> None:
    model, plan = planned(base=0.1, optimizer="sgd")
    compiled: Any = torch.compile(model, backend="eager")
    assert es.plan(compiled, X, base=0.1, optimizer="sgd") == plan
    es.initialize_(compiled, plan, generator=generator(2))
    other = Net()
    es.initialize_(other, plan, generator=generator(2))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    one, two = (train(m, plan, 3) for m in (compiled, other))
    assert one == pytest.approx(two, rel=1e-5)


@pytest.fixture
def _gloo(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_gloo")
def test_a_distributed_model_takes_the_plan_of_the_plain_one() -> None:
    model, plan = planned(base=0.1, optimizer="sgd")
    wrapped = DistributedDataParallel(model)
    assert all(name.startswith("module.") for name, _ in wrapped.named_parameters())
    assert es.plan(wrapped, X, base=0.1, optimizer="sgd") == plan
    es.initialize_(wrapped, plan, generator=generator(2))
    groups = plan.param_groups(wrapped)
    assert {id(p) for g in groups for p in g["params"]} == {id(p) for p in model.parameters()}
    other = Net()
    es.initialize_(other, plan, generator=generator(2))
    one, two = train(wrapped, plan, 3), train(other, plan, 3)
    assert one == pytest.approx(two, rel=1e-5)
    both: Any = torch.compile(wrapped, backend="eager")
    assert len(plan.param_groups(both)) == len(groups)


@pytest.mark.usefixtures("_gloo")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sharded_model_is_drawn_as_the_plain_one(dtype: torch.dtype) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    plain, sharded = (
        nn.Sequential(nn.Embedding(50, 16, padding_idx=3), nn.LayerNorm(16), nn.Linear(16, 4)).to(dtype)
        for _ in range(2)
    )
    plan = es.plan(plain, torch.zeros(2, 5, dtype=torch.long))
    es.initialize_(plain, plan, generator=generator())
    fsdp.fully_shard(sharded)
    es.initialize_(sharded, plan, generator=generator())
    whole: dict[str, Any] = dict(sharded.named_parameters())
    for name, expected in plain.named_parameters():
        assert torch.equal(whole[name].full_tensor(), expected), name
    assert not plain.get_parameter("0.weight")[3].any()  # the row of padding


def train(model: nn.Module, plan: es.Plan, steps: int, optimizer: Optimizer | None = None) -> list[float]:
    optimizer = optimizer or SGD(plan.param_groups(model), momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_tied_weights_are_drawn_and_stepped_once() -> None:
    model = Tied()
    ids = torch.randint(20, (4, 6), generator=generator())
    plan = es.plan(model, ids, base=0.1, optimizer="sgd")
    es.initialize_(model, plan, generator=generator())
    assert model.output.weight is model.embedding.weight
    assert bool((model.embedding.weight[0] == 0).all())
    groups = plan.param_groups(model)
    assert sum(p is model.embedding.weight for g in groups for p in g["params"]) == 1
    SGD(groups)  # refuses a parameter that is in two groups


# Saving


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_saving_and_loading_resumes_to_the_bit(kind: type[Optimizer]) -> None:
    def fresh(model: nn.Module, plan: es.Plan) -> tuple[Optimizer, LRScheduler]:
        extra: dict[str, Any] = {"momentum": 0.9} if kind is SGD else {}
        optimizer = kind(plan.param_groups(model, weight_decay=0.01), **extra)
        return optimizer, CosineAnnealingLR(optimizer, T_max=12)

    def run(model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            losses += train(model, plan, 1, optimizer)
            scheduler.step()
        return losses

    model, plan = planned(base=0.05 if kind is SGD else 0.001, optimizer="momentum" if kind is SGD else "adam")
    es.initialize_(model, plan, generator=generator())
    optimizer, scheduler = fresh(model, plan)
    run(model, optimizer, scheduler, 4)
    saved = io.BytesIO()
    states = (model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), plan.to_json())
    torch.save(states, saved)
    undisturbed = run(model, optimizer, scheduler, 5)

    saved.seek(0)
    weights, steps, schedule, text = torch.load(saved, weights_only=True)
    again = Net()
    again.load_state_dict(weights)
    loaded = es.Plan.from_json(text)
    assert loaded == plan
    optimizer, scheduler = fresh(again, loaded)
    optimizer.load_state_dict(steps)
    scheduler.load_state_dict(schedule)
    assert run(again, optimizer, scheduler, 5) == undisturbed


# Plans of other models


class Renamed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.tail = self.head
        del self.head

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def test_a_plan_for_other_names_is_refused_and_names_them() -> None:
    _, plan = planned(base=0.1, optimizer="sgd")
    for apply in (lambda m: es.initialize_(m, plan), lambda m: plan.param_groups(m)):
        with pytest.raises(es.PlanError) as caught:
            apply(Renamed())
        message = str(caught.value)
        for part in ("Renamed", "'head.weight'", "'head.bias'", "missing", "'tail.weight'", "not in the plan"):
            assert part in message
        assert "plan this very model" in message


def test_a_plan_for_other_shapes_is_refused_and_nothing_is_touched() -> None:
    model, plan = planned()
    model.head = nn.Linear(128, 5)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(es.PlanError, match=r"'head\.weight' has shape \(5, 128\).*\(10, 128\)"):
        es.initialize_(model, plan)
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_freezing_after_planning_is_noticed() -> None:
    model, plan = planned()
    model.stem.weight.requires_grad_(False)
    with pytest.raises(es.PlanError, match=r"'stem\.weight'.*freeze parameters before planning"):
        es.initialize_(model, plan)


def test_many_foreign_names_are_counted_not_listed() -> None:
    _, plan = planned()
    with pytest.raises(es.PlanError, match=r"and \d+ more"):
        es.initialize_(nn.Linear(3, 3), plan)


def test_three_foreign_names_are_listed_and_of_more_the_rest_is_counted() -> None:
    for last_bias, listed in ((False, ""), (True, " and 1 more")):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=last_bias))
        with pytest.raises(es.PlanError) as caught:
            es.initialize_(nn.Linear(3, 3), es.plan(model, torch.zeros(1, 3)))
        expected = (
            f"'0.weight', '0.bias', '2.weight'{listed} missing in the model and 'weight', 'bias' not in the plan; "
        )
        assert expected in str(caught.value)


def test_names_are_foreign_on_one_side_only() -> None:
    small, large = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
    for planned_model, given, words in (
        (small, large, "does not fit Linear: 'bias' not in the plan; plan this"),
        (large, small, "does not fit Linear: 'bias' missing in the model; plan this"),
    ):
        with pytest.raises(es.PlanError, match=words):
            es.initialize_(given, es.plan(planned_model, torch.zeros(1, 3)))


def test_asking_a_plan_for_a_name_it_lacks() -> None:
    _, plan = planned()
    with pytest.raises(es.PlanError, match=r"'nothing'.*'stem\.weight'"):
        plan["nothing"]
