"""Check stacked and single trials against plain PyTorch: one trial after the other, by `torch.optim`."""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenstep as es
from evenstep import optim
from evenstep.rules import Optimizer
from evenstep.search.job import Job, Trial
from evenstep.search.key import search_key
from evenstep.search.recipe import Recipe
from evenstep.search.replicas import (
    ReplicaGroup,
    SeparateReplicas,
    StackedReplicas,
    TrialResult,
    order,
    step_count,
    train,
)
from tests.search import plain
from tests.search.plain import Data, Make, Trained, images, job_of

torch.set_num_threads(1)

CPU = torch.device("cpu")
GROUPS: list[type[StackedReplicas] | type[SeparateReplicas]] = [StackedReplicas, SeparateReplicas]
Torch = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, tuple[Optimizer, dict[str, Any], Torch]] = {
    "sgd": ("sgd", {}, torch.optim.SGD),
    "decay": ("sgd", {"weight_decay": 0.1}, functools.partial(torch.optim.SGD, weight_decay=0.1)),
    "heavy ball": ("momentum", {"momentum": 0.8, "nesterov": False}, functools.partial(torch.optim.SGD, momentum=0.8)),
    "nesterov": (
        "momentum",
        {"weight_decay": 0.02},
        functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.02),
    ),
    "adam": ("adam", {}, torch.optim.Adam),
    "adamw": (
        "adam",
        {"weight_decay": 0.3, "betas": (0.8, 0.95), "eps": 1e-6},
        functools.partial(torch.optim.AdamW, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-6),
    ),
    "lion": ("lion", {"weight_decay": 0.3}, functools.partial(plain.Lion, betas=(0.9, 0.99), weight_decay=0.3)),
    "lion, other betas": ("lion", {"betas": (0.7, 0.8)}, functools.partial(plain.Lion, betas=(0.7, 0.8))),
}
RATES = {
    "adam": (0.002, 0.01, 0.05),
    "lion": (0.001, 0.004, 0.01),
    "sgd": (0.01, 0.05, 0.2),
    "momentum": (0.003, 0.01, 0.04),
}


def half_cosine(step: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / 10))


def results(
    kind_of_group: type[StackedReplicas] | type[SeparateReplicas], job: Job, data: Data, trials: Sequence[Trial]
) -> dict[Trial, TrialResult]:
    group: ReplicaGroup = kind_of_group(job, trials, CPU)
    found = list(train(group, data, job.recipe))
    assert len(found) == len(trials)
    return {result.trial: result for result in found}


def assert_same(found: TrialResult, expected: Trained, *, rel: float) -> None:
    assert found.curve == pytest.approx(expected.curve, rel=rel, abs=rel)
    assert found.loss == pytest.approx(expected.loss, rel=rel, abs=rel)


def compare(
    kind_of_group: type[StackedReplicas] | type[SeparateReplicas],
    make: Make,
    name: str,
    *,
    data: Data | None = None,
    rel: float = 1e-9,
    scales: dict[str, float] | None = None,
    **options: Any,
) -> None:
    """Train three rates and two seeds, side by side and plainly; losses on the way and at the end agree."""
    own = data or images()
    kind, settings, optimizer = OPTIMIZERS[name]
    recipe = Recipe(optimizer=kind, steps=10, batch_size=10, **settings, **options)
    job = job_of(make, own, recipe, scales=scales)
    trials = [Trial(lr, seed) for lr in RATES[kind] for seed in range(2)]
    found = results(kind_of_group, job, own, trials)
    again = {k: v for k, v in options.items() if k in ("schedule", "loss", "order_seed")}
    for one in trials:
        expected = plain.trained(
            make,
            own,
            lr=one.lr,
            seed=one.seed,
            optimizer=optimizer,
            scales=scales,
            steps=10,
            batch_size=10,
            **again,
        )
        assert_same(found[one], expected, rel=rel)
    # The trials are different networks at different rates, or agreeing would mean nothing.
    assert len({result.loss for result in found.values()}) == len(trials)


