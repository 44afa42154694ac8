"""The Lightning callback in real trainings."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessRaisedException
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import evenstep as es
from evenstep.integrations.lightning import EvenSteps

torch.set_num_threads(1)
# Other people's packages warn of one another; what they say does not depend on us.
pytestmark = pytest.mark.filterwarnings("ignore", "error::evenstep.PlanWarning")

GENERATOR = torch.Generator().manual_seed(0)
INPUTS, TARGETS = torch.randn(64, 8, generator=GENERATOR), torch.randint(3, (64,), generator=GENERATOR)
Configure = Callable[[Any], Any]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


def planned(module: Any) -> es.Plan:
    return es.plan(module.model, INPUTS[:2], base=0.1, optimizer="momentum")


class Module(lightning.LightningModule):
    def __init__(self, configure: Configure = EvenSteps.optimizer) -> None:
        super().__init__()
        self.model = network()
        self.configure = configure
        self.losses: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> Any:
        return self.configure(self)


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=16)


def trainer(*callbacks: Any, epochs: int = 2, kind: Any = lightning.Trainer, **options: Any) -> Any:
    return kind(
        **{
            "max_epochs": epochs,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": list(callbacks),
            **options,
        }
    )


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


class Start(lightning.Callback):
    """Keep the weights that training starts from."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.weights = weights(pl_module)


def with_schedule(make: Callable[[Any], Any]) -> Configure:
    def configure(module: Any) -> Any:
        optimizer = EvenSteps.optimizer(module)
        return [optimizer], [make(optimizer)]

    return configure


def test_it_trains_as_a_loop_by_hand_does() -> None:
    start, module = Start(), Module()
    steps = EvenSteps(planned)
    trained = trainer(steps, start)
    trained.fit(module, batches())
    plan = planned(module)
    for group in trained.optimizers[0].param_groups:
        assert group["lr"] == pytest.approx(0.1 * plan[group["name"].split(" ")[0]].lr_scale)
    assert len({group["lr"] for group in trained.optimizers[0].param_groups}) > 1

    model = network()
    model.load_state_dict({name.removeprefix("model."): value for name, value in start.weights.items()})
    optimizer, losses = plan.optimizer(model), []
    for x, y in [*batches(), *batches()]:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert module.losses == pytest.approx(losses, rel=1e-6)
    assert trained.callback_metrics["base_lr"] == pytest.approx(0.1)


def test_weights_are_drawn_as_planned_and_differ_between_modules_and_seeds() -> None:
    starts = []
    for seed in (1, 1, 2):
        lightning.seed_everything(seed)
        one, two = Start(), Start()
        for start in (one, two):
            trainer(EvenSteps(planned), start, max_steps=1).fit(Module(), batches())
        assert not same(one.weights, two.weights)
        starts.append(one.weights)
    assert same(starts[0], starts[1])
    assert not same(starts[0], starts[2])
    plan = planned(Module())
    drawn = starts[0]["model.2.weight"]
    assert float(drawn.std()) == pytest.approx(plan["2.weight"].std, rel=0.1)
    assert not torch.count_nonzero(starts[0]["model.2.bias"])


def test_a_plan_that_is_made_before_and_one_of_the_whole_module_do_as_well() -> None:
    module = Module()
    plans = (planned(module), es.plan(module, INPUTS[:2], base=0.1, optimizer="momentum"))
    for plan in plans:
        trained = trainer(EvenSteps(plan), max_steps=1)
        trained.fit(module, batches())
        rates = {round(group["lr"], 9) for group in trained.optimizers[0].param_groups}
        assert rates == {round(p.lr_scale * 0.1, 9) for p in plan}


def test_a_second_fit_goes_on_from_what_was_trained() -> None:
    module, start = Module(), Start()
    trained = trainer(EvenSteps(planned), start)
    trained.fit(module, batches())
    after = weights(module)
    trained.fit_loop.max_epochs = 4
    trained.fit(module, batches())
    assert same(start.weights, after)
    assert not same(weights(module), after)
    after = weights(module)
    other = Module()
    before = weights(other)
    trained.fit(other, batches())  # another module is drawn
    assert not same(start.weights, before)
    trainer(EvenSteps(planned), start, max_steps=1).fit(module, batches())  # the first one is not, by any callback
    assert same(start.weights, after)


def test_weights_that_are_trained_already_are_left_where_that_is_said() -> None:
    module, start = Module(), Start()
    before = weights(module)
    trainer(EvenSteps(planned, initialize=False), start, max_steps=1).fit(module, batches())
    assert same(start.weights, before)


@pytest.mark.parametrize("init", ["conserve", "keep"])
def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path, init: str) -> None:
    def plan(module: Any) -> es.Plan:  # with init='keep' it depends on the weights, which resuming has not yet
        return es.plan(module.model, INPUTS[:2], base=0.1, optimizer="momentum", init=init)

    configure = with_schedule(lambda optimizer: CosineAnnealingLR(optimizer, T_max=4))
    lightning.seed_everything(0)
    whole = Module(configure)
    trainer(EvenSteps(plan), epochs=4).fit(whole, batches())

    lightning.seed_everything(0)
    first = Module(configure)
    stopped = trainer(EvenSteps(plan), epochs=2)
    stopped.fit(first, batches())
    stopped.fit_loop.max_epochs = 4
    stopped.save_checkpoint(tmp_path / "half.ckpt")

    lightning.seed_everything(5)
    rest, steps = Module(configure), EvenSteps(plan)
    resumed = trainer(steps, epochs=4)
    resumed.fit(rest, batches(), ckpt_path=str(tmp_path / "half.ckpt"))
    assert rest.losses == pytest.approx(whole.losses[8:], rel=1e-6)
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weights(rest)[name], weight)


