"""Check that the commonest mistakes are named, with what to do, and that what looks like one but works does work."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

import evenstep as es

torch.set_num_threads(1)

X = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 4


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))


def message_of(error: type[es.EvenstepError], act: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def steps(optimizer: Optimizer, scheduler: LRScheduler, count: int) -> Iterator[list[float]]:
    for _ in range(count):
        optimizer.step()
        scheduler.step()
        yield [group["lr"] for group in optimizer.param_groups]


# Example inputs forgotten


@pytest.mark.parametrize("act", [lambda: es.plan(net()), lambda: es.trace(net()), lambda: es.trace(net(), None)])
def test_example_inputs_forgotten(act: Callable[[], object]) -> None:
    message = message_of(es.InputError, act)
    for part in ("example_inputs is missing", "give a batch", "torch.zeros("):
        assert part in message


# The plan made after the module was compiled or sharded


@pytest.mark.parametrize("ran", [False, True])
def test_a_compiled_module_is_planned_like_the_plain_one(ran: bool) -> None:
    model = net()
    plan = es.plan(model, X, base=0.1, optimizer="sgd")
    model.compile(backend="eager")
    if ran:
        model(X)
    assert es.plan(model, X, base=0.1, optimizer="sgd") == plan


@pytest.fixture
def _gloo(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_gloo")
def test_a_sharded_module_is_refused_before_anything_happens_to_it() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    model = net()
    plan = es.plan(model, X, base=0.1, optimizer="sgd")
    fsdp.fully_shard(model)
    message = message_of(es.TraceError, lambda: es.plan(model, X, base=0.1, optimizer="sgd"))
    for part in ("is already sharded by fully_shard", "plan the plain module first"):
        assert part in message
    es.initialize_(model, plan)
    optimizer = SGD(plan.param_groups(model))
    nn.functional.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()  # a trace that fails half-way would have left the module unable to do this


@pytest.mark.usefixtures("_gloo")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("originals", [False, True])
def test_the_first_kind_of_sharding_names_the_second(originals: bool) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    model = net()
    plan = es.plan(model, X, base=0.1, optimizer="sgd")
    wrapped: Any = fsdp.FullyShardedDataParallel(model, use_orig_params=originals, device_id=torch.device("cpu"))
    assert "is already sharded by FullyShardedDataParallel" in message_of(es.TraceError, lambda: es.plan(wrapped, X))
    for act in (lambda: plan.param_groups(wrapped), lambda: es.initialize_(wrapped, plan)):
        assert "torch.distributed.fsdp.fully_shard" in message_of(es.PlanError, act)


# The optimiser built before the plan, or without it


def test_check_groups_returns_the_rate_of_the_base() -> None:
    model = net()
    plan = es.plan(model, X, base=0.25, optimizer="sgd")
    assert es.check_groups(model, plan, SGD(plan.param_groups(model))) == pytest.approx(0.25, rel=1e-9)
    assert es.check_groups(model, plan, SGD(plan.param_groups(model, lr=0.5))) == pytest.approx(0.5, rel=1e-9)


def test_an_optimizer_built_without_the_plan_is_found() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    plan = es.plan(model, X, base=0.1, optimizer="sgd")
    es.initialize_(model, plan)
    message = message_of(es.PlanError, lambda: es.check_groups(model, plan, optimizer))
    for part in ("all parameters have the same learning rate 0.1", "plan.param_groups(model)"):
        assert part in message


@pytest.mark.parametrize(
    ("planned", "kind", "options", "words", "right"),
    [
        ("sgd", AdamW, {}, "AdamW", "adam"),
        ("momentum", AdamW, {}, "AdamW", "adam"),
        ("adam", SGD, {}, "SGD without momentum", "sgd"),
        ("adam", SGD, {"momentum": 0.9}, "SGD with momentum 0.9", "momentum"),
        ("momentum", SGD, {}, "SGD without momentum", "sgd"),
        ("sgd", SGD, {"momentum": 0.9, "nesterov": True}, "SGD with momentum 0.9", "momentum"),
    ],
)
def test_an_optimizer_of_another_kind_is_found(planned: Any, kind: Any, options: Any, words: str, right: Any) -> None:
    model = net()
    plan = es.plan(model, X, base=0.1, optimizer=planned)
    message = message_of(es.PlanError, lambda: es.check_groups(model, plan, kind(plan.param_groups(model), **options)))
    for part in (f"the optimizer is {words}, but the plan is for '{planned}'", f"optimizer='{right}'"):
        assert part in message
    plan = es.plan(model, X, base=0.1, optimizer=right)
    assert es.check_groups(model, plan, kind(plan.param_groups(model), **options)) == pytest.approx(0.1)


def test_an_optimizer_that_torch_does_not_have_passes_and_what_is_none_does_not() -> None:
    class Own(Optimizer):
        def __init__(self, groups: Any) -> None:
            super().__init__(groups, {})

    model = net()
    plan = es.plan(model, X, base=0.1, optimizer="adam")
    assert es.check_groups(model, plan, Own(plan.param_groups(model))) == pytest.approx(0.1)
    nothing: Any
    for nothing in (None, "adam", plan.param_groups(model)):
        message = message_of(es.InputError, lambda given=nothing: es.check_groups(model, plan, given))  # type: ignore[misc]
        assert "give a torch optimizer" in message
        assert "\n" not in message


def test_a_scheduler_that_adds_momentum_to_plain_sgd_is_found() -> None:
    model = net()
    plan = es.plan(model, X, base=0.1, optimizer="sgd")
    optimizer = SGD(plan.param_groups(model))
    OneCycleLR(optimizer, max_lr=[g["lr"] for g in optimizer.param_groups], total_steps=11)  # cycles momentum, too
    message = message_of(es.PlanError, lambda: es.check_groups(model, plan, optimizer))
    assert "SGD with momentum 0.95, but the plan is for 'sgd'" in message


def test_a_plan_is_for_the_optimizer_its_base_was_searched_for() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

    x = torch.randn(256, 12, generator=torch.Generator().manual_seed(1))
    found = es.search_lr(
        make, (x, (x[:, 0] > 0).long()), optimizer="momentum", grid=[0.01, 0.3, 100.0], epochs=1, seeds=1
    )
    assert found.optimizer == "momentum"
    assert es.plan(net(), X, base=found).optimizer_name == "momentum"
    assert es.plan(net(), X, base=found.best, optimizer="momentum").optimizer_name == "momentum"
    message = message_of(es.InputError, lambda: es.plan(net(), X, base=found.best))  # it says nothing of momentum
    for part in (f"{found.best:g}", "optimizer is not given", "'sgd', 'momentum', 'adam', 'muon' or 'lion'"):
        assert part in message
    message = message_of(es.InputError, lambda: es.plan(net(), X, base=found, optimizer="adam"))
    for part in ("searched for optimizer 'momentum'", "'adam'", "search the base with optimizer='adam'"):
        assert part in message


def test_an_optimizer_of_another_copy_is_found() -> None:
    model = net()
    plan = es.plan(model, X, base=0.1, optimizer="sgd")
    optimizer = SGD(plan.param_groups(net()))
    message = message_of(es.PlanError, lambda: es.check_groups(model, plan, optimizer))
    for part in ("does not hold '0.weight' and 5 more", "plan.param_groups(model)"):
        assert part in message


def test_initializing_after_the_optimizer_was_built_changes_nothing() -> None:
    found = []
    for first in (True, False):
        model = net()
        plan = es.plan(model, X, base=0.1, optimizer="sgd")
        early = SGD(plan.param_groups(model), momentum=0.9) if first else None
        es.initialize_(model, plan, generator=torch.Generator().manual_seed(1))
        optimizer = early or SGD(plan.param_groups(model), momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


# Schedulers


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        lambda optimizer: CosineAnnealingLR(optimizer, T_max=10),
        lambda optimizer: OneCycleLR(optimizer, max_lr=[g["lr"] for g in optimizer.param_groups], total_steps=11),
    ],
    ids=["lambda", "cosine", "one cycle"],
)
def test_schedulers_keep_the_ratios(make: Callable[[Optimizer], LRScheduler]) -> None:
    model = net()
    plan = es.plan(model, X, base=0.1, optimizer="momentum")
    optimizer = SGD(plan.param_groups(model), momentum=0.9)
    shares = [group["lr"] / 0.1 for group in optimizer.param_groups]
    assert len(set(shares)) > 1
    bases = set()
    for rates in steps(optimizer, make(optimizer), 9):
        base = es.check_groups(model, plan, optimizer)
        assert rates == pytest.approx([base * share for share in shares])
        bases.add(base)
    assert len(bases) == 9


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=11),
        lambda optimizer: CosineAnnealingLR(optimizer, T_max=10, eta_min=0.01),
    ],
    ids=["one rate", "a floor"],
)
def test_schedulers_that_flatten_groups_are_found(make: Callable[[Optimizer], LRScheduler]) -> None:
    model = net()
    plan = es.plan(model, X, base=0.1, optimizer="momentum")
    optimizer = SGD(plan.param_groups(model), momentum=0.9)
    list(steps(optimizer, make(optimizer), 9))
    message = message_of(es.PlanError, lambda: es.check_groups(model, plan, optimizer))
    for part in ("groups are not the plan's", "max_lr=[", "eta_min"):
        assert part in message


def test_rates_that_are_all_zero_pass() -> None:
    model = net()
    plan = es.plan(model, X, base=0.1, optimizer="sgd")
    optimizer = SGD(plan.param_groups(model))
    LambdaLR(optimizer, lambda step: 0.0)
    assert es.check_groups(model, plan, optimizer) == 0.0


# Train and eval mode


class WithAnAuxiliaryHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.auxiliary = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.stem(x))
        return (self.head(h), self.auxiliary(h)) if self.training else self.head(h)


def test_parameters_that_eval_mode_leaves_out_are_said() -> None:
    with pytest.warns(UserWarning, match=r"eval mode, where 'auxiliary.weight' and 1 more is not used.*call train\(\)"):
        es.trace(WithAnAuxiliaryHead().eval(), X)
    with pytest.warns(es.PlanWarning, match=r"'auxiliary.weight' is not used in eval mode \(call train\(\) .* 1 more"):
        plan = es.plan(WithAnAuxiliaryHead().eval(), X)
    assert "not used" in plan["auxiliary.weight"].reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = es.plan(WithAnAuxiliaryHead().train(), X)
    assert "not used" not in plan["auxiliary.weight"].reason


def test_modes_that_differ_in_norm_alone_give_one_plan_and_dropout_makes_what_follows_smaller() -> None:
    model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4))
    assert es.plan(model.train(), X).parameters == es.plan(model.eval(), X).parameters
    model.insert(3, nn.Dropout(0.75))
    trained, evaluated = es.plan(model.train(), X), es.plan(model.eval(), X)
    assert trained["4.weight"].std == pytest.approx(evaluated["4.weight"].std / 2)
    assert trained["5.weight"].std == pytest.approx(evaluated["5.weight"].std)


def test_one_example_for_a_batch_norm_names_both_remedies() -> None:
    model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    message = message_of(es.TraceError, lambda: es.plan(model, X[:1]))
    for part in ("train mode", "batch norm", "batch of two", "eval()"):
        assert part in message
    es.plan(model.eval(), X[:1])