@pytest.mark.parametrize("kind_of_group", GROUPS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_torchs(kind_of_group: Any, name: str) -> None:
    compare(kind_of_group, plain.mlp, name)


@pytest.mark.parametrize("kind_of_group", GROUPS)
@pytest.mark.parametrize("no_decay", [True, False])
@pytest.mark.parametrize("look_ahead", [True, False])
@pytest.mark.parametrize("exactly", [True, False])
def test_muon_steps_hidden_kernels_and_matrices_and_adamw_the_rest(
    kind_of_group: Any, no_decay: bool, look_ahead: bool, exactly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Products of bfloat16 are added up in an order that depends on how many there are, and are rounded coarsely.
    if exactly:
        monkeypatch.setattr(optim, "PRECISION", torch.float64)
    rel = 1e-9 if exactly else 1e-3
    data = images()
    names = [name for name, _ in plain.three_layers().named_parameters()]
    settings: dict[str, Any] = {"momentum": 0.9, "nesterov": look_ahead, "weight_decay": 0.2, "betas": (0.8, 0.95)}
    recipe = Recipe(optimizer="muon", steps=10, batch_size=10, no_decay=no_decay, schedule=half_cosine, **settings)
    scales = {"3.weight": 0.5, "10.weight": 2.0}
    job = job_of(plain.three_layers, data, recipe, scales=scales)
    job = dataclasses.replace(job, plan=dataclasses.replace(job.plan, optimizer_name="muon"))
    trials = [Trial(lr, seed) for lr in (0.01, 0.05) for seed in range(2)]
    found = results(kind_of_group, job, data, trials)
    weights = ("0.weight", "3.weight", "5.weight", "8.weight", "10.weight")
    optimizer = functools.partial(
        plain.MuonOrAdamW,
        matrices={names.index("3.weight"): 1, names.index("5.weight"): 2, names.index("8.weight"): 1},
        spared=frozenset(i for i, name in enumerate(names) if no_decay and name not in weights),
        **settings,
    )
    for one in trials:
        expected = plain.trained(
            plain.three_layers,
            data,
            lr=one.lr,
            seed=one.seed,
            optimizer=optimizer,
            scales=scales,
            steps=10,
            batch_size=10,
            schedule=half_cosine,
        )
        assert_same(found[one], expected, rel=rel)
    assert len({result.loss for result in found.values()}) == len(trials)
    # The built optimiser takes the same steps.
    built = plain.trained(
        plain.three_layers,
        data,
        lr=0.01,
        seed=0,
        optimizer=lambda groups: _built(job.plan, groups, no_decay=no_decay, **settings),
        scales=scales,
        steps=10,
        batch_size=10,
        schedule=half_cosine,
    )
    assert_same(found[Trial(0.01, 0)], built, rel=rel)


def _built(plan: es.Plan, groups: list[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """Return a plan's optimiser of parameters that stand in groups of one, in the same order."""
    model = plain.three_layers()
    names = [name for name, _ in model.named_parameters()]
    ours = [p for _, p in model.named_parameters()]
    made: torch.optim.Optimizer = plan.optimizer(model, lr=0.01, **options)
    theirs = {id(mine): group["params"][0] for mine, group in zip(ours, groups, strict=True)}
    assert len(names) == len(groups)
    single = []
    for group in made.param_groups:
        for place, p in enumerate(group["params"]):
            one = {**group, "params": [theirs[id(p)]]}
            single.append(one | ({"layouts": [group["layouts"][place]]} if group["muon"] else {}))
    order_of = {id(group["params"][0]): place for place, group in enumerate(groups)}
    return optim.Muon(sorted(single, key=lambda group: order_of[id(group["params"][0])]))


@pytest.mark.parametrize("kind_of_group", GROUPS)
@pytest.mark.parametrize("name", ["nesterov", "adamw"])
@pytest.mark.parametrize(
    "make", [plain.cnn, plain.batch_norm, plain.gelu, plain.dropout_off, plain.partial, plain.random_features]
)
@pytest.mark.filterwarnings("ignore:.*no output depends on it:evenstep.PlanWarning")
def test_every_kind_of_network_trains_as_it_does_alone(kind_of_group: Any, name: str, make: Make) -> None:
    compare(kind_of_group, make, name)


def test_frozen_values_and_buffers_are_those_of_the_seed_and_part_of_the_job() -> None:
    data = images()
    planned = es.plan(plain.random_features(), data[0][:2], init="he")
    job = Job.of(plain.random_features, planned, Recipe(), range(3))
    for seed in range(3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            expected = plain.random_features()
        started = job.start(seed)
        assert torch.equal(started.get_parameter("project.weight"), expected.get_parameter("project.weight"))
        assert torch.equal(started.get_buffer("phases"), expected.get_buffer("phases"))
        # What the plan draws is not as it was made; what all seeds have in common is not kept for each.
        assert not torch.equal(started.get_parameter("last.weight"), expected.get_parameter("last.weight"))
        assert "norm.running_var" not in job.kept.get(seed, {})
    other = copy.deepcopy(job.template)
    other.get_buffer("norm.running_mean").add_(1.0)
    assert search_key(dataclasses.replace(job, template=other), data).config != search_key(job, data).config


@pytest.mark.parametrize("kind_of_group", GROUPS)
@pytest.mark.parametrize("name", ["heavy ball", "adamw"])
def test_a_schedule_and_rates_of_the_parameters_own(kind_of_group: Any, name: str) -> None:
    scales = {"1.weight": 0.25, "1.bias": 2.0, "3.weight": 1.5, "3.bias": 0.0}
    compare(kind_of_group, plain.mlp, name, scales=scales, schedule=half_cosine, order_seed=5)


def squares(output: Tensor, target: Tensor) -> Tensor:
    return ((output - F.one_hot(target, 3)) ** 2).sum(1).mean()


@pytest.mark.parametrize("kind_of_group", GROUPS)
def test_a_loss_of_the_users_own(kind_of_group: Any) -> None:
    compare(kind_of_group, plain.gelu, "heavy ball", loss=squares)


@pytest.mark.parametrize("kind_of_group", GROUPS)
@pytest.mark.parametrize("make", [plain.mlp, plain.batch_norm])
def test_single_precision_agrees_to_its_digits(kind_of_group: Any, make: Make) -> None:
    compare(kind_of_group, lambda: make().float(), "nesterov", data=images(dtype=torch.float32), rel=2e-4)


@pytest.mark.parametrize("kind_of_group", GROUPS)
def test_weights_are_drawn_from_the_plan_by_the_seed(kind_of_group: Any) -> None:
    """An init of the plan's own: normal numbers in the plan's order from a generator of the trial's seed."""
    data = images()
    planned = es.plan(plain.mlp(), data[0][:2], init="he")
    recipe = Recipe(steps=10, batch_size=10)
    job = Job.of(plain.mlp, planned, recipe, range(3))
    assert planned["1.weight"].std == pytest.approx(math.sqrt(2 / 72))
    for one, found in results(kind_of_group, job, data, [Trial(0.05, 0), Trial(0.05, 2)]).items():
        expected = plain.trained(
            functools.partial(_drawn, one.seed, planned["3.weight"].std),
            data,
            lr=0.05,
            seed=0,
            optimizer=torch.optim.SGD,
            scales={p.name: p.lr_scale for p in planned.parameters},
            steps=10,
            batch_size=10,
        )
        assert_same(found, expected, rel=1e-9)


def _drawn(seed: int, readout: float) -> nn.Module:
    model, generator = plain.mlp(), torch.Generator().manual_seed(seed)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, deviation in (("1.weight", math.sqrt(2 / 72)), ("3.weight", readout)):
            own[name].normal_(0.0, deviation, generator=generator)
        own["1.bias"].zero_()
        own["3.bias"].zero_()
    return model


@pytest.mark.parametrize("kind_of_group", GROUPS)
def test_running_statistics_and_parameters_end_where_a_plain_trial_ends(kind_of_group: Any) -> None:
    data, trials = images(), [Trial(0.01, 0), Trial(0.1, 1)]
    job = job_of(plain.batch_norm, data, Recipe(steps=7, batch_size=16))
    group = kind_of_group(job, trials, CPU)
    list(train(group, data, job.recipe))
    for place, one in enumerate(trials):
        plainly = plain.trained(
            plain.batch_norm, data, lr=one.lr, seed=one.seed, optimizer=torch.optim.SGD, steps=7, batch_size=16
        )
        if isinstance(group, StackedReplicas):
            own = {name: stack[place] for name, stack in zip(group.names, group.parameters, strict=True)}
            own |= {name: stack[place] for name, stack in group.buffers.items()}
        else:
            own = group.models[place].state_dict()
        expected = plainly.model.state_dict()
        assert set(own) == set(expected)
        seen = int(expected.pop("1.num_batches_tracked"))  # counted afresh by `update_bn`: one epoch
        assert (seen, int(own["1.num_batches_tracked"])) == (3, 7 + 3)
        for name, value in expected.items():
            torch.testing.assert_close(own[name].detach(), value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind_of_group", GROUPS)
def test_the_final_loss_is_the_weights_own_whatever_the_running_statistics_were(kind_of_group: Any) -> None:
    """A step so large that running statistics trail far behind: the loss is that of statistics taken afresh."""
    data, trials = images(), [Trial(0.5, seed) for seed in range(2)]
    job = job_of(plain.batch_norm, data, Recipe(steps=4, batch_size=16))
    group = kind_of_group(job, trials, CPU)
    found = {result.trial: result.loss for result in train(group, data, job.recipe)}
    for one in trials:
        plainly = plain.trained(
            plain.batch_norm, data, lr=one.lr, seed=one.seed, optimizer=torch.optim.SGD, steps=4, batch_size=16
        )
        model = copy.deepcopy(plainly.model).train()  # statistics of the data as a whole
        with torch.no_grad():
            whole = float(F.cross_entropy(model(data[0]), data[1]))
        assert found[one] == pytest.approx(plainly.loss, rel=1e-9)
        assert found[one] == pytest.approx(whole, rel=0.02)


# Divergence

WILD = 1e30  # squares overflow within a few steps


@pytest.mark.parametrize("kind_of_group", GROUPS)
@pytest.mark.parametrize("name", ["heavy ball", "nesterov"])
def test_a_trial_that_diverges_is_retired_and_the_others_do_not_notice(kind_of_group: Any, name: str) -> None:
    data = images()
    kind, settings, optimizer = OPTIMIZERS[name]
    recipe = Recipe(optimizer=kind, steps=40, batch_size=10, loss=squares, **settings)
    job = job_of(plain.gelu, data, recipe)
    calm = [Trial(0.001, 0), Trial(0.004, 1), Trial(0.002, 0)]
    mixed = [calm[0], Trial(WILD, 0), calm[1], Trial(WILD * 10, 1), calm[2]]
    alone, together = results(kind_of_group, job, data, calm), results(kind_of_group, job, data, mixed)
    for one in calm:
        assert together[one].loss == pytest.approx(alone[one].loss, rel=1e-12)
        assert together[one].curve == pytest.approx(alone[one].curve, rel=1e-12)
        assert len(together[one].curve) == 40
    for one in (mixed[1], mixed[3]):
        expected = plain.trained(
            plain.gelu, data, lr=one.lr, seed=one.seed, optimizer=optimizer, steps=40, batch_size=10, loss=squares
        )
        assert together[one].diverged
        assert together[one].loss == math.inf
        # Finite as long as a plain trial's, then infinite once: the retirement.
        assert together[one].curve[:-1] == pytest.approx(expected.curve[:-1], rel=1e-9)
        assert together[one].curve[-1] == math.inf
        assert 1 < len(together[one].curve) < 40


@pytest.mark.parametrize("kind_of_group", GROUPS)
def test_a_diverged_trial_is_reported_before_the_others_are_done(kind_of_group: Any) -> None:
    data = images()
    job = job_of(plain.gelu, data, Recipe(steps=64, batch_size=10, loss=squares))
    group = kind_of_group(job, [Trial(0.001, 0), Trial(WILD, 0)], CPU)
    stream = train(group, data, job.recipe)
    first = next(stream)
    assert first.trial == Trial(WILD, 0)
    assert len(first.curve) < 64
    assert [result.trial for result in stream] == [Trial(0.001, 0)]
    assert group.trials == [Trial(0.001, 0)]


@pytest.mark.parametrize("kind_of_group", GROUPS)
def test_when_all_diverge_training_ends_early(kind_of_group: Any) -> None:
    data, calls = images(), 0

    def counted(output: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return squares(output, target)

    job = job_of(plain.gelu, data, Recipe(steps=320, batch_size=10, loss=counted))
    found = results(kind_of_group, job, data, [Trial(WILD, 0), Trial(WILD, 1)])
    assert all(result.diverged for result in found.values())
    assert calls < 2 * 64


@pytest.mark.parametrize("kind_of_group", GROUPS)
def test_a_last_step_that_breaks_the_network_is_a_divergence(kind_of_group: Any) -> None:
    """Every loss on the way is finite; the weights after the last step are not."""
    data = images()
    last: Callable[[int], float] = lambda step: 1e200 if step == 5 else 1.0  # noqa: E731
    job = job_of(plain.mlp, data, Recipe(steps=6, batch_size=10, schedule=last, loss=squares))
    (found,) = results(kind_of_group, job, data, [Trial(1e-3, 0)]).values()
    assert found.loss == math.inf
    assert len(found.curve) == 6
    assert all(map(math.isfinite, found.curve))


@pytest.mark.parametrize("kind_of_group", GROUPS)
def test_a_short_run_that_is_worse_half_way_than_it_began_is_given_up_and_others_go_on(kind_of_group: Any) -> None:
    """Adam at a rate of 3 throws the outputs far off; it is stopped at half time and counts with what it then had."""
    data = images()
    recipe = Recipe(optimizer="adam", steps=32, batch_size=10, loss=squares, counted=0.25)
    job, whole = job_of(plain.gelu, data, recipe), job_of(plain.gelu, data, dataclasses.replace(recipe, counted=None))
    good, hopeless = Trial(0.003, 0), Trial(3.0, 0)
    found, undisturbed = (results(kind_of_group, one, data, [good, hopeless]) for one in (job, whole))
    assert min(undisturbed[hopeless].curve[8:16]) > 1.1 * undisturbed[hopeless].curve[0]
    assert found[hopeless].curve == pytest.approx(undisturbed[hopeless].curve[:16], rel=1e-3)
    assert found[hopeless].loss == pytest.approx(sum(undisturbed[hopeless].curve[8:16]) / 8, rel=1e-3)
    assert found[good].curve == pytest.approx(undisturbed[good].curve, rel=1e-4)
    assert found[good].loss == pytest.approx(sum(undisturbed[good].curve[-8:]) / 8, rel=1e-4)


# What is the user's stays the user's


@pytest.mark.parametrize("kind_of_group", GROUPS)
def test_data_template_and_random_state_stay_as_they_are(kind_of_group: Any) -> None:
    data = images()
    before_data = data[0].clone(), data[1].clone()
    job = job_of(plain.batch_norm, data, Recipe(steps=5, batch_size=10))
    template = copy.deepcopy(job.template.state_dict())
    state = torch.random.get_rng_state()
    results(kind_of_group, job, data, [Trial(0.1, 0), Trial(0.2, 1)])
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(data[0], before_data[0])
    assert torch.equal(data[1], before_data[1])
    for name, value in job.template.state_dict().items():
        assert torch.equal(value, template[name])


@pytest.mark.parametrize("dropping", [0.0, 0.4])
def test_a_search_leaves_model_data_and_random_state_untouched(dropping: float) -> None:
    made = nn.Sequential(
        nn.Flatten(), nn.Linear(72, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropping), nn.Linear(8, 3)
    ).eval()
    before, modes = copy.deepcopy(made.state_dict()), [module.training for module in made.modules()]
    data = images(dtype=torch.float32)
    kept = data[0].clone(), data[1].clone()
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    # The same module at every call, which nothing forbids.
    found = [es.search_lr(lambda: made, data, seeds=2, epochs=3, batch_size=8, on_failure="return") for _ in range(2)]
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    assert torch.equal(data[0], kept[0])
    assert torch.equal(data[1], kept[1])
    assert [module.training for module in made.modules()] == modes
    for name, value in made.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in made.parameters())
    assert found[0].grid == found[1].grid
    assert [x for s in found[0].losses for x in s] == pytest.approx([x for s in found[1].losses for x in s], rel=1e-3)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)).double()


def test_dropout_drops_in_training_by_seed_and_step_and_not_in_evaluation() -> None:
    data = images()
    job = job_of(dropping, data, Recipe(steps=1, batch_size=48), seeds=2)
    trials = [Trial(1e-12, 0), Trial(2e-12, 0), Trial(1e-12, 1)]  # rates of no effect
    group = SeparateReplicas(job, trials, CPU)
    with torch.random.fork_rng(devices=[]):
        group.moment = "step 0"
        first = group.step_(*data).tolist()
        group.moment = "step 1"
        second = group.step_(*data).tolist()
        kept = group.evaluate(*data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole = float(F.cross_entropy(dropping().eval()(data[0]), data[1]).detach())
    assert kept[:2].tolist() == pytest.approx([whole, whole], rel=1e-9)
    assert abs(first[0] - whole) > 1e-4
    assert first[0] == pytest.approx(first[1], rel=1e-9)  # the rates of a seed drop alike,
    assert abs(first[0] - second[0]) > 1e-4  # another step drops others,
    assert abs(first[2] - first[0]) > 1e-4  # and so does another seed


def test_networks_that_draw_are_not_stacked() -> None:
    data = images()
    job = job_of(dropping, data, Recipe(steps=1, batch_size=48), seeds=2)
    with pytest.raises(RuntimeError, match="random"):
        StackedReplicas(job, [Trial(0.1, 0), Trial(0.1, 1)], CPU).step_(*data)


# Order


@pytest.mark.parametrize(("count", "size"), [(10, 3), (12, 4), (5, 64), (1, 1)])
def test_an_epoch_takes_no_example_twice(count: int, size: int) -> None:
    recipe = Recipe(batch_size=size, epochs=3)
    batches = [batch.tolist() for batch in order(count, recipe)]
    each = count // min(size, count)
    assert len(batches) == 3 * each == step_count(count, recipe)
    for epoch in range(3):
        seen = [index for batch in batches[epoch * each : (epoch + 1) * each] for index in batch]
        assert len(seen) == len(set(seen)) == each * min(size, count)
        assert set(seen) <= set(range(count))
    if count >= 10:
        assert batches[:each] != batches[each : 2 * each]
        other = dataclasses.replace(recipe, order_seed=1)
        assert batches != [batch.tolist() for batch in order(count, other)]


def test_steps_run_over_as_many_epochs_as_they_need() -> None:
    recipe = Recipe(batch_size=4, steps=7, epochs=100)
    batches = [batch.tolist() for batch in order(10, recipe)]
    assert len(batches) == 7 == step_count(10, recipe)
    assert len({index for batch in batches[:2] for index in batch}) == 8


def test_evaluation_in_parts_is_the_mean_over_all_examples() -> None:
    """More examples than an evaluation batch, and not a multiple of it."""
    data = images(2500)
    job = job_of(plain.mlp, data, Recipe(steps=2, batch_size=10))
    for kind_of_group in GROUPS:
        found = results(kind_of_group, job, data, [Trial(0.05, 0), Trial(0.05, 1)])
        for one, result in found.items():
            expected = plain.trained(
                plain.mlp, data, lr=0.05, seed=one.seed, optimizer=torch.optim.SGD, steps=2, batch_size=10
            )
            assert result.loss == pytest.approx(expected.loss, rel=1e-10)


def test_what_is_a_matrix_and_what_decays_is_part_of_a_search_s_key() -> None:
    data = images()
    recipe = Recipe(optimizer="muon", weight_decay=0.1, steps=2)
    job = job_of(plain.three_layers, data, recipe)
    job = dataclasses.replace(job, plan=dataclasses.replace(job.plan, optimizer_name="muon"))
    cut = tuple(dataclasses.replace(p, parts=(4, 4)) if p.name == "8.weight" else p for p in job.plan.graph.parameters)
    plan = dataclasses.replace(job.plan, graph=dataclasses.replace(job.plan.graph, parameters=cut))
    jobs = [
        job,
        dataclasses.replace(job, plan=plan),
        dataclasses.replace(job, recipe=dataclasses.replace(recipe, no_decay=True)),
        dataclasses.replace(job, recipe=dataclasses.replace(recipe, momentum=0.5)),
    ]
    keys = [search_key(one, data, name="three layers").config for one in jobs]
    assert len(set(keys)) == len(jobs)
    said = search_key(job, data, name="three layers").description["recipe"]["treated"]
    assert [name for name, *_, layout in said if layout] == ["3.weight", "5.weight", "8.weight"]
    plainly = dataclasses.replace(job, recipe=Recipe(optimizer="adam", weight_decay=0.1, steps=2))
    description = search_key(plainly, data, name="three layers").description
    assert "treated" not in description["recipe"]  # stores from before there was a choice keep their keys
    assert "no_decay" not in description["recipe"]
    assert description["recipe"]["betas"] == (0.9, 0.999)