def test_a_checkpoint_of_another_plan_is_named(tmp_path: Path) -> None:
    module = Module()
    stopped = trainer(EvenSteps(planned), epochs=1)
    stopped.fit(module, batches())
    stopped.save_checkpoint(tmp_path / "one.ckpt")
    other = es.plan(network(), INPUTS[:2], base=0.01, optimizer="momentum")
    resumed = trainer(EvenSteps(other), epochs=2)
    with pytest.warns(es.PlanWarning, match=r"resumes with the checkpoint's"):
        resumed.fit(Module(), batches(), ckpt_path=str(tmp_path / "one.ckpt"))
    assert resumed.callback_metrics["base_lr"] == pytest.approx(0.1)


def test_schedulers_keep_the_ratios_or_are_refused() -> None:
    module = Module(with_schedule(lambda optimizer: StepLR(optimizer, step_size=1, gamma=0.5)))
    trained = trainer(EvenSteps(planned), epochs=3)
    trained.fit(module, batches())
    assert trained.callback_metrics["base_lr"] == pytest.approx(0.025)
    floor = Module(with_schedule(lambda optimizer: CosineAnnealingLR(optimizer, T_max=5, eta_min=0.01)))
    with pytest.raises(es.PlanError, match="CosineAnnealingLR changes the ratios of rates"):
        trainer(EvenSteps(planned)).fit(floor, batches())


def by_hand(module: Any) -> Any:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


class Extra(Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Twins(Module):
    def __init__(self) -> None:
        super().__init__()
        self.other = network()


class Manual(Module):
    def __init__(self) -> None:
        super().__init__(lambda module: [EvenSteps.optimizer(module), EvenSteps.optimizer(module)])
        self.automatic_optimization = False


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Module(by_hand), r"all parameters have the same learning rate 0\.1"),
        (Extra, r"'scale' of Extra trains but is not in the plan, which is for its Sequential"),
        (Twins, r"the plan fits 2 parts of Twins; plan the Twins itself"),
        (Manual, r"Manual has 2 optimizers, but a plan is for one"),
    ],
)
def test_what_does_not_fit_the_plan_is_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(es.PlanError, match=message):
        trainer(EvenSteps(planned)).fit(make(), batches())


def test_bad_input_is_named() -> None:
    with pytest.raises(es.InputError, match=r"the plan is 3; give a plan, or a function"):
        EvenSteps(3)  # type: ignore[arg-type]
    with pytest.raises(es.InputError, match=r"the function of the module returned None; return a plan"):
        trainer(EvenSteps(lambda _: None)).fit(Module(), batches())  # type: ignore[arg-type,return-value]
    with pytest.raises(es.PlanError, match="the trainer of Module has no plan"):
        trainer().fit(Module(), batches())
    with pytest.raises(es.PlanError, match="the trainer of Module has no plan"):
        EvenSteps.optimizer(Module())
    with pytest.raises(es.PlanError, match="not made yet"):
        _ = EvenSteps(planned).plan
    with pytest.raises(es.PlanError, match="the plan does not fit Module"):
        trainer(EvenSteps(es.plan(nn.Linear(8, 3), INPUTS[:2], base=0.1, optimizer="sgd"))).fit(Module(), batches())


def test_a_frozen_copy_inside_the_module_is_no_part_of_it() -> None:
    module = Module()
    module.teacher = network().requires_grad_(False)
    trainer(EvenSteps(planned), max_steps=1).fit(module, batches())


def test_it_is_sent_to_other_processes_with_its_plan() -> None:
    steps = EvenSteps(planned(Module()))
    trainer(steps, max_steps=1).fit(Module(), batches())
    assert pickle.loads(pickle.dumps(steps)).plan == steps.plan


needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo: no processes on a CPU"
)


@needs_gloo
def test_processes_that_end_with_a_fit_are_refused() -> None:
    with pytest.raises(ProcessRaisedException, match=r"by fork.*EvenSteps\(plan, initialize=False\)"):
        trainer(EvenSteps(planned), strategy="ddp_fork", devices=1).fit(Module(), batches())


@needs_gloo
def test_two_processes_draw_the_same_weights_whatever_their_seeds(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys, lightning, torch
            from tests.integrations.test_lightning import EvenSteps, Module, batches, planned, trainer, weights
            rank = int(os.environ.get("LOCAL_RANK", 0))
            torch.manual_seed(rank)

            class Before(lightning.Callback):  # before DDP sends out the first process's weights
                def setup(self, trainer, pl_module, stage):
                    torch.save(weights(pl_module), f"{sys.argv[1]}/{rank}.pt")

            trained = trainer(EvenSteps(planned), Before(), strategy="ddp", devices=2, max_steps=2)
            trained.fit(Module(), batches())
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert same(first, second)
    assert float(first["model.2.weight"].std()) == pytest.approx(planned(Module())["2.weight"].std, rel=0.1)


def test_the_older_package_does_as_well() -> None:
    older: Any = pytest.importorskip("pytorch_lightning")
    parent: Any = older.LightningModule

    class Older(parent):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            return functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return EvenSteps.optimizer(self)

    trained = trainer(EvenSteps(planned), kind=older.Trainer)
    trained.fit(Older(), batches())
    assert trained.callback_metrics["base_lr"] == pytest.approx(0.1)
